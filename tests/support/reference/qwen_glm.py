"""transformers: the Qwen-VL line and GLM-5.3-Flash, chosen by the checkpoint's own config.json."""

from __future__ import annotations

import io
import json
from functools import lru_cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import PIL.Image
import PIL.ImageOps
import torch
from safetensors import safe_open

BACKENDS = ("torchvision", "pillow")
PREFIXES = ("model.visual.", "visual.")

# model_type: the module below transformers.models, and the class of the tower in it.
TOWERS = {
    "glm5_next": ("glm5_next", "Glm5NextVisionModel"),
    "qwen2_vl": ("qwen2_vl", "Qwen2VisionTransformerPretrainedModel"),
    "qwen2_5_vl": ("qwen2_5_vl", "Qwen2_5_VisionTransformerPretrainedModel"),
    "qwen3_vl": ("qwen3_vl", "Qwen3VLVisionModel"),
    "qwen3_vl_moe": ("qwen3_vl_moe", "Qwen3VLMoeVisionModel"),
    "qwen3_5": ("qwen3_5", "Qwen3_5VisionModel"),
    "qwen3_5_moe": ("qwen3_5_moe", "Qwen3_5MoeVisionModel"),
}


def versions() -> dict[str, str]:
    return {name: version(name) for name in ("torch", "torchvision", "transformers", "pillow")}


def config_of(checkpoint: Path) -> dict[str, Any]:
    return json.loads((checkpoint / "config.json").read_text("utf-8"))


def processor(checkpoint: Path, backend: str = "torchvision") -> Any:
    """transformers' image processor of the checkpoint."""
    kind = config_of(checkpoint)["model_type"]
    folder, name = ("glm5_next", "Glm5Next") if kind == "glm5_next" else ("qwen2_vl", "Qwen2VL")
    file, suffix = {"pillow": ("image_processing_pil_", "Pil"), "torchvision": ("image_processing_", "")}[
        backend
    ]
    home = import_module(f"transformers.models.{folder}.{file}{folder}")
    return getattr(home, f"{name}ImageProcessor{suffix}").from_pretrained(str(checkpoint))


def opened(data: bytes) -> PIL.Image.Image:
    """Oriented as EXIF says, transparency kept: the processors composite it themselves."""
    image = PIL.Image.open(io.BytesIO(data))
    image.load()
    return PIL.ImageOps.exif_transpose(image)


def preprocess(
    checkpoint: Path, data: bytes, backend: str = "torchvision"
) -> tuple[torch.Tensor, torch.Tensor]:
    """(float32 pixel values, int64 grids) of one encoded image."""
    batch = processor(checkpoint, backend)(images=[opened(data)], return_tensors="pt")
    return batch["pixel_values"].contiguous(), batch["image_grid_thw"].to(torch.int64)


def bare_tower(config: dict[str, Any], attention: str = "sdpa") -> torch.nn.Module:
    """The tower of a config.json, with whatever weights its constructor gives it."""
    from transformers import AutoConfig

    kind = config["model_type"]
    folder, name = TOWERS[kind]
    settings = AutoConfig.for_model(
        kind, **{key: value for key, value in config.items() if key != "model_type"}
    )
    vision = settings.vision_config
    vision._attn_implementation = attention
    return getattr(import_module(f"transformers.models.{folder}.modeling_{folder}"), name)(vision).eval()


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names, without prefix, and shapes of the tower's tensors. Allocates none."""
    with torch.device("meta"):
        return {name: tuple(parameter.shape) for name, parameter in bare_tower(config).named_parameters()}


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    """The tower's tensors without their prefix."""
    index = checkpoint / "model.safetensors.index.json"
    files = ["model.safetensors"]
    if not (checkpoint / files[0]).is_file():
        places = json.loads(index.read_text("utf-8"))["weight_map"]
        files = sorted({file for name, file in places.items() if name.startswith(PREFIXES)})
    found = {}
    for file in files:
        with safe_open(checkpoint / file, framework="pt") as handle:
            for name in handle.keys():  # noqa: SIM118  (not a mapping)
                prefix = next((prefix for prefix in PREFIXES if name.startswith(prefix)), None)
                if prefix is not None:
                    found[name[len(prefix) :]] = handle.get_tensor(name)
    return found


@lru_cache(maxsize=4)
def tower(checkpoint: Path, dtype: str, attention: str = "sdpa") -> torch.nn.Module:
    """The tower with the checkpoint's weights in `dtype`."""
    model = bare_tower(config_of(checkpoint), attention)
    model.load_state_dict(weights(checkpoint), strict=True)
    # Parameters alone: rotary frequencies stay float32, as from_pretrained leaves them.
    for parameter in model.parameters():
        parameter.data = parameter.data.to(getattr(torch, dtype))
    return model


def forward(
    checkpoint: Path, pixels: torch.Tensor, grids: torch.Tensor, dtype: str
) -> dict[str, torch.Tensor]:
    """The tower's outputs by name for prepared pixel values."""
    with torch.inference_mode():
        out = tower(checkpoint, dtype)(pixels.to(getattr(torch, dtype)), grid_thw=grids, return_dict=True)
    outputs = {"embeddings": out.pooler_output}
    levels = getattr(out, "deepstack_features", None)
    if levels:
        outputs["deepstack"] = torch.stack(list(levels))
    return outputs


def run(
    family: str, checkpoint: Path, data: bytes, dtype: str = "float32", *, backend: str = "torchvision"
) -> dict[str, torch.Tensor]:
    """Pixel values, grids and the tower's outputs of one encoded image."""
    del family  # config.json says it
    pixels, grids = preprocess(checkpoint, data, backend)
    return {"pixel_values": pixels, "grid_thws": grids, **forward(checkpoint, pixels, grids, dtype)}
