"""Pixel values against transformers' processors on the same bytes, bit for bit."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import images
import numpy as np
import PIL
import PIL.Image
import pytest

from mm_libtorch_encoder import MediaError, _native

upstream = pytest.importorskip("reference.qwen_glm", reason="needs transformers and torchvision")

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen35", "glm53")
# Our name of the installed Pillow's arithmetic; Pillow changed the order of its passes in 12.2 and in 13.0.
PILLOW = tuple(int(part) for part in PIL.__version__.split(".")[:2])
PILLOW_NAME = "pillow" if PILLOW >= (13, 0) else "pillow-12.2" if PILLOW >= (12, 2) else "pillow-12.1"
BACKENDS = (("torchvision", "torchvision"), (PILLOW_NAME, "pillow"))
QUICK_PIXELS = 300_000

CheckpointOf = Callable[[str], Path]
families = pytest.mark.parametrize("family", FAMILIES)
backends = pytest.mark.parametrize(("backend", "theirs"), BACKENDS)


def random_sizes() -> list[tuple[int, int]]:
    extremes = [
        (1, 1),
        (1, 200),
        (200, 1),
        (4000, 1),
        (1, 4000),
        (4000, 20),
        (20, 4000),
        (4000, 4000),
        (2, 3),
    ]
    return extremes + images.sizes(200 - len(extremes), 2024, 4000)


def lossless(width: int, height: int, seed: int) -> bytes:
    return images.encode(images.picture(width, height, seed, grain_only=seed % 2 == 0), compress_level=0)


def check(family: str, checkpoint: Path, data: bytes, backend: str, theirs: str, what: object) -> None:
    """Equal values and grid, or refused by both."""
    processor = _native.Processor(checkpoint, "", family, backend=backend)
    try:
        wanted, grids = upstream.preprocess(checkpoint, data, theirs)
    except ValueError as error:
        assert "aspect ratio" in str(error), what
        with pytest.raises(MediaError, match="aspect ratio"):
            processor.pixel_values(data, "float32")
        return
    pixels, grid = processor.pixel_values(data, "float32")
    assert [list(grid)] == grids.tolist(), what
    assert pixels.dtype == np.float32
    # Bits, not values: -0.0 and NaN count.
    assert np.array_equal(pixels.view(np.uint32), wanted.numpy().view(np.uint32)), (
        f"{what}: {np.count_nonzero(pixels != wanted.numpy())} of {pixels.size} values differ"
    )


def check_sizes(family: str, checkpoint: Path, backend: str, theirs: str, big: bool) -> None:
    checked = 0
    for seed, (width, height) in enumerate(random_sizes()):
        if (width * height > QUICK_PIXELS) == big:
            check(family, checkpoint, lossless(width, height, seed), backend, theirs, f"{width}x{height}")
            checked += 1
    assert checked > 50


@families
@backends
def test_small_random_sizes(family: str, backend: str, theirs: str, demo_checkpoint: CheckpointOf) -> None:
    check_sizes(family, demo_checkpoint(family), backend, theirs, big=False)


@pytest.mark.slow
@families
@backends
def test_big_random_sizes(family: str, backend: str, theirs: str, demo_checkpoint: CheckpointOf) -> None:
    check_sizes(family, demo_checkpoint(family), backend, theirs, big=True)


@pytest.mark.parametrize("filter", [0, 1, 2, 3, 4, 5])
def test_the_filter_is_the_checkpoints(filter: int, tmp_path: Path, demo_checkpoint: CheckpointOf) -> None:
    """Pillow's numbers: nearest, Lanczos, bilinear, bicubic, box, Hamming. the torchvision backend has three here."""
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(demo_checkpoint("qwen35"), checkpoint)
    path = checkpoint / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"resample": filter}))
    for backend, theirs in BACKENDS if filter in (1, 2, 3) else BACKENDS[1:]:
        for seed, (width, height) in enumerate([(100, 75), (640, 427)]):
            check("qwen35", checkpoint, lossless(width, height, 2 * seed), backend, theirs, (filter, width))


