"""transformers: the vision towers of Muse Spark and Muse Glimmer, and their image processor.

SGLang serves Muse Spark with Pillow's resampling instead. Without SGLang, `target` and `pillow_pixels` state what it
does in terms of transformers and Pillow.
"""

from __future__ import annotations

import io
import itertools
import json
import math
from functools import lru_cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch
from safetensors.torch import load_file

BACKENDS = {"muse_vision": ("pillow-12.1", "torchvision"), "muse_glimmer": ("torchvision", "pillow-12.1")}


def versions() -> dict[str, str]:
    return {name: version(name) for name in ("torch", "torchvision", "transformers", "pillow")}


def config_of(checkpoint: Path) -> dict[str, Any]:
    return json.loads((checkpoint / "config.json").read_text("utf-8"))


@lru_cache(maxsize=4)
def processor(checkpoint: Path) -> Any:
    from transformers import MuseGlimmerImageProcessor

    values = json.loads((checkpoint / "processor_config.json").read_text("utf-8"))["image_processor"]
    return MuseGlimmerImageProcessor(**values)


def opened(data: bytes) -> PIL.Image.Image:
    """As serving engines decode: alpha dropped, EXIF orientation ignored."""
    return PIL.Image.fromarray(np.array(PIL.Image.open(io.BytesIO(data)).convert("RGB")))


def target(checkpoint: Path, width: int, height: int, backend: str) -> tuple[int, int]:
    """(height, width) in pixels, by transformers' function; SGLang's is another below one token."""
    from transformers.models.muse_glimmer.image_processing_muse_glimmer import smart_resize

    settings = processor(checkpoint)
    unit = settings.patch_size * settings.merge_size
    if backend == "torchvision" or width * height >= unit * unit:
        return smart_resize(height, width, unit, settings.max_image_tokens)
    # One token: of the grids around a box of its area and of the image's form, the one whose form is nearest.
    rows = math.sqrt(1 / ((width / unit) / (height / unit)))
    columns = rows * ((width / unit) / (height / unit))
    around = set(
        itertools.product((math.floor(rows), math.ceil(rows)), (math.floor(columns), math.ceil(columns)))
    )
    fits = [grid for grid in around if min(grid) > 0 and grid[0] * grid[1] <= settings.max_image_tokens]
    rows, columns = min(fits, key=lambda grid: abs(grid[0] / grid[1] - height / width))
    return rows * unit, columns * unit


def sglang_target(width: int, height: int) -> tuple[int, int]:
    """(height, width) in pixels, by SGLang's own function and constants."""
    from sglang.srt.multimodal.processors.muse_spark_omni import PreprocessConfig, find_resize_target

    config = PreprocessConfig()
    limits = config.min_image_tokens, config.max_image_tokens
    return find_resize_target(height, width, config.token_patch_size, *limits)[:2]


def sglang_pixels(checkpoint: Path, data: bytes) -> tuple[torch.Tensor, torch.Tensor]:
    """(float32 patches, int64 grids) by SGLang's own resize and normalisation."""
    from sglang.srt.multimodal.processors.muse_spark_omni import PreprocessConfig, preprocess_image

    settings = processor(checkpoint)
    values, _ = preprocess_image(opened(data), PreprocessConfig())
    patches, rows, columns = settings.patchify(
        values[None], settings.patch_size, settings.temporal_patch_size
    )
    return patches[0].contiguous(), torch.tensor([[1, rows, columns]])


def pillow_pixels(checkpoint: Path, data: bytes) -> tuple[torch.Tensor, torch.Tensor]:
    """(float32 patches, int64 grids) by Pillow's Lanczos, one pass at a time and columns first."""
    settings, image = processor(checkpoint), opened(data)
    height, width = target(checkpoint, *image.size, "pillow-12.1")
    image = image.resize((width, image.height), PIL.Image.Resampling.LANCZOS)
    image = image.resize((width, height), PIL.Image.Resampling.LANCZOS)
    values = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255.0
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (settings.image_mean, settings.image_std))
    patches, rows, columns = settings.patchify(
        ((values - mean) / std)[None], settings.patch_size, settings.temporal_patch_size
    )
    return patches[0].contiguous(), torch.tensor([[1, rows, columns]])


def preprocess(checkpoint: Path, data: bytes, backend: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(float32 patches, int64 grids) of one encoded image."""
    if backend != "torchvision":
        return pillow_pixels(checkpoint, data)
    batch = processor(checkpoint)(images=[opened(data)], return_tensors="pt")
    return batch["pixel_values"].contiguous(), batch["image_grid_thw"].to(torch.int64)


class Tower(torch.nn.Module):
    """Vision tower, adapter, projection and the language model's norm of one checkpoint."""

    def __init__(self, checkpoint: Path) -> None:
        super().__init__()
        import transformers

        values = config_of(checkpoint)
        values.pop("architectures")
        kind = values["model_type"]
        name = "MuseSpark" if kind == "muse_spark" else "MuseGlimmer"
        home = import_module(f"transformers.models.{kind}.modeling_{kind}")
        self.config = getattr(transformers, f"{name}Config")(**values)
        self.config.vision_config._attn_implementation = "sdpa"
        text = self.config.text_config
        self.vision_tower = getattr(home, f"{name}VisionModel")(self.config.vision_config)
        self.vision_adapter = getattr(home, f"{name}VisionAdapter")(self.config)
        self.vision_projection = torch.nn.Linear(
            self.config.projector_hidden_size, text.hidden_size, bias=False
        )
        self.norm = getattr(home, f"{name}RMSNorm")(eps=text.rms_norm_eps, with_scale=False)

    def forward(self, pixels: torch.Tensor, grids: torch.Tensor) -> torch.Tensor:
        hidden = self.vision_tower(pixel_values=pixels, grid_thw=grids).last_hidden_state
        return self.norm(self.vision_projection(self.vision_adapter(hidden)))


@lru_cache(maxsize=4)
def tower(checkpoint: Path, dtype: str) -> Tower:
    """The tower with the checkpoint's weights in `dtype`."""
    model = Tower(checkpoint).eval()
    tensors = load_file(checkpoint / "model.safetensors")
    model.load_state_dict(
        {name.removeprefix("model."): value for name, value in tensors.items()}, strict=True
    )
    # Parameters alone: rotary frequencies stay float32, as from_pretrained leaves them.
    for parameter in model.parameters():
        parameter.data = parameter.data.to(getattr(torch, dtype))
    return model


def forward(checkpoint: Path, pixels: torch.Tensor, grids: torch.Tensor, dtype: str) -> torch.Tensor:
    """Embeddings of prepared patches."""
    with torch.inference_mode():
        return tower(checkpoint, dtype)(pixels.to(getattr(torch, dtype)), grids)


def run(
    family: str, checkpoint: Path, data: bytes, dtype: str = "float32", *, backend: str | None = None
) -> dict[str, torch.Tensor]:
    """Pixel values, grids and embeddings of one encoded image."""
    pixels, grids = preprocess(checkpoint, data, backend or BACKENDS[family][0])
    embeddings = forward(checkpoint, pixels, grids, dtype)
    return {"pixel_values": pixels, "grid_thws": grids, "embeddings": embeddings}
