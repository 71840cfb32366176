"""What every check works with: the checkpoint, the device, encoders and pictures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..cli import png
from ..encoder import Encoder

# Largest difference between two ways of computing the same embeddings, as a part of the largest embedding. A tower
# of dozens of blocks rounds at every step; a wrong one is off by about the embeddings themselves.
BOUNDS = {torch.float32: 2e-3, torch.bfloat16: 6e-2, torch.float16: 1.5e-2}


class NotRun(Exception):
    """A check cannot run here; the text says why."""


@dataclass
class Context:
    """One qualification."""

    checkpoint: Path
    device: str
    model: str = "qualification"
    dtype: str | None = None
    family: str | None = None

    @property
    def on_cuda(self) -> bool:
        """Is the device a CUDA device?"""
        return self.device.startswith("cuda")

    def need_cuda(self) -> None:
        """NotRun unless the device is a CUDA device."""
        if not self.on_cuda:
            raise NotRun("only for a CUDA device")

    @contextmanager
    def encoder(self, **options: Any) -> Iterator[Encoder]:
        """An encoder of the checkpoint on the device."""
        options = {"dtype": self.dtype, "family": self.family, **options}
        with Encoder(self.checkpoint, self.model, options.pop("device", self.device), **options) as encoder:
            if encoder.modality != "image":
                raise NotRun(f"only for images, and the family {encoder.family} reads {encoder.modality}")
            yield encoder

    def synchronise(self) -> None:
        """Waits for the device, between a measurement and its clock."""
        if self.on_cuda:
            torch.cuda.synchronize(self.device)


@lru_cache(maxsize=64)
def picture(width: int, height: int, seed: int = 0) -> bytes:
    """A PNG of smooth colours with some noise, the same on every machine."""
    generator = np.random.default_rng(seed)
    rows, columns = np.arange(height)[:, None, None], np.arange(width)[None, :, None]
    waves = np.sin(rows * np.array([0.031, 0.017, 0.023]) + columns * np.array([0.019, 0.029, 0.013]) + seed)
    noise = generator.integers(-20, 21, (height, width, 3))
    return png.encode(np.clip(128 + 100 * waves + noise, 0, 255).astype(np.uint8))


def embeddings(encoder: Encoder, *sources: bytes) -> list[torch.Tensor]:
    """The embeddings of each source."""
    return [result.tensor for result in encoder.generate(sources)]


def difference(mine: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference as a part of the largest value; infinity where either is not finite."""
    mine, wanted = mine.detach().cpu().double(), wanted.detach().cpu().double()
    if mine.shape != wanted.shape:
        raise AssertionError(f"shape {tuple(mine.shape)} instead of {tuple(wanted.shape)}")
    if not (mine.isfinite().all() and wanted.isfinite().all()):
        return float("inf")
    return float((mine - wanted).abs().max() / wanted.abs().max().clamp(min=1e-12))


def within(found: float, dtype: torch.dtype, what: str) -> str:
    """A sentence on a difference; AssertionError where it is too large."""
    bound = BOUNDS[dtype]
    if not found <= bound:
        raise AssertionError(f"{what}: differs by {found:.2e} of the largest embedding, bound {bound:.0e}")
    return f"{what}: {found:.2e} of the largest embedding (bound {bound:.0e})"
