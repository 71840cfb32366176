"""The same tower in transformers, on the same device, for the families whose class takes a patch matrix and grids."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from .context import NotRun

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
PREFIXES = ("model.visual.", "visual.")


class TransformersTower:
    """transformers' tower with the checkpoint's weights."""

    def __init__(self, checkpoint: Path, device: str, dtype: torch.dtype, attention: str = "sdpa") -> None:
        try:
            transformers = import_module("transformers")
        except ImportError:
            raise NotRun("transformers is not installed") from None
        config = json.loads((checkpoint / "config.json").read_text("utf-8"))
        kind = config.pop("model_type", None)
        if kind not in TOWERS:
            raise NotRun(f"transformers' tower of model_type {kind!r} is not called here")
        folder, name = TOWERS[kind]
        try:
            home = import_module(f"transformers.models.{folder}.modeling_{folder}")
            vision = transformers.AutoConfig.for_model(kind, **config).vision_config
        except (ImportError, ValueError, KeyError):
            raise NotRun(f"transformers {transformers.__version__} has no {kind}") from None
        vision._attn_implementation = attention
        self._device = device
        self._dtype = dtype
        self._checkpoint = checkpoint
        self._kind = folder
        self._model = getattr(home, name)(vision).eval()
        self._model.load_state_dict(self._weights(), strict=True)
        # Parameters alone change dtype: rotary frequencies stay float32, as from_pretrained leaves them.
        for parameter in self._model.parameters():
            parameter.data = parameter.data.to(dtype)
        self._model.to(device)
        self._processor: Any = None

    def _weights(self) -> dict[str, torch.Tensor]:
        from safetensors import safe_open

        index = self._checkpoint / "model.safetensors.index.json"
        files = ["model.safetensors"]
        if not (self._checkpoint / files[0]).is_file():
            places = json.loads(index.read_text("utf-8"))["weight_map"]
            files = sorted({file for name, file in places.items() if name.startswith(PREFIXES)})
        found = {}
        for file in files:
            with safe_open(self._checkpoint / file, framework="pt") as handle:
                for name in handle.keys():  # noqa: SIM118  (not a mapping)
                    prefix = next((prefix for prefix in PREFIXES if name.startswith(prefix)), None)
                    if prefix is not None:
                        found[name[len(prefix) :]] = handle.get_tensor(name)
        return found

    def pixels(self, source: bytes) -> tuple[torch.Tensor, torch.Tensor]:
        """Pixel values on the host in the tower's dtype, and grids, of an image by transformers' own processor."""
        import io

        import PIL.Image

        if self._processor is None:
            glm = self._kind == "glm5_next"
            folder, name = ("glm5_next", "Glm5Next") if glm else ("qwen2_vl", "Qwen2VL")
            home = import_module(f"transformers.models.{folder}.image_processing_{folder}")
            self._processor = getattr(home, f"{name}ImageProcessor").from_pretrained(str(self._checkpoint))
        image = PIL.Image.open(io.BytesIO(source)).convert("RGB")
        batch = self._processor(images=[image], return_tensors="pt")
        return batch["pixel_values"].to(self._dtype), batch["image_grid_thw"]

    def forward(self, pixels: torch.Tensor, grids: torch.Tensor) -> torch.Tensor:
        """The embeddings, on the device."""
        with torch.inference_mode():
            place = pixels.to(self._device)
            out = self._model(place, grid_thw=grids.to(self._device), return_dict=True)
        embeddings: torch.Tensor = out.pooler_output
        return embeddings

    def run(self, source: bytes) -> torch.Tensor:
        """Bytes to embeddings."""
        return self.forward(*self.pixels(source))
