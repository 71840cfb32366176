"""transformers: Nemotron 3.5 Super VL, its image processor, RADIO tower and projector."""

from __future__ import annotations

import io
import json
import os
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch
from safetensors.torch import load_file

BACKENDS = ("torchvision",)

# Beginnings of names: the release's, and those of ModelOpt's exports.
RENAMED = {
    "vision_model.radio_model.model.patch_generator.embedder.": "vision_model.embeddings.patch_projection.",
    "vision_model.radio_model.model.patch_generator.pos_embed": "vision_model.embeddings.position_embedding",
    "vision_model.radio_model.model.patch_generator.cls_token.token": "vision_model.embeddings.cls_register_token",
    "vision_model.radio_model.model.blocks.": "vision_model.encoder.layer.",
    "mlp1.0.": "vision_projector.mlp1.norm.",
    "mlp1.1.": "vision_projector.mlp1.linear1.",
    "mlp1.3.": "vision_projector.mlp1.linear2.",
}


def versions() -> dict[str, str]:
    return {name: version(name) for name in ("torch", "torchvision", "transformers", "pillow")}


def exported(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The release's tensors under the names of ModelOpt's exports: q, k and v apart, and scales of ones."""
    out = {}
    for name, value in tensors.items():
        for old, new in RENAMED.items():
            if name.startswith(old):
                name = new + name.removeprefix(old)
        name = name.replace(".attn.proj.", ".attention.output.dense.")
        head, found, kind = name.partition(".attn.qkv.")
        if found:
            for part, rows in zip(("query", "key", "value"), value.chunk(3), strict=True):
                out[f"{head}.attention.attention.{part}.{kind}"] = rows
            layer = head.removeprefix("vision_model.encoder.layer.")
            for scale in (1, 2):
                scales = torch.ones(value.shape[0] // 3, dtype=value.dtype)
                out[f"vision_model.encoder.layer.{layer}.layer_scale{scale}.lambda1"] = scales
        else:
            out[name] = value
    return out


def opened(data: bytes) -> PIL.Image.Image:
    """As serving engines decode: alpha dropped, EXIF orientation ignored.

    From the array: a transparent colour that Pillow keeps through the conversion would make transformers blend.
    """
    return PIL.Image.fromarray(np.array(PIL.Image.open(io.BytesIO(data)).convert("RGB")))


@lru_cache(maxsize=4)
def processor(checkpoint: Path) -> Any:
    from transformers import NemotronH_Omni_Reasoning_V3ImageProcessor

    return NemotronH_Omni_Reasoning_V3ImageProcessor.from_pretrained(str(checkpoint))


def preprocess(
    checkpoint: Path, data: bytes, backend: str = "torchvision"
) -> tuple[torch.Tensor, torch.Tensor]:
    """(float32 pixel values, int64 grids) of one encoded image."""
    assert backend in BACKENDS
    batch = processor(checkpoint)(images=[opened(data)], return_tensors="pt")
    grids = torch.nn.functional.pad(batch["image_grid_hw"], (1, 0), value=1)
    return batch["pixel_values"].contiguous(), grids.to(torch.int64)


def grid(settings: dict[str, Any], height: int, width: int) -> tuple[int, int]:
    """Rows and columns of patches of one image alone, by transformers' function and the budget of its processor."""
    from transformers.models.nemotron_h_omni.image_processing_nemotron_h_omni import get_patch_grid_size

    least, most = settings["min_num_patches"], settings["max_num_patches"]
    budget = max(min(max((settings["max_model_len"] - 4) * 4, least), most), least)
    return get_patch_grid_size(height, width, settings["patch_size"], 2, least, budget)


@lru_cache(maxsize=4)
def tower(checkpoint: Path, dtype: str) -> Any:
    """The model through `from_pretrained`, its language model shrunk to one layer that is never run."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import NemotronH_Omni_Reasoning_V3, NemotronH_Omni_Reasoning_V3_Config

    config = json.loads((checkpoint / "config.json").read_text("utf-8"))
    config.pop("architectures")
    text = config["llm_config"]
    config["llm_config"] = {
        "hidden_size": text["hidden_size"],
        "num_nextn_predict_layers": text["num_nextn_predict_layers"],
        "layers_block_type": ["mlp"],
        "intermediate_size": 8,
        "vocab_size": 32,
    }
    model, loaded = NemotronH_Omni_Reasoning_V3.from_pretrained(
        checkpoint,
        config=NemotronH_Omni_Reasoning_V3_Config(**config),
        dtype=getattr(torch, dtype),
        output_loading_info=True,
    )
    unused = (
        "language_model.",
        "vision_model.embeddings.video_patch_projection.",
        "vision_model.summary_idxs",
    )
    missing = [
        name for name in loaded["missing_keys"] if not name.startswith(unused) and "layer_scale" not in name
    ]
    assert not missing and not loaded["unexpected_keys"], (missing, loaded["unexpected_keys"])
    model.vision_model.config.dtype = getattr(torch, dtype)
    return model.eval()


def forward(checkpoint: Path, pixels: torch.Tensor, grids: torch.Tensor, dtype: str) -> torch.Tensor:
    """Embeddings of prepared pixel values."""
    with torch.inference_mode():
        model = tower(checkpoint, dtype)
        out = model.get_image_features(pixels.to(getattr(torch, dtype)), grids[:, 1:])
    return torch.cat(list(out.pooler_output))


def run(
    family: str, checkpoint: Path, data: bytes, dtype: str = "float32", *, backend: str = "torchvision"
) -> dict[str, torch.Tensor]:
    """Pixel values, grids and embeddings of one encoded image."""
    assert family == "nemotron35"
    pixels, grids = preprocess(checkpoint, data, backend)
    embeddings = forward(checkpoint, pixels, grids, dtype)
    return {"pixel_values": pixels, "grid_thws": grids, "embeddings": embeddings}


def tensors(checkpoint: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint of one file."""
    return load_file(checkpoint / "model.safetensors")
