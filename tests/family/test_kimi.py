"""Kimi-K2.5 against transformers, Kimi-K3 against SGLang, and the pixels of both against Pillow."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import checkpoints
import goldens
import images
import numpy as np
import parity
import PIL
import PIL.Image
import pytest
import torch
from images import Spec
from reference import kimi

from mm_libtorch_encoder import Encoder, MediaError, _native

CheckpointOf = Callable[[str], Path]
GENERATIONS = ("kimi_k25", "kimi")
PATCH = 14
NEWEST_PILLOW = tuple(map(int, PIL.__version__.split(".")[:2])) >= (13, 0)
needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="not run: needs transformers"
)
needs_sglang = pytest.mark.skipif(
    importlib.util.find_spec("sglang") is None,
    reason="not run: needs sglang 0.5.23, the reference of Kimi-K3",
)
generations = pytest.mark.parametrize("generation", GENERATIONS)
MEDIA = (
    Spec(640, 480, 1),
    Spec(13, 9, 2),
    Spec(1, 1, 3),
    Spec(31, 1200, 4),
    Spec(900, 40, 5),
    Spec(321, 203, 6, "RGBA"),
    Spec(224, 224, 7),
    Spec(448, 600, 8),
)


def changed_media(source: Path, folder: Path, **values: Any) -> Path:
    """A copy of the checkpoint `source` with other values in the processor's file."""

    def change(settings: dict[str, Any]) -> None:
        settings["media_proc_cfg"].update(values)

    checkpoints.edit(checkpoints.copied(source, folder), "preprocessor_config.json", change)
    return folder


# Grids


