"""Kimi: the published processor's arithmetic on Pillow, transformers' tower of K2.5 and SGLang's tower of K3.

The processors ship inside the checkpoints, as code that no package holds: their steps are written out here on Pillow
and NumPy. transformers' own processor of K2.5 is the backend "torchvision". SGLang's tower class is also run with the
settings of K2.5, as a second reference of that generation.
"""

from __future__ import annotations

import io
import json
import math
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import PIL.Image
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

# Columns first, always, as the Pillow of the checkpoints' time; and the installed Pillow's own order.
BACKENDS = ("pillow-12.1", "pillow")
PREFIXES = ("vision_tower.", "mm_projector.")


def versions() -> dict[str, str]:
    names = ["torch", "transformers", "pillow", "numpy"]
    try:
        return {name: version(name) for name in [*names, "sglang"]}
    except ModuleNotFoundError:
        return {name: version(name) for name in names}


def config_of(checkpoint: Path) -> dict[str, Any]:
    return json.loads((checkpoint / "config.json").read_text("utf-8"))


def media_of(checkpoint: Path) -> dict[str, Any]:
    return json.loads((checkpoint / "preprocessor_config.json").read_text("utf-8"))["media_proc_cfg"]


# Pixels


class Plan(NamedTuple):
    """Sizes in pixels: of the resized image, and of the canvas it stands on at the top left."""

    width: int
    height: int
    canvas_width: int
    canvas_height: int

    def grid(self, patch: int) -> tuple[int, int, int]:
        return 1, self.canvas_height // patch, self.canvas_width // patch