def special_inputs() -> Iterator[tuple[str, bytes]]:
    for mode in ("L", "LA", "P", "RGBA"):
        yield mode, images.png(150, 90, 3, mode)
        yield f"noise {mode}", images.png(75, 133, 4, mode, grain_only=True)
    grey, colour = images.picture(120, 80, 5, "L"), images.picture(120, 80, 6)
    yield "grey with a transparent level", images.encode(grey, transparency=int(grey.getpixel((7, 7))))
    yield "colour with a transparent one", images.encode(colour, transparency=colour.getpixel((9, 9)))
    yield "one bit", images.encode(grey.convert("1"))
    palette = images.picture(120, 80, 7, "P")
    palette.info.pop("transparency")
    yield "opaque palette", images.encode(palette)
    deep = PIL.Image.fromarray(images.noise(90, 60, 8, 2).view("<u2")[..., 0])
    yield "16-bit grey", images.encode(deep)
    yield "opaque alpha", images.encode(colour.convert("RGBA"))
    yield "one transparent pixel", images.encode(PIL.Image.new("RGBA", (1, 1), (10, 20, 30, 0)))
    for name, options in {
        "4:4:4": {"subsampling": 0},
        "4:2:2": {"subsampling": 1},
        "progressive": {"progressive": True},
    }.items():
        yield f"JPEG {name}", images.jpeg(201, 143, 9, **options)
    yield "grey JPEG", images.jpeg(201, 143, 10, "L")
    yield "CMYK JPEG", images.jpeg(201, 143, 11, "CMYK")
    yield "lossy WebP", images.encode(colour, "WEBP", quality=80)
    yield "lossless WebP with alpha", images.encode(images.picture(61, 99, 12, "RGBA"), "WEBP", lossless=True)


SPECIAL = dict(special_inputs())


@families
@backends
@pytest.mark.parametrize("name", SPECIAL)
def test_special_inputs(
    family: str, backend: str, theirs: str, name: str, demo_checkpoint: CheckpointOf
) -> None:
    check(family, demo_checkpoint(family), SPECIAL[name], backend, theirs, name)


@families
@pytest.mark.parametrize("orientation", range(10))
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_exif_orientation(family: str, orientation: int, form: str, demo_checkpoint: CheckpointOf) -> None:
    """0 and 9 are no orientations and mean none."""
    options = {"lossless": True} if form == "WEBP" else {}
    data = images.oriented(images.picture(90, 151, 13), orientation, form, **options)
    assert PIL.Image.open(io.BytesIO(data)).getexif().get(0x0112) == orientation
    check(family, demo_checkpoint(family), data, "torchvision", "torchvision", f"{form} {orientation}")


@families
def test_the_default_backend_is_torchvision(family: str, demo_checkpoint: CheckpointOf) -> None:
    data = images.png(400, 300, 14, grain_only=True)
    checkpoint = demo_checkpoint(family)
    default, _ = _native.Processor(checkpoint, "", family).pixel_values(data)
    named, _ = _native.Processor(checkpoint, "", family, backend="torchvision").pixel_values(data)
    assert np.array_equal(default, named)


@families
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@backends
def test_narrow_dtypes_are_the_rounded_float32(
    family: str, dtype: str, backend: str, theirs: str, demo_checkpoint: CheckpointOf
) -> None:
    import torch

    processor = _native.Processor(demo_checkpoint(family), "", family, backend=backend)
    for seed, (width, height) in enumerate([(1, 1), (83, 57), (640, 427), (33, 900), (1200, 40)]):
        data = images.png(width, height, seed, grain_only=True)
        wide, _ = processor.pixel_values(data, "float32")
        narrow, _ = processor.pixel_values(data, dtype)
        rounded = torch.from_numpy(wide).to(getattr(torch, dtype)).view(torch.uint16).numpy()
        assert narrow.dtype == np.uint16
        assert np.array_equal(narrow, rounded), f"{width}x{height}"