@needs_transformers
@generations
def test_grids_of_random_sizes(generation: str, demo_checkpoint: CheckpointOf) -> None:
    from transformers.models.kimi_k25.image_processing_kimi_k25 import navit_resize

    processor = _native.Processor(demo_checkpoint(generation), "", "kimi")
    limit = {"kimi_k25": 16384, "kimi": 65536}[generation]
    assert kimi.media_of(demo_checkpoint(generation))["in_patch_limit"] == limit
    corners = [(1, 1), (1, 60_000), (60_000, 1), (7168, 461), (1861, 7041), (7168, 7168), (7169, 7168)]
    for width, height in corners + images.sizes(20_000, 77, 11_000):
        _, (canvas_height, canvas_width) = navit_resize(height, width, PATCH, 2, limit, 512)
        grid = (1, canvas_height // PATCH, canvas_width // PATCH)
        assert processor.plan(width, height) == (grid, grid[1] * grid[2] // 4), (width, height)


def test_grids_may_exceed_the_budget(demo_checkpoint: CheckpointOf) -> None:
    """The budget counts whole patches before padding."""
    assert _native.Processor(demo_checkpoint("kimi_k25"), "").plan(7168, 461)[1] == 4352
    assert _native.Processor(demo_checkpoint("kimi"), "").plan(1861, 7041)[1] == 16817


def test_a_side_over_its_limit(tmp_path: Path, demo_checkpoint: CheckpointOf) -> None:
    """Padding may carry a side over an odd limit."""
    folder = changed_media(demo_checkpoint("kimi"), tmp_path / "odd", patch_limit_on_one_side=511)
    processor = _native.Processor(folder, "")
    assert processor.plan(7000, 20)[0] == (1, 2, 500)
    with pytest.raises(MediaError, match=r"512x2 patches"):
        processor.plan(7154, 20)


# Pixels


def small_budget(generation: str, folder: Path, demo_checkpoint: CheckpointOf, **values: Any) -> Path:
    """A checkpoint that shrinks images of a few hundred pixels a side."""
    return changed_media(demo_checkpoint(generation), folder, in_patch_limit=300, **values)


def backends() -> list[str]:
    return list(kimi.BACKENDS) if NEWEST_PILLOW else [kimi.BACKENDS[0]]


def check_sizes(generation: str, folder: Path, sizes: list[tuple[int, int]], backend: str) -> None:
    processor = _native.Processor(folder, "", backend=backend)
    for seed, (width, height) in enumerate(sizes):
        picture = images.picture(width, height, seed, grain_only=seed % 2 == 0)
        data = images.encode(picture, compress_level=0)
        parity.check_pixels(
            processor, data, partial(kimi.preprocess, folder, backend=backend), (generation, width, height)
        )


@generations
@pytest.mark.parametrize("backend", backends())
def test_pixel_values_of_small_sizes(
    generation: str, backend: str, tmp_path: Path, demo_checkpoint: CheckpointOf
) -> None:
    folder = small_budget(generation, tmp_path / "small", demo_checkpoint)
    extremes = [(1, 1), (1, 3000), (3000, 1), (27, 29), (28, 28), (13, 14)]
    check_sizes(generation, folder, extremes + images.sizes(54, 2024, 700), backend)


@pytest.mark.slow
@generations
@pytest.mark.parametrize("backend", backends())
def test_pixel_values_of_big_sizes(generation: str, backend: str, demo_checkpoint: CheckpointOf) -> None:
    sizes = [(4000, 4000), (8000, 30), (30, 8000), *images.sizes(197, 2025, 4000)]
    check_sizes(generation, demo_checkpoint(generation), sizes, backend)


@needs_transformers
def test_pixel_values_of_transformers_processor(tmp_path: Path, demo_checkpoint: CheckpointOf) -> None:
    folder = small_budget("kimi_k25", tmp_path / "small", demo_checkpoint)
    check_sizes("kimi_k25", folder, [(1, 1), (600, 500), *images.sizes(20, 5, 900)], "torchvision")


def test_torchvision_is_no_backend_of_k3(demo_checkpoint: CheckpointOf) -> None:
    with pytest.raises(ValueError, match="Kimi-K3 has no preprocessing on torchvision"):
        _native.Processor(demo_checkpoint("kimi"), "", backend="torchvision")


@generations
def test_the_default_backend_is_the_published_processors(
    generation: str, tmp_path: Path, demo_checkpoint: CheckpointOf
) -> None:
    """Rows first or columns first makes a difference on this size."""
    folder = small_budget(generation, tmp_path / "small", demo_checkpoint)
    data = images.png(200, 900, 1, grain_only=True)
    default, old, new = (
        _native.Processor(folder, "", **chosen).pixel_values(data)[0]
        for chosen in ({}, {"backend": "pillow-12.1"}, {"backend": "pillow"})
    )
    assert np.array_equal(default, old)
    assert not np.array_equal(default, new)


def test_other_constants_go_through_float64(tmp_path: Path, demo_checkpoint: CheckpointOf) -> None:
    constants = {
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    }
    folder = changed_media(demo_checkpoint("kimi_k25"), tmp_path / "clip", **constants)
    check_sizes("kimi_k25", folder, [(256, 28), (300, 200)], kimi.BACKENDS[0])


def modes() -> Iterator[tuple[str, bytes]]:
    """One image of 300x260 in each mode that Pillow resizes in a way of its own."""
    size = (300, 260)
    for mode in ("L", "LA", "RGB", "RGBA", "P"):
        yield mode, images.png(*size, 3, mode)
        yield f"noise {mode}", images.png(*size, 4, mode, grain_only=True)
    grey, colour = images.picture(*size, 5, "L"), images.picture(*size, 6)
    yield "grey with a transparent level", images.encode(grey, transparency=int(grey.getpixel((7, 7))))
    yield "colour with a transparent one", images.encode(colour, transparency=colour.getpixel((9, 9)))
    yield "one bit", images.encode(grey.convert("1"))
    yield "one bit with a transparent level", images.encode(grey.convert("1"), transparency=0)
    yield "one bit PBM", images.encode(grey.convert("1"), "PPM")
    yield "one bit BMP", images.encode(grey.convert("1"), "BMP")
    palette = images.picture(*size, 7, "P")
    yield "palette of many alphas", images.encode(palette, transparency=images.noise(256, 1, 8, 1).tobytes())
    yield "GIF with a transparent colour", images.encode(palette, "GIF", transparency=9)
    palette.info.pop("transparency")
    yield "opaque palette", images.encode(palette)
    yield "opaque GIF", images.encode(palette, "GIF")
    yield "grey GIF", images.encode(grey, "GIF")
    yield "palette BMP", images.encode(palette, "BMP")
    yield "CMYK JPEG", images.jpeg(*size, 11, "CMYK")
    yield "grey JPEG", images.jpeg(*size, 10, "L")
    yield "4:2:0 JPEG", images.jpeg(*size, 9)
    yield "WebP with alpha", images.encode(images.picture(*size, 12, "RGBA"), "WEBP", lossless=True)
    yield "opaque alpha", images.encode(colour.convert("RGBA"))
    yield "small RGBA, not resized", images.png(40, 30, 3, "RGBA", grain_only=True)
    yield "one transparent pixel", images.encode(PIL.Image.new("RGBA", (1, 1), (10, 20, 30, 0)))
    yield "orientation", images.oriented(images.picture(300, 151, 13), 6)


MODES = dict(modes())
K3_BACKGROUND = {
    "pattern": "chessboard",
    "chessboard_square_size": 8,
    "chessboard_square_on_top_left": True,
    "chessboard_white_value": 255,
    "chessboard_gray_value": 180,
}
BACKGROUNDS: dict[str, dict[str, Any] | None] = {
    "published": K3_BACKGROUND,
    "defaults": {},
    "white": {"pattern": "white"},
    "grey": {"pattern": "gray"},
    "grey square first": {"pattern": "chessboard", "chessboard_square_on_top_left": False},
    "none": None,
}


@pytest.mark.parametrize("name", MODES)
def test_every_mode_of_k25(name: str, tmp_path: Path, demo_checkpoint: CheckpointOf) -> None:
    """Alpha is dropped, orientation ignored."""
    folder = small_budget("kimi_k25", tmp_path / "small", demo_checkpoint)
    parity.check_pixels(_native.Processor(folder, ""), MODES[name], partial(kimi.preprocess, folder), name)


@pytest.mark.parametrize("background", BACKGROUNDS)
@pytest.mark.parametrize("stage", ["after_resize", "before_resize"])
def test_every_mode_of_k3(stage: str, background: str, tmp_path: Path, demo_checkpoint: CheckpointOf) -> None:
    folder = small_budget(
        "kimi",
        tmp_path / "small",
        demo_checkpoint,
        transparent_bg_fill_stage=stage,
        transparent_bg_config=BACKGROUNDS[background],
    )
    for backend in backends():
        processor = _native.Processor(folder, "", backend=backend)
        for name, data in MODES.items():
            parity.check_pixels(processor, data, partial(kimi.preprocess, folder, backend=backend), name)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_images_of_many_sizes(mode: str, tmp_path: Path, demo_checkpoint: CheckpointOf) -> None:
    folder = small_budget("kimi", tmp_path / "small", demo_checkpoint)
    processor = _native.Processor(folder, "")
    for seed, (width, height) in enumerate([(1, 900), (900, 1), *images.sizes(20, 31, 600)]):
        data = images.png(width, height, seed, mode, grain_only=seed % 2 == 0)
        parity.check_pixels(processor, data, partial(kimi.preprocess, folder), (mode, width, height))


def test_a_decoded_picture_is_rgb(demo_checkpoint: CheckpointOf) -> None:
    processor = _native.Processor(demo_checkpoint("kimi"), "")
    for name in ("RGBA", "CMYK JPEG", "P"):
        assert processor.decode(MODES[name]).shape == (260, 300, 3)


# Embeddings


def compare(generation: str, folder: Path, media: tuple[Spec, ...] = MEDIA) -> None:
    forwards = [kimi.forward]
    if generation == "kimi_k25" and importlib.util.find_spec("sglang") is not None:
        forwards.append(kimi.sglang_forward)
    for forward in forwards:
        parity.compare(
            "kimi", folder, partial(kimi.preprocess, folder), partial(forward, folder), media, bound=1e-5
        )
    kimi.transformers_model.cache_clear()
    kimi.sglang_modules.cache_clear()


@needs_transformers
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_embeddings_of_k25(seed: int, tmp_path: Path, demo_checkpoint: CheckpointOf) -> None:
    folder = parity.checkpoint("kimi_k25", tmp_path / "tiny", seed, demo_checkpoint("kimi_k25"))
    parity.compare(
        "kimi", folder, partial(kimi.preprocess, folder), partial(kimi.forward, folder), MEDIA, bound=1e-5
    )


@pytest.mark.slow
@needs_sglang
@needs_transformers
@generations
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_embeddings_of_both(
    generation: str, seed: int, tmp_path: Path, demo_checkpoint: CheckpointOf
) -> None:
    compare(generation, parity.checkpoint(generation, tmp_path / "tiny", seed, demo_checkpoint(generation)))


@pytest.mark.slow
@needs_sglang
@needs_transformers
@generations
@pytest.mark.parametrize("seed", [1, 2])
def test_embeddings_of_published_width(generation: str, seed: int, tmp_path: Path) -> None:
    compare(generation, checkpoints.published_width(generation, tmp_path / "wide", seed, depth=2))


@pytest.mark.slow
@needs_sglang
@generations
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_clips_and_images_together(
    generation: str, dtype: str, demo_checkpoint: CheckpointOf, shared_encoder: Callable[..., Encoder]
) -> None:
    """Frames of a clip see each other and give the tokens of one; the table is also read as it is."""
    folder = demo_checkpoint(generation)
    grids = torch.tensor([(4, 6, 8), (2, 4, 4), (1, 2, 2), (3, 10, 6), (1, 16, 16), (1, 2, 512)])
    count = int(grids.prod(1).sum())
    pixels = torch.from_numpy(images.noise(588, count, 5, 1)[..., 0].astype(np.float32) / 127.5 - 1)
    exact, theirs = (
        kimi.sglang_forward(folder, pixels, grids, each).float().numpy() for each in ("float32", dtype)
    )
    ours = shared_encoder(generation, dtype).encode_pixels(pixels, grids.tolist())
    assert ours["embedding_offsets"].tolist() == [0, 12, 16, 17, 32, 96, 352]
    distance = goldens.relative(ours["embeddings"].float().numpy(), exact)
    assert distance <= (1e-5 if dtype == "float32" else 1.05 * goldens.relative(theirs, exact))


@generations
def test_float16(generation: str, shared_encoder: Callable[..., Encoder]) -> None:
    parity.check_float16(partial(shared_encoder, generation), MEDIA[:3])


@generations
def test_several_images_in_one_forward(
    generation: str, demo_checkpoint: CheckpointOf, shared_encoder: Callable[..., Encoder]
) -> None:
    processor = _native.Processor(demo_checkpoint(generation), "")
    parity.check_batch(
        shared_encoder(generation), processor, [images.png(60, 40, 1), images.png(30, 200, 2, "RGBA")]
    )


@generations
def test_grids_that_cannot_be(generation: str, shared_encoder: Callable[..., Encoder]) -> None:
    encoder = shared_encoder(generation)
    matrix = torch.zeros(4, 588)
    for grid in [(0, 2, 2), (5, 2, 2), (1, 0, 4), (1, 4, 1), (1, 514, 2), (1, 2, 2**31), (1, 2, 4)]:
        with pytest.raises(ValueError, match=r"grid|pixel_values"):
            encoder.encode_pixels(matrix, [grid])
    assert encoder.encode_pixels(matrix, [(1, 2, 2)])["embeddings"].shape == (1, 96)
