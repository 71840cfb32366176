"""Encoders with a cache, of the small GLM: an image of 90x60 pixels gives about 7 KiB."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mm_libtorch_encoder import CacheConfig, Encoder

MIB = 2**20


@pytest.fixture
def open_cached(demo_checkpoint: Callable[[str], Path]) -> Iterator[Callable[..., Encoder]]:
    """Opens encoders with a cache; a test that closes one itself does no harm."""
    with ExitStack() as opened:

        def open_encoder(
            disk: Path | None = None, *, checkpoint: Path | None = None, **options: Any
        ) -> Encoder:
            sizes = {"memory_bytes": 64 * MIB, "max_entry_bytes": MIB}
            if disk is not None:
                sizes["disk_bytes"] = 64 * MIB
            names = ("memory_bytes", "disk_bytes", "max_entry_bytes")
            sizes.update({name: options.pop(name) for name in names if name in options})
            settings = {"dtype": "float32", "model": "demo", **options}
            folder = checkpoint or demo_checkpoint("glm53")
            cache = CacheConfig(disk_path=disk, **sizes)
            return opened.enter_context(Encoder(folder, device="cpu", cache=cache, **settings))

        yield open_encoder
