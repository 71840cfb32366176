"""What a hostile or clumsy call gets: a sentence that names the limit, before any memory is taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import images
import numpy as np
import pytest

from mm_libtorch_encoder import _native, preprocess
from mm_libtorch_encoder.preprocess import Canvas, Normalization, Recipe

IMAGE = images.noise(40, 30)
HALF = Normalization.named("divided", 1 / 255, (0.5,) * 3, (0.5,) * 3)
HUGE = 2**31 - 1


def recipe(**options: Any) -> Recipe:
    return Recipe(HALF, options.pop("patch", 14), **options)


CALLS: list[tuple[Callable[[], object], str]] = [
    (lambda: preprocess.resize(IMAGE, 0, 10), "at least 1"),
    (lambda: preprocess.resize(IMAGE, 10, -1), "at least 1"),
    (lambda: preprocess.resize(IMAGE, 2**31, 10), "less than"),
    (lambda: preprocess.resize(IMAGE, HUGE, 10), "longest side allowed is 262144"),
    (lambda: preprocess.resize(IMAGE, 200_000, 200_000), "most allowed is 268435456"),
    (lambda: preprocess.resize(np.zeros((0, 5, 3), np.uint8), 4, 4), "5x0"),
    (lambda: preprocess.resize(np.zeros((4, 4, 3), np.float32), 4, 4), "uint8, not float32"),
    (lambda: preprocess.resize(np.zeros((4, 4, 2), np.uint8), 4, 4), "1, 3 or 4 channels"),
    (lambda: preprocess.resize(np.zeros((4, 4, 259), np.uint8), 4, 4), "1, 3 or 4 channels"),
    (lambda: preprocess.resize(np.zeros(4, np.uint8), 4, 4), "1 axes"),
    (lambda: preprocess.resize(np.zeros((1, 4, 4, 3), np.uint8), 4, 4), "4 axes"),
    (lambda: _native.resize(np.asfortranarray(IMAGE), 4, 4), "C-contiguous"),
    (lambda: preprocess.resize(IMAGE, 4, 4, "cubic"), "use one of nearest, box"),  # type: ignore[arg-type]
    (lambda: preprocess.resize(IMAGE, 4, 4, arithmetic="pil"), "use one of pillow"),  # type: ignore[arg-type]
    (lambda: preprocess.resize(IMAGE, 4, 4, "box", "aten-float32"), "bilinear and bicubic"),
    (
        lambda: preprocess.resize(IMAGE, 4, 4, "hamming", "torchvision"),
        "nearest, bilinear, bicubic and lanczos",
    ),
    (lambda: preprocess.resize(IMAGE, 4, 4, bands=0), "bands is 0"),
    (lambda: _native.resize(IMAGE, 4, 4, level="avx9"), "this machine has native"),
    # 1 x 200,000 to 200,000 x 1 by way of 200,000 x 200,000
    (
        lambda: preprocess.resize(np.zeros((200_000, 1), np.uint8), 200_000, 1, arithmetic="pillow-12.1"),
        "between",
    ),
    (lambda: preprocess.resize_batch([IMAGE], []), "one size an image"),
    (lambda: preprocess.resize_batch([IMAGE, IMAGE], [(4, 4), (4, HUGE)]), "image 1: .*longest side"),
    (lambda: preprocess.resize_batch([IMAGE] * 5000, [(1, 1)] * 5000), "at most 4096"),
    (lambda: preprocess.prepare(IMAGE[..., 0], recipe(), Canvas.full(28, 28)), "3 channels"),
    (lambda: preprocess.prepare(IMAGE, recipe(), (28, 28)), "a canvas is"),
    (lambda: preprocess.prepare(IMAGE, recipe(), Canvas.full(28, 29)), "not a multiple"),
    (lambda: preprocess.prepare(IMAGE, recipe(merge=2), Canvas.full(14, 28)), "blocks of 2x2 patches"),
    (lambda: recipe(merge=2**31), "a block has a side of 1 to"),
    (lambda: recipe(merge=0), "a block has a side of 1 to"),
    (lambda: preprocess.prepare(IMAGE, recipe(), Canvas(28, 28, 28, 28, 1, 0)), "leaves the canvas"),
    (lambda: preprocess.prepare(IMAGE, recipe(), Canvas(28, 28, HUGE, 28, HUGE, 0)), "leaves the canvas"),
    (lambda: preprocess.prepare(IMAGE, recipe(), Canvas.full(0, 0)), "at least 1"),
    (lambda: preprocess.prepare(IMAGE, recipe(), Canvas.full(14 * 10**6, 14)), "longest side"),
    (
        lambda: preprocess.prepare(IMAGE, recipe(frames=16), Canvas.full(14_000, 14_000)),
        "most allowed is 4294967296",
    ),
    (lambda: recipe(patch=0), "patch side of 0"),
    (lambda: recipe(patch=300), "patch side of 300 is not within 1..=256"),
    (lambda: recipe(patch=2**30), "1..=256"),
    (lambda: recipe(frames=0), "1..=16"),
    (lambda: recipe(frames=17), "17 frames are not within 1..=16"),
    (lambda: preprocess.patchify(IMAGE, recipe()), "not a multiple"),
    (lambda: recipe(samples="planar"), "use one of channel-frame"),
    (lambda: recipe(dtype="float64"), "float32, bfloat16 or float16"),
    (lambda: preprocess.prepare_batch([IMAGE], recipe(), []), "one size an image"),
    (lambda: preprocess.normalize(IMAGE[..., 0], HALF), "RGB image"),
    (lambda: preprocess.set_threads(0), "1..=256"),
    (lambda: preprocess.set_threads(10**6), "1..=256"),
]


def peak() -> int:
    """KiB resident at the most since :func:`forget_peak`."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_a_bad_call_gets_a_sentence(number: int) -> None:
    call, words = CALLS[number]
    forget_peak()
    before = peak()
    with pytest.raises(ValueError, match=words) as caught:
        call()
    assert caught.type is ValueError
    assert peak() - before < 16 << 10, "memory was taken before the refusal"
