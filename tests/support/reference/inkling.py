"""transformers: Inkling's image processor and encoder; SGLang: the pixels that its server gives the encoder.

Without SGLang, `pillow_pixels` states what its pixels are in terms of Pillow alone.
"""

from __future__ import annotations

import io
import json
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch

BACKENDS = ("pillow-12.1", "torchvision")
PATCH = 40


def versions() -> dict[str, str]:
    return {name: version(name) for name in ("torch", "torchvision", "transformers", "pillow")}


def settings(checkpoint: Path) -> dict[str, Any]:
    """The image processor's object."""
    return json.loads((checkpoint / "processor_config.json").read_text("utf-8"))["image_processor"]


def opened(data: bytes) -> PIL.Image.Image:
    """As serving engines decode: alpha dropped, EXIF orientation ignored."""
    return PIL.Image.fromarray(np.array(PIL.Image.open(io.BytesIO(data)).convert("RGB")))


def scaled(width: int, height: int, factor: float | None, cap: int | None) -> tuple[int, int]:
    """(width, height) after the scaling, as transformers' processor computes it."""
    if factor is None:
        return width, height
    edge = max(width, height)
    target = edge * factor if cap is None else min(edge * factor, max(cap, edge))
    ratio = target / edge
    return tuple(max(1, int(np.floor(side * ratio + 0.5))) for side in (width, height))


def grid(width: int, height: int) -> tuple[int, int]:
    """Rows and columns of patches of an image of this size."""
    return -(-height // PATCH), width // PATCH + 1


def pillow_pixels(data: bytes, factor: float | None, cap: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """(bfloat16 patches, int64 grids) by Pillow's Lanczos, one pass at a time and columns first."""
    image = opened(data)
    width, height = scaled(*image.size, factor, cap)
    image = image.resize((width, image.height), PIL.Image.Resampling.LANCZOS)
    image = image.resize((width, height), PIL.Image.Resampling.LANCZOS)
    rows, columns = grid(width, height)
    values = np.full((rows * PATCH, columns * PATCH, 3), -1, np.float32)
    values[:height, :width] = np.asarray(image)
    mean = np.array([0.48145466, 0.4578275, 0.40821073], np.float32)
    std = np.array([0.26862954, 0.26130258, 0.27577711], np.float32)
    inside = (values * np.float32(1 / 255) - mean) / std
    padding = (np.float32(-1 / 255) - mean) / std
    values = np.where(values < 0, padding, inside)
    blocks = (
        values.reshape(rows, PATCH, columns, PATCH, 3).transpose(0, 2, 1, 3, 4).reshape(rows * columns, -1)
    )
    patches = torch.from_numpy(np.ascontiguousarray(blocks)).bfloat16()
    return torch.cat([patches, patches], 1), torch.tensor([[1, rows, columns]])


def sglang_pixels(data: bytes, factor: float | None, cap: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The same by SGLang's Rust extension on pixels that Pillow decoded, as its server does."""
    from sglang.srt.rust_extensions import load_rust_extension

    native = load_rust_extension("sglang.srt.rust_extensions._multimodal").inkling
    height, width, bits, _ = native.rescale_patchify_hash(np.array(opened(data)), data, PATCH, factor, cap)
    rows, columns = grid(width, height)
    patches = torch.from_numpy(bits).view(torch.bfloat16).reshape(rows * columns, -1)
    return torch.cat([patches, patches], 1), torch.tensor([[1, rows, columns]])


def preprocess(
    checkpoint: Path, data: bytes, backend: str = "pillow-12.1"
) -> tuple[torch.Tensor, torch.Tensor]:
    """(patches, int64 grids): bfloat16 by SGLang's arithmetic, float32 by transformers'."""
    values = settings(checkpoint)
    factor, cap = values["rescale_image_frac"], values["rescale_image_max_upscaled_long_edge"]
    if backend == "pillow-12.1":
        return pillow_pixels(data, factor, cap if factor is not None and factor > 1 else None)
    from transformers import InklingImageProcessor

    image = opened(data)
    batch = InklingImageProcessor(**values)(images=[image], return_tensors="pt")
    rows, columns = grid(*scaled(*image.size, factor, cap))
    return batch["pixel_values"].flatten(1).contiguous(), torch.tensor([[1, rows, columns]])


@lru_cache(maxsize=2)
def tower(checkpoint: Path, dtype: str) -> Any:
    """The image encoder through `from_pretrained`, its language model shrunk to one layer that is never run."""
    from transformers import InklingConfig, InklingForConditionalGeneration

    config = json.loads((checkpoint / "config.json").read_text("utf-8"))
    config.pop("architectures")
    vision, width = config["vision_config"], config["text_config"]["hidden_size"]
    config["text_config"] = {
        "hidden_size": width,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "swa_num_attention_heads": 1,
        "swa_num_key_value_heads": 1,
        "swa_head_dim": 8,
        "intermediate_size": 8,
        "moe_intermediate_size": 8,
        "n_routed_experts": 2,
        "num_experts_per_tok": 1,
        "n_shared_experts": 1,
        "mlp_layer_types": ["dense"],
        "vocab_size": 32,
    }
    config["vision_config"] = {
        "patch_size": vision["patch_size"],
        "temporal_patch_size": vision["temporal_patch_size"],
        "num_channels": vision["n_channels"],
        "n_layers": vision["n_layers"],
    }
    config["audio_config"] = {"n_mel_bins": 2, "mel_vocab_size": 2}
    model, loaded = InklingForConditionalGeneration.from_pretrained(
        checkpoint, config=InklingConfig(**config), dtype=getattr(torch, dtype), output_loading_info=True
    )
    missing = [name for name in loaded["missing_keys"] if "vision_tower" in name]
    assert not missing and not loaded["unexpected_keys"], (missing, loaded["unexpected_keys"])
    return model.model.vision_tower.eval()


def forward(checkpoint: Path, pixels: torch.Tensor, grids: torch.Tensor, dtype: str) -> torch.Tensor:
    """Embeddings of prepared patches."""
    del grids
    with torch.inference_mode():
        patches = pixels.to(getattr(torch, dtype)).reshape(-1, 2, PATCH, PATCH, 3)
        return tower(checkpoint, dtype)(patches).pooler_output.flatten(0, 1)


def run(
    family: str, checkpoint: Path, data: bytes, dtype: str = "float32", *, backend: str = "pillow-12.1"
) -> dict[str, torch.Tensor]:
    """Pixel values, grids and embeddings of one encoded image."""
    assert family == "inkling"
    pixels, grids = preprocess(checkpoint, data, backend)
    embeddings = forward(checkpoint, pixels, grids, dtype)
    return {"pixel_values": pixels, "grid_thws": grids, "embeddings": embeddings}
