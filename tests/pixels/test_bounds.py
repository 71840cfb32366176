"""Wide instructions read no byte outside an image: the pages before and behind it cannot be read."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import images
import numpy as np
import pytest
from numpy.typing import NDArray

from mm_libtorch_encoder import _native, preprocess

PROT_NONE, PROT_BOTH = 0, mmap.PROT_READ | mmap.PROT_WRITE
LIBC = ctypes.CDLL(None, use_errno=True)
SIZES = [(1, 1), (5, 3), (21, 16), (64, 17), (85, 33), (86, 5), (171, 40), (341, 18)]

Pixels = NDArray[Any]


@contextmanager
def walled(image: Pixels, *, at_end: bool) -> Iterator[Pixels]:
    """A copy of the image between two pages that cannot be read, against the one or the other."""
    page = mmap.PAGESIZE
    room = -(-image.nbytes // page) * page
    area = mmap.mmap(-1, room + 2 * page)
    handle = ctypes.c_char.from_buffer(area)
    start = ctypes.addressof(handle)

    def protect(offset: int, how: int) -> None:
        done = LIBC.mprotect(ctypes.c_void_p(start + offset), ctypes.c_size_t(page), how)
        assert done == 0, ctypes.get_errno()

    protect(0, PROT_NONE)
    protect(page + room, PROT_NONE)
    offset = page + (room - image.nbytes if at_end else 0)
    copy = np.frombuffer(area, np.uint8, image.nbytes, offset).reshape(image.shape)
    copy[:] = image
    try:
        yield copy
    finally:
        protect(0, PROT_BOTH)
        protect(page + room, PROT_BOTH)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("at_end", [True, False])
def test_resizing_stays_inside(channels: int, at_end: bool) -> None:
    for width, height in SIZES:
        image = images.noise(width, height, width, channels)
        for target in ((width, 9), (11, height), (7, 5), (2 * width + 1, 3 * height), (height, width + 1)):
            for arithmetic in ("pillow", "torchvision", "aten-float32"):
                wanted = _native.resize(image, *target, "bicubic", arithmetic, level="native")
                with walled(image, at_end=at_end) as copy:
                    for level in _native.instruction_levels():
                        got = _native.resize(copy, *target, "bicubic", arithmetic, level=level)
                        assert np.array_equal(got, wanted), (width, height, target, arithmetic, level)


@pytest.mark.parametrize("at_end", [True, False])
def test_patches_stay_inside(at_end: bool) -> None:
    normalization = preprocess.Normalization.named("pil", 1 / 255, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    for patch, samples in (
        (7, "channel-frame"),
        (14, "frame-channel"),
        (16, "channels-last"),
        (40, "channels-last"),
    ):
        image = images.noise(3 * patch, 2 * patch, patch)
        recipe = preprocess.Recipe(normalization, patch, samples=samples, dtype="bfloat16")
        canvas = preprocess.Canvas.full(2 * patch, 3 * patch)
        wanted = _native.prepare(image, recipe, canvas, level="native")
        with walled(image, at_end=at_end) as copy:
            for level in _native.instruction_levels():
                assert np.array_equal(_native.prepare(copy, recipe, canvas, level=level), wanted), (
                    patch,
                    level,
                )
