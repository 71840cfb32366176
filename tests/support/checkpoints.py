"""Checkpoints for tests: copies to change, and towers of published width."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from mm_libtorch_encoder import _native

WEIGHTS = "model.safetensors"

# The widths of released models; a few blocks say as much about a tower as all of them.
PUBLISHED = {
    "qwen35": {
        "depth": 4,
        "hidden_size": 1152,
        "num_heads": 16,
        "intermediate_size": 4304,
        "out_hidden_size": 4096,
        "num_position_embeddings": 2304,
    },
    "glm53": {
        "depth": 4,
        "hidden_size": 1024,
        "num_heads": 16,
        "intermediate_size": 4096,
        "out_hidden_size": 4096,
        "projection_intermediate_size": 10240,
    },
}


def copied(source: Path, target: Path) -> Path:
    """A copy of the checkpoint `source`, to change."""
    shutil.copytree(source, target)
    return target


def edit(folder: Path, file: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Lets `change` work on the object in a JSON file. NaN is written as Python writes it."""
    path = folder / file
    value = json.loads(path.read_text("utf-8"))
    change(value)
    path.write_text(json.dumps(value, indent=2), "utf-8")


def edit_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Lets `change` work on the tensors by their full names."""
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / WEIGHTS)


def random_weight(name: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """A value of the scale that trained towers have."""
    value = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    norm = "norm" in name or "ln_q" in name
    if name.endswith("pos_embed.weight"):
        return 0.3 * value
    if name.endswith("bias"):
        return (0.05 if norm else 0.03) * value
    return 1 + 0.1 * value if norm else 0.8 / math.sqrt(math.prod(shape[1:])) * value


def published_width(family: str, folder: Path, seed: int = 0, **vision: Any) -> Path:
    """A seeded bfloat16 checkpoint as wide as the released one, with further `vision_config` values."""
    from reference import qwen_glm

    _native.make_checkpoint(family, folder, seed)
    edit(folder, "config.json", lambda config: config["vision_config"].update(PUBLISHED[family], **vision))
    shapes = sorted(qwen_glm.shapes(qwen_glm.config_of(folder)).items())
    tensors = {
        f"model.visual.{name}": random_weight(name, shape, seed * 100_003 + index).bfloat16()
        for index, (name, shape) in enumerate(shapes)
    }
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    return folder
