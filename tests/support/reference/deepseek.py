"""SGLang's DeepSeek-V4.1-Flash: its own pixels, tower, aligner and span, imported and run on the CPU.

Without SGLang, `pillow_pixels` still states what its pixels are in terms of Pillow alone.
"""

from __future__ import annotations

import io
import json
import os
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import PIL.Image
import torch
from safetensors.torch import load_file

# SGLang's Rust function resizes columns first, as Pillow before 12.2; its Pillow path as the installed Pillow.
BACKENDS = ("pillow-12.1", "pillow")
VECTORS = ("image_start", "image_end", "image_newline")


class Upstream(NamedTuple):
    """The modules of SGLang that are run."""

    vit: ModuleType
    language: ModuleType
    pixels: ModuleType
    normalize: Any
    processor: Any


@lru_cache(maxsize=1)
def upstream() -> Upstream:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # The tower's module first: importing the language model's alone meets a circular import.
    import sglang.srt.models.deepseek_v41_vit as vit  # isort: skip
    import sglang.srt.models.deepseek_v4 as language  # isort: skip
    import sglang.srt.multimodal.deepseek_v41_image_processing as pixels
    from sglang.srt.configs.deepseek_v41 import normalize_deepseek_v41_config
    from sglang.srt.multimodal.processors.deepseek_v41 import DeepseekV41ImageProcessor
    from sglang.srt.runtime_context import SpawnRanks, get_parallel, publish, reset_context
    from sglang.srt.server_args import ServerArgs

    # One process on the CPU: linear layers then need no distributed backend.
    reset_context()
    arguments = ServerArgs(model_path="none", device="cpu", tp_size=1, mm_attention_backend="sdpa")
    publish(arguments, role="test", ranks=SpawnRanks(world_rank=0))
    get_parallel().override_permanently(tp_group=None)
    return Upstream(vit, language, pixels, normalize_deepseek_v41_config, DeepseekV41ImageProcessor)


def versions() -> dict[str, str]:
    return {name: version(name) for name in ("torch", "sglang", "pillow")}


def settings(checkpoint: Path) -> SimpleNamespace:
    """config.json in SGLang's flat form."""
    return SimpleNamespace(
        **upstream().normalize(json.loads((checkpoint / "config.json").read_text("utf-8")))
    )


def plan(arguments: SimpleNamespace, width: int, height: int) -> tuple[tuple[int, int], int]:
    """((rows, columns) of patches, tokens)."""
    rows, columns, to_height, to_width = upstream().pixels.plan_image_grid(width, height, arguments)
    patch = arguments.vision_patch_size
    return (to_height // patch, to_width // patch), upstream().pixels.num_image_tokens(rows, columns)


def preprocess(
    checkpoint: Path, data: bytes, backend: str = "pillow-12.1"
) -> tuple[torch.Tensor, torch.Tensor]:
    """(bfloat16 patches [patches, columns], int64 grids) of one encoded image."""
    from sglang.srt.managers.schedule_batch import Modality

    parts, arguments = upstream(), settings(checkpoint)
    image = parts.processor._load_single_item(data, Modality.IMAGE)
    if backend == "pillow":
        patches, height, width, _, _ = parts.pixels.patchify_image(image, arguments)
    else:
        from sglang.srt.rust_extensions import load_rust_extension

        native = load_rust_extension("sglang.srt.rust_extensions._multimodal")
        patches, height, width, _, _ = parts.pixels.patchify_image_rust(
            image, arguments, resize_patchify=native.dsv41.resize_patchify
        )
    return patches.flatten(1), torch.tensor([[1, height, width]])


def pillow_pixels(data: bytes, canvas: tuple[int, int, int, int, int, int], patch: int) -> torch.Tensor:
    """bfloat16 patches of an image on a canvas (height, width, content height, content width, top, left)."""
    height, width, content_height, content_width, top, left = canvas
    image = PIL.Image.open(io.BytesIO(data)).convert("RGB")
    # One pass at a time, columns first: the order no longer is the installed Pillow's choice.
    image = image.resize((content_width, image.height), PIL.Image.Resampling.BICUBIC)
    image = image.resize((content_width, content_height), PIL.Image.Resampling.BICUBIC)
    full = PIL.Image.new("RGB", (width, height), (127, 127, 127))
    full.paste(image, (left, top))
    values = torch.from_numpy(np.asarray(full, np.float32)) / 255
    values = ((values - 0.5) / 0.5).to(torch.bfloat16)
    blocks = values.reshape(height // patch, patch, width // patch, patch, 3).permute(0, 2, 4, 1, 3)
    return blocks.reshape(-1, 3 * patch * patch)


@lru_cache(maxsize=4)
def tower(checkpoint: Path, dtype: str) -> torch.nn.Module:
    """Tower, aligner and vectors with the checkpoint's weights in `dtype`; norm weights stay float32."""
    parts, arguments = upstream(), settings(checkpoint)
    arguments.dim = arguments.hidden_size
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        model = torch.nn.Module()
        model.vision, model.aligner = parts.vit.ViT(arguments), parts.vit.Aligner(arguments)
        for name in VECTORS:
            model.register_parameter(name, torch.nn.Parameter(torch.empty(arguments.hidden_size)))
    finally:
        torch.set_default_dtype(before)
    parameters = dict(model.named_parameters())
    rename = parts.language.DeepseekV4ForCausalLM.remap_weight_name_to_dpsk_hf_format
    with torch.no_grad():
        for name, tensor in load_file(checkpoint / "model.safetensors").items():
            parameters.pop(rename(name)).copy_(tensor)
    assert not parameters, sorted(parameters)
    model.config = arguments
    return model.eval()


def forward(checkpoint: Path, patches: torch.Tensor, grids: torch.Tensor, dtype: str) -> torch.Tensor:
    """The whole span of one image, through SGLang's own `get_image_feature`."""
    _, height, width = grids[0].tolist()
    side = settings(checkpoint).vision_patch_size
    item = SimpleNamespace(
        n_vit_h=height,
        n_vit_w=width,
        feature=patches.reshape(-1, 3, side, side),
        model_specific_data={},
        reconstruct=lambda device_index: None,
    )
    with torch.inference_mode():
        model = tower(checkpoint, dtype)
        (span,) = upstream().language.DeepseekV4ForCausalLM.get_image_feature(model, [item])
    return span


def run(
    family: str, checkpoint: Path, data: bytes, dtype: str = "float32", *, backend: str = "pillow-12.1"
) -> dict[str, torch.Tensor]:
    """Pixel values, grids and embeddings of one encoded image."""
    assert family == "deepseek41"
    patches, grids = preprocess(checkpoint, data, backend)
    embeddings = forward(checkpoint, patches, grids, dtype)
    return {"pixel_values": patches, "grid_thws": grids, "embeddings": embeddings}
