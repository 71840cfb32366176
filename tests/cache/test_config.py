"""Settings that cannot work are refused in a sentence, before anything is opened."""

from __future__ import annotations

import dataclasses
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from mm_libtorch_encoder import CacheConfig

MIB = 2**20


def test_the_defaults_are_memory_alone() -> None:
    config = CacheConfig()
    assert (config.memory_bytes, config.disk_path, config.disk_bytes) == (1024 * MIB, None, 0)
    assert config.max_entry_bytes == 256 * MIB


def test_it_is_frozen_compares_and_pickles() -> None:
    config = CacheConfig(memory_bytes=300 * MIB, disk_path="cache", disk_bytes=2048 * MIB)
    assert pickle.loads(pickle.dumps(config)) == config
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.memory_bytes = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"memory_bytes": 0}, "memory_bytes is 0"),
        ({"memory_bytes": -1}, "must not be negative"),
        ({"memory_bytes": 2**61, "max_entry_bytes": MIB}, "at most"),
        ({"memory_bytes": 2**80, "max_entry_bytes": MIB}, "at most"),
        ({"memory_bytes": 1024, "max_entry_bytes": 1}, "an entry takes 1024 bytes beside its tensors"),
        ({"max_entry_bytes": 0}, "max_entry_bytes is 0"),
        ({"memory_bytes": 100 * MIB}, "exceeds memory_bytes"),
        ({"disk_bytes": MIB}, "there is no disk_path"),
        ({"disk_path": "cache"}, "disk_bytes .0. is too small"),
        ({"disk_path": "cache", "disk_bytes": 512 * MIB}, "must hold 2 entries"),
        ({"disk_path": "", "disk_bytes": 2048 * MIB}, "disk_path is empty"),
    ],
)
def test_impossible_settings(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        CacheConfig(**settings)


@pytest.mark.parametrize(
    "settings", [{"memory_bytes": 1.5e9}, {"memory_bytes": True}, {"disk_bytes": "1"}, {"disk_path": 3}]
)
def test_wrong_types(settings: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        CacheConfig(**settings)


def test_making_a_config_touches_no_disk(tmp_path: Path) -> None:
    CacheConfig(disk_path=tmp_path / "new", disk_bytes=2048 * MIB)
    assert os.listdir(tmp_path) == []
