"""Checkpoints for tests: copies to change, and towers of published width."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from mm_libtorch_encoder import _native

WEIGHTS = "model.safetensors"

# vision_config of the widths of released models; a few blocks say as much about a tower as all of them.
PUBLISHED: dict[str, dict[str, Any]] = {
    "qwen2_vl": {"depth": 4, "embed_dim": 1280, "num_heads": 16, "hidden_size": 3584},
    "qwen2_5_vl": {
        "depth": 4,
        "hidden_size": 1280,
        "num_heads": 16,
        "intermediate_size": 3420,
        "out_hidden_size": 3584,
        "fullatt_block_indexes": [1],
    },
    "qwen3_vl": {
        "depth": 4,
        "hidden_size": 1152,
        "num_heads": 16,
        "intermediate_size": 4304,
        "out_hidden_size": 4096,
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [0, 1],
    },
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
    "kimi_k25": {
        "vt_num_hidden_layers": 4,
        "vt_hidden_size": 1152,
        "mm_hidden_size": 1152,
        "vt_num_attention_heads": 16,
        "vt_intermediate_size": 4304,
        "text_hidden_size": 7168,
        "init_pos_emb_height": 64,
        "init_pos_emb_width": 64,
    },
    "kimi": {
        "vt_num_hidden_layers": 4,
        "vt_hidden_size": 1024,
        "mm_hidden_size": 1024,
        "vt_num_attention_heads": 12,
        "qkv_hidden_size": 1536,
        "vt_intermediate_size": 4096,
        "text_hidden_size": 7168,
        "init_pos_emb_height": 64,
        "init_pos_emb_width": 64,
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


def published_width(family: str, folder: Path, seed: int = 0, depth: int | None = None) -> Path:
    """A seeded bfloat16 checkpoint as wide as the released one, of `depth` blocks (None: four)."""
    values = dict(PUBLISHED[family])
    if depth is not None:
        values["depth" if "depth" in values else "vt_num_hidden_layers"] = depth
    with tempfile.TemporaryDirectory() as scratch:
        demo = Path(scratch) / "demo"
        _native.make_checkpoint(family, demo)
        config = json.loads((demo / "config.json").read_text("utf-8"))
    config["vision_config"].update(values)
    _native.make_checkpoint(family, folder, seed, files={"config.json": json.dumps(config)})
    return folder
