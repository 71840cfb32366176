"""Padding, normalising and laying out patches, against the same in plain NumPy."""

from __future__ import annotations

import itertools
import random
from typing import Any, NamedTuple

import images
import numpy as np
import PIL.Image
import pytest
from numpy.typing import NDArray

from mm_libtorch_encoder import _native, preprocess
from mm_libtorch_encoder.preprocess import Canvas, Normalization, Recipe

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
FILL = (1.5, -2.25, 0.1)
ORDERS = ("channel-frame", "frame-channel", "channels-last")
LEVELS = _native.instruction_levels()

Array = NDArray[Any]


class Layout(NamedTuple):
    patch: int
    frames: int
    merge: int
    samples: str


def patches(values: Array, layout: Layout) -> Array:
    """The patch matrix of a canvas ``[height, width, 3]``."""
    patch, frames, merge, samples = layout
    rows, columns = values.shape[0] // patch, values.shape[1] // patch
    blocks = itertools.product(range(rows // merge), range(columns // merge), range(merge), range(merge))
    axes = {"channel-frame": (3, 0, 1, 2), "frame-channel": (0, 3, 1, 2), "channels-last": (0, 1, 2, 3)}[
        samples
    ]
    found = []
    for block_y, block_x, y, x in blocks:
        top, left = (block_y * merge + y) * patch, (block_x * merge + x) * patch
        tile = np.repeat(values[None, top : top + patch, left : left + patch], frames, axis=0)
        found.append(tile.transpose(axes).reshape(-1))
    return np.stack(found)


def bits(values: Array, dtype: str) -> Array:
    """float32 values rounded to nearest even in a dtype, as its bit patterns."""
    if dtype == "float16":
        return values.astype(np.float16).view(np.uint16)
    words = values.view(np.uint32)
    if dtype == "float32":
        return words
    return ((words + 0x7FFF + ((words >> 16) & 1)) >> 16).astype(np.uint16)


def padded(content: Array, canvas: Canvas, fill: tuple[float, float, float] = FILL) -> Array:
    values = np.empty((canvas.height, canvas.width, 3), np.float32)
    values[:] = fill
    rows = slice(canvas.top, canvas.top + canvas.content_height)
    values[rows, canvas.left : canvas.left + canvas.content_width] = content
    return values


def check(got: Array, wanted: Array, dtype: str, what: object) -> None:
    assert got.shape == wanted.shape, what
    view = got.view(np.uint32 if dtype == "float32" else np.uint16)
    assert np.array_equal(view, bits(wanted, dtype)), (
        f"{what}: {np.count_nonzero(view != bits(wanted, dtype))} differ"
    )


def random_layout(rng: random.Random) -> tuple[Layout, Canvas]:
    layout = Layout(
        rng.choice((14, 16, 40, 5, 1)), rng.choice((1, 2, 3)), rng.choice((1, 2, 3)), rng.choice(ORDERS)
    )
    unit = layout.patch * layout.merge
    height, width = unit * rng.randint(1, max(1, 150 // unit)), unit * rng.randint(1, max(1, 220 // unit))
    content_height, content_width = rng.randint(1, height), rng.randint(1, width)
    top, left = rng.randint(0, height - content_height), rng.randint(0, width - content_width)
    if rng.random() < 0.3:
        return layout, Canvas.full(height, width)
    return layout, Canvas(height, width, content_height, content_width, top, left)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("seed", range(40))
def test_equals_plain_numpy(seed: int, dtype: str) -> None:
    rng = random.Random(seed)
    layout, canvas = random_layout(rng)
    normalization = Normalization.named("torchvision", 1 / 255, CLIP_MEAN, CLIP_STD).with_fill(FILL)
    image = images.noise(rng.randint(1, 200), rng.randint(1, 200), seed)
    resized = PIL.Image.fromarray(image).resize(
        (canvas.content_width, canvas.content_height), PIL.Image.Resampling.BICUBIC
    )
    content = normalization.table()[np.arange(3), np.asarray(resized)]
    wanted = patches(padded(content, canvas), layout)
    patch, frames, merge, samples = layout
    recipe = Recipe(normalization, patch, frames=frames, merge=merge, samples=samples, dtype=dtype)
    for level in LEVELS:
        for bands in (1, 3):
            got = _native.prepare(image, recipe, canvas, bands=bands, level=level)
            check(got, wanted, dtype, (layout, canvas, level, bands))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("patch", "merge"), [(14, 2), (16, 2), (16, 1), (40, 1)])
def test_bands_change_nothing(order: str, patch: int, merge: int) -> None:
    normalization = Normalization.named("pil", 1 / 255, CLIP_MEAN, CLIP_STD).with_fill(FILL)
    recipe = Recipe(normalization, patch, frames=2, merge=merge, samples=order, dtype="bfloat16")
    unit = patch * merge
    canvas = Canvas(unit * (600 // unit), unit * (200 // unit), 500, 150, 33, 5)
    image = images.noise(300, 777, patch)
    whole = preprocess.prepare(image, recipe, canvas)
    for bands in (2, 5, 64):
        assert np.array_equal(whole, preprocess.prepare(image, recipe, canvas, bands=bands))


@pytest.mark.parametrize("order", ORDERS)
def test_large_matrices_are_written_whole(order: str) -> None:
    """Past the size from which stores bypass the cache."""
    normalization = Normalization.named("divided", 1 / 255, CLIP_MEAN, CLIP_STD)
    image = images.noise(1120, 700, 3)
    recipe = Recipe(normalization, 14, frames=1, merge=2, samples=order)
    wanted = patches(normalization.table()[np.arange(3), image], Layout(14, 1, 2, order))
    assert wanted.nbytes > 8 << 20
    check(preprocess.patchify(image, recipe), wanted, "float32", order)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_unrounded_values(dtype: str) -> None:
    """ATen's float32 arithmetic, then (v / 255 - mean) / std in float32."""
    mean, std = np.float32(CLIP_MEAN), np.float32(CLIP_STD)
    normalization = Normalization.named("divided", 1 / 255, CLIP_MEAN, CLIP_STD).with_fill(FILL)
    recipe = Recipe(normalization, 16, dtype=dtype, arithmetic="aten-float32")
    image = np.where(images.noise(150, 90, 8) < 128, 0, 255).astype(np.uint8)
    canvas = Canvas(96, 64, 80, 50, 3, 9)
    content = preprocess.resize(image, 50, 80, "bicubic", "aten-float32")
    assert content.min() < 0 and content.max() > 255
    wanted = patches(
        padded((content / np.float32(255) - mean) / std, canvas), Layout(16, 1, 1, "channel-frame")
    )
    for level in LEVELS:
        check(_native.prepare(image, recipe, canvas, level=level), wanted, dtype, level)


def test_content_of_no_size_is_padding_alone() -> None:
    normalization = Normalization.named("divided", 1 / 255, (0.5,) * 3, (0.5,) * 3).with_fill_level(127)
    recipe = Recipe(normalization, 14, dtype="bfloat16")
    image = images.noise(30, 30)
    for canvas in (Canvas(28, 42, 0, 42), Canvas(28, 42, 28, 0, 0, 7)):
        got = preprocess.prepare(image, recipe, canvas)
        assert got.shape == (6, 588)
        assert (got == 0xBB81).all()


def test_a_batch_equals_its_items() -> None:
    normalization = Normalization.named("multiplied", 1 / 255, CLIP_MEAN, CLIP_STD)
    recipe = Recipe(
        normalization, 14, frames=2, samples="frame-channel", filter="lanczos", arithmetic="pillow-12.1"
    )
    pictures = [images.noise(10 + 31 * i, 200 - 17 * i, i) for i in range(9)]
    canvases = [Canvas.full(28 * (i + 1), 14 * (9 - i)) for i in range(9)]
    alone = [
        preprocess.prepare(image, recipe, canvas) for image, canvas in zip(pictures, canvases, strict=True)
    ]
    together = preprocess.prepare_batch(pictures, recipe, canvases)
    assert all(np.array_equal(one, other) for one, other in zip(alone, together, strict=True))


def test_normalize_is_the_table() -> None:
    normalization = Normalization.named("pil", 1 / 255, CLIP_MEAN, CLIP_STD)
    image = images.noise(31, 17)
    got = preprocess.normalize(image, normalization)
    assert got.dtype == np.float32
    assert np.array_equal(got, np.stack([normalization.table()[c][image[..., c]] for c in range(3)], axis=-1))
