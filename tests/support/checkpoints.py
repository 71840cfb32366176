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

_QWEN3 = {"hidden_size": 1152, "num_heads": 16, "intermediate_size": 4304, "num_position_embeddings": 2304}
_MUSE = {
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_attention_heads": 16,
    "layer_types": ["window_attention"] * 3 + ["full_attention"],
}
_KIMI = {
    "vt_num_attention_heads": 12,
    "text_hidden_size": 7168,
    "init_pos_emb_height": 64,
    "init_pos_emb_width": 64,
}

# By family and section of config.json ("" is the whole), the widths of released models. A few blocks say as much about
# a tower as all of them.
PUBLISHED: dict[str, dict[str, dict[str, Any]]] = {
    "deepseek41": {
        "text_config": {"hidden_size": 5120},
        "vision_config": {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 2816},
    },
    "glm53": {
        "vision_config": {
            "hidden_size": 1024,
            "num_heads": 16,
            "intermediate_size": 4096,
            "out_hidden_size": 4096,
            "projection_intermediate_size": 10240,
        }
    },
    "inkling": {"text_config": {"hidden_size": 6144}, "vision_config": {"decoder_dmodel": 6144}},
    "kimi": {
        "vision_config": _KIMI
        | {
            "vt_hidden_size": 1024,
            "mm_hidden_size": 1024,
            "qkv_hidden_size": 1536,
            "vt_intermediate_size": 4096,
        }
    },
    "kimi_k25": {
        "vision_config": _KIMI
        | {
            "vt_hidden_size": 1152,
            "mm_hidden_size": 1152,
            "vt_num_attention_heads": 16,
            "vt_intermediate_size": 4304,
        }
    },
    "muse_audio": {
        "text_config": {"hidden_size": 8192},
        "audio_config": {"hidden_sizes": [256, 512, 1024, 2048], "out_hidden_size": 8192},
    },
    "muse_glimmer": {
        "": {"out_hidden_size": 6144, "projector_hidden_size": 4096},
        "text_config": {"hidden_size": 6656},
        "vision_config": _MUSE,
    },
    "muse_vision": {
        "": {"out_hidden_size": 6144, "projector_hidden_size": 4096},
        "text_config": {"hidden_size": 8192},
        "vision_config": _MUSE,
        "audio_config": {"out_hidden_size": 8192},
    },
    "nemotron35": {
        "": {"projector_hidden_size": 20_480, "vit_hidden_size": 1280},
        "llm_config": {"hidden_size": 4096},
        "vision_config": {"hidden_size": 1280, "num_attention_heads": 16, "max_img_size": 2048},
    },
    "qwen2_vl": {"vision_config": {"embed_dim": 1280, "num_heads": 16, "hidden_size": 3584}},
    "qwen2_5_vl": {
        "vision_config": {
            "hidden_size": 1280,
            "num_heads": 16,
            "intermediate_size": 3420,
            "out_hidden_size": 3584,
            "fullatt_block_indexes": [1],
        }
    },
    "qwen3_vl": {
        "vision_config": _QWEN3 | {"out_hidden_size": 4096, "deepstack_visual_indexes": [0, 1]},
    },
    "qwen35": {"vision_config": _QWEN3 | {"out_hidden_size": 4096}},
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


def published_width(family: str, folder: Path, seed: int = 0, depth: int = 4, **values: Any) -> Path:
    """A seeded bfloat16 checkpoint as wide as the released one, of `depth` blocks where their number is free.

    Further `values` of vision_config make it another.
    """
    with tempfile.TemporaryDirectory() as scratch:
        demo = Path(scratch) / "demo"
        _native.make_checkpoint(family, demo)
        config = json.loads((demo / "config.json").read_text("utf-8"))
    for section, published in PUBLISHED[family].items():
        (config[section] if section else config).update(published)
    vision = config["vision_config"]
    for key in {"depth", "num_hidden_layers", "vt_num_hidden_layers"} & vision.keys():
        vision[key] = depth
    if "layer_types" in vision:
        vision["layer_types"] = (vision["layer_types"] * depth)[-depth:]
    vision.update(values)
    _native.make_checkpoint(family, folder, seed, files={"config.json": json.dumps(config)})
    return folder