def plan(width: int, height: int, media: dict[str, Any]) -> Plan:
    patch, merge, side = media["patch_size"], media["merge_kernel_size"], media["patch_limit_on_one_side"]
    patches = max(1.0, width // patch) * max(1.0, height // patch)
    scale = min(
        1.0, math.sqrt(media["in_patch_limit"] / patches), side * patch / width, side * patch / height
    )
    to_width = min(max(1, int(width * scale)), side * patch)
    to_height = min(max(1, int(height * scale)), side * patch)
    block = patch * merge
    return Plan(to_width, to_height, -(-to_width // block) * block, -(-to_height // block) * block)


def resized(image: PIL.Image.Image, size: tuple[int, int], backend: str) -> PIL.Image.Image:
    """Bicubic, in the image's own mode."""
    if backend == "pillow" or image.size == size or image.mode in ("1", "P"):
        return image.resize(size, PIL.Image.Resampling.BICUBIC)
    premultiplied = {"LA": "La", "RGBA": "RGBa"}.get(image.mode)
    if premultiplied:
        return resized(image.convert(premultiplied), size, backend).convert(image.mode)
    columns = image.resize((size[0], image.height), PIL.Image.Resampling.BICUBIC)
    return columns.resize(size, PIL.Image.Resampling.BICUBIC)


def flattened(image: PIL.Image.Image, background: dict[str, Any] | None) -> PIL.Image.Image:
    """RGB; transparent images on the background, or without their alpha where there is none."""
    transparent = image.mode != "RGB" and ("A" in image.getbands() or "transparency" in image.info)
    if background is None or not transparent:
        return image.convert("RGB")
    rgba = np.asarray(image.convert("RGBA"))
    height, width = rgba.shape[:2]
    pattern = background.get("pattern", "black")
    if pattern == "chessboard":
        square = background.get("chessboard_square_size", 16)
        odd = (np.arange(height)[:, None] // square + np.arange(width)[None, :] // square) % 2 == 1
        if not background.get("chessboard_square_on_top_left", True):
            odd = ~odd
        white, grey = (
            background.get("chessboard_white_value", 255),
            background.get("chessboard_gray_value", 200),
        )
        board = np.where(odd, grey, white).astype(np.uint8)
    else:
        board = np.full((height, width), {"white": 255, "black": 0, "gray": 128}[pattern], np.uint8)
    alpha = rgba[..., 3:].astype(np.float32) / 255.0
    mixed = alpha * rgba[..., :3] + (1 - alpha) * board[..., None]
    return PIL.Image.fromarray(mixed.astype(np.uint8))


def patches(canvas: NDArray[np.uint8], media: dict[str, Any]) -> torch.Tensor:
    """float32 [patches, 3 * patch * patch] in raster order."""
    values = (canvas / 255.0).astype(np.float32)
    values -= np.array(media["image_mean"])
    values *= 1.0 / np.array(media["image_std"])
    patch = media["patch_size"]
    rows, columns = canvas.shape[0] // patch, canvas.shape[1] // patch
    blocks = values.reshape(rows, patch, columns, patch, 3).transpose(0, 2, 4, 1, 3)
    return torch.from_numpy(np.ascontiguousarray(blocks.reshape(rows * columns, 3 * patch * patch)))


def preprocess(
    checkpoint: Path, data: bytes, backend: str = BACKENDS[0]
) -> tuple[torch.Tensor, torch.Tensor]:
    """(float32 pixel values, int64 grids) of one encoded image."""
    media = media_of(checkpoint)
    if backend == "torchvision":
        return torchvision_pixels(media, data)
    image = PIL.Image.open(io.BytesIO(data))
    background = media.get("transparent_bg_config")
    late = media.get("transparent_bg_fill_stage") == "after_resize"
    if not late:
        image = flattened(image, background)
    sizes = plan(*image.size, media)
    image = resized(image, (sizes.width, sizes.height), backend)
    if late:
        image = flattened(image, background)
    canvas = np.zeros((sizes.canvas_height, sizes.canvas_width, 3), np.uint8)
    canvas[: sizes.height, : sizes.width] = np.asarray(image)
    return patches(canvas, media), torch.tensor([sizes.grid(media["patch_size"])])


def torchvision_pixels(media: dict[str, Any], data: bytes) -> tuple[torch.Tensor, torch.Tensor]:
    from transformers.models.kimi_k25.image_processing_kimi_k25 import Kimi_K25ImageProcessor

    side = media["patch_limit_on_one_side"]
    processor = Kimi_K25ImageProcessor(
        size={"max_height": side, "max_width": side},
        max_patches=media["in_patch_limit"],
        patch_size=media["patch_size"],
        merge_size=media["merge_kernel_size"],
        image_mean=media["image_mean"],
        image_std=media["image_std"],
    )
    out = processor(PIL.Image.open(io.BytesIO(data)).convert("RGB"), return_tensors="pt")
    return out["pixel_values"].flatten(1), out["image_grid_thw"]


# Towers


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    tensors = load_file(checkpoint / "model.safetensors")
    return {name: tensor for name, tensor in tensors.items() if name.startswith(PREFIXES)}


def part(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): each for name, each in tensors.items() if name.startswith(prefix)}


@lru_cache(maxsize=2)
def transformers_model(checkpoint: Path, dtype: str) -> torch.nn.Module:
    """K2.5 with a text model of nearly nothing, its tensors loaded by transformers' own conversion of the names."""
    from transformers import AutoConfig, Kimi_K25Config
    from transformers.models.kimi_k25.modeling_kimi_k25 import Kimi_K25Model
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    vision = config_of(checkpoint)["vision_config"]
    text = AutoConfig.for_model(
        "deepseek_v3", vocab_size=32, hidden_size=vision["text_hidden_size"], intermediate_size=16,
        moe_intermediate_size=16, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1,
        n_routed_experts=2, n_group=1, topk_group=1, num_experts_per_tok=1, q_lora_rank=8, kv_lora_rank=8,
        qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, first_k_dense_replace=1,
    )  # fmt: skip
    config = Kimi_K25Config(
        text_config=text.to_dict(),
        projection_hidden_size=vision["mm_hidden_size"],
        projection_layer_norm_eps=vision["projector_ln_eps"],
        tie_word_embeddings=False,
        vision_config={
            "patch_size": vision["patch_size"],
            "pos_emb_height": vision["init_pos_emb_height"],
            "pos_emb_width": vision["init_pos_emb_width"],
            "pos_emb_time": vision["init_pos_emb_time"],
            "num_attention_heads": vision["vt_num_attention_heads"],
            "num_hidden_layers": vision["vt_num_hidden_layers"],
            "hidden_size": vision["vt_hidden_size"],
            "intermediate_size": vision["vt_intermediate_size"],
            "merge_kernel_size": tuple(vision["merge_kernel_size"]),
        },
    )
    model, found = Kimi_K25Model.from_pretrained(
        str(checkpoint), config=config, dtype=getattr(torch, dtype), output_loading_info=True
    )
    for kind in ("missing_keys", "unexpected_keys"):
        wrong = [key for key in found[kind] if "vision_tower" in key or "mm_projector" in key]
        assert not wrong, (kind, wrong)
    return model.eval()


@lru_cache(maxsize=2)
def sglang_modules(checkpoint: Path, dtype: str) -> tuple[torch.nn.Module, torch.nn.Module | None]:
    """SGLang's tower of K3 with the checkpoint's settings, and its projector; none for K2.5."""
    from sglang.srt.configs.kimi_k3 import KimiK3VisionConfig
    from sglang.srt.models.kimi_k3_vl import KimiK3MultiModalProjector, KimiK3VisionTower

    values, tensors = config_of(checkpoint)["vision_config"], weights(checkpoint)
    late = values["mm_projector_type"] == "patchmergerv2"
    settings = (
        KimiK3VisionConfig(**values)
        if late
        else SimpleNamespace(pos_emb_interpolation_mode="bicubic", **values)
    )
    tower = KimiK3VisionTower(settings)
    tower.load_state_dict(part(tensors, "vision_tower."), strict=True)
    tower.to(getattr(torch, dtype)).eval()
    if not late:
        return tower, None
    projector = KimiK3MultiModalProjector(settings)
    projector.load_state_dict(part(tensors, "mm_projector."), strict=True)
    return tower, projector.to(getattr(torch, dtype)).eval()


def sglang_forward(checkpoint: Path, pixels: torch.Tensor, grids: torch.Tensor, dtype: str) -> torch.Tensor:
    """SGLang's embeddings; the projector of K2.5 in plain Torch, because its own wants a server's context."""
    tower, projector = sglang_modules(checkpoint, dtype)
    with torch.no_grad():
        merged = tower(shaped(checkpoint, pixels, dtype), grids)
        if projector is not None:
            return projector(merged)
        given = part(weights(checkpoint), "mm_projector.")
        given = {name: tensor.to(getattr(torch, dtype)) for name, tensor in given.items()}
        x = torch.cat(tuple(merged))
        eps = config_of(checkpoint)["vision_config"]["projector_ln_eps"]
        x = torch.nn.functional.layer_norm(
            x, x.shape[-1:], given["pre_norm.weight"], given["pre_norm.bias"], eps
        ).flatten(1)
        x = torch.nn.functional.gelu(
            torch.nn.functional.linear(x, given["proj.0.weight"], given["proj.0.bias"])
        )
        return torch.nn.functional.linear(x, given["proj.2.weight"], given["proj.2.bias"])


def shaped(checkpoint: Path, pixels: torch.Tensor, dtype: str) -> torch.Tensor:
    patch = media_of(checkpoint)["patch_size"]
    return pixels.reshape(-1, 3, patch, patch).to(getattr(torch, dtype))


def forward(checkpoint: Path, pixels: torch.Tensor, grids: torch.Tensor, dtype: str) -> torch.Tensor:
    """Embeddings: of K2.5 by transformers, of K3 by SGLang."""
    if config_of(checkpoint)["model_type"] == "kimi_k3":
        return sglang_forward(checkpoint, pixels, grids, dtype)
    with torch.no_grad():
        out = transformers_model(checkpoint, dtype).get_image_features(
            shaped(checkpoint, pixels, dtype), grids, return_dict=True
        )
    return torch.cat(tuple(out.pooler_output))


def run(
    family: str, checkpoint: Path, data: bytes, dtype: str = "float32", *, backend: str = BACKENDS[0]
) -> dict[str, torch.Tensor]:
    """Pixel values, grids and embeddings of one encoded image."""
    del family  # config.json says the generation
    pixels, grids = preprocess(checkpoint, data, backend)
    return {
        "pixel_values": pixels,
        "grid_thws": grids,
        "embeddings": forward(checkpoint, pixels, grids, dtype),
    }
