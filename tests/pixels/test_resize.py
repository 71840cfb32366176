"""Resizing against the installed Pillow, torchvision and Torch, bit for bit, on every instruction level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import PIL
import PIL.Image
import pytest
from numpy.typing import NDArray

from mm_libtorch_encoder import _native, preprocess
from tests.pixels import cases

FILTERS = {
    "nearest": PIL.Image.Resampling.NEAREST,
    "box": PIL.Image.Resampling.BOX,
    "bilinear": PIL.Image.Resampling.BILINEAR,
    "hamming": PIL.Image.Resampling.HAMMING,
    "bicubic": PIL.Image.Resampling.BICUBIC,
    "lanczos": PIL.Image.Resampling.LANCZOS,
}
PILLOW = tuple(int(part) for part in PIL.__version__.split(".")[:2])
#: Our name of the installed Pillow's arithmetic; its pass order changed in 12.2 and in 13.0.
INSTALLED = "pillow-13.0" if PILLOW >= (13, 0) else "pillow-12.2" if PILLOW >= (12, 2) else "pillow-12.1"
LEVELS = _native.instruction_levels()

every_filter = pytest.mark.parametrize("name", FILTERS)
Array = NDArray[Any]


def differences(got: Array, wanted: Array) -> str | None:
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return f"{got.dtype} {got.shape} instead of {wanted.dtype} {wanted.shape}"
    if np.array_equal(got, wanted):
        return None
    apart = np.abs(got.astype(np.float64) - wanted)
    return f"{np.count_nonzero(apart)} of {apart.size} samples differ, by up to {apart.max()}"


def check(case: cases.Case, image: Array, name: str, arithmetic: str, wanted: Array) -> None:
    for level in LEVELS:
        for bands in (1, 2 + case.number % 6):
            got = _native.resize(
                image, case.to_width, case.to_height, name, arithmetic, bands=bands, level=level
            )
            assert (fault := differences(got, wanted)) is None, (
                f"{case} {image.shape} {name} {level} in {bands} bands: {fault}"
            )


def check_pillow(name: str, first: int, count: int) -> None:
    for case in cases.random_cases(first, count):
        image = case.image((3, 3, 1, 3, 4)[case.number % 5])
        wanted = PIL.Image.fromarray(image).resize((case.to_width, case.to_height), FILTERS[name])
        check(case, image, name, INSTALLED, np.asarray(wanted))


@every_filter
def test_equals_the_installed_pillow(name: str) -> None:
    check_pillow(name, 0, cases.QUICK)


@pytest.mark.slow
@every_filter
def test_equals_the_installed_pillow_on_all_cases(name: str) -> None:
    check_pillow(name, cases.QUICK, cases.ALL - cases.QUICK)


@every_filter
def test_the_order_of_pillow_12_1_is_columns_first(name: str) -> None:
    """One pass a call: no version can choose the order."""
    for case in cases.random_cases(0, 150):
        image = case.image()
        narrow = PIL.Image.fromarray(image).resize((case.to_width, case.height), FILTERS[name])
        wanted = narrow.resize((case.to_width, case.to_height), FILTERS[name])
        check(case, image, name, "pillow-12.1", np.asarray(wanted))


def test_the_three_pass_orders_differ_where_they_should() -> None:
    def orders(width: int, height: int, to_width: int, to_height: int) -> tuple[bool, bool, bool]:
        case = cases.Case(1, width, height, to_width, to_height)
        picture = PIL.Image.fromarray(case.image())
        low = picture.resize((width, to_height), PIL.Image.Resampling.BICUBIC)
        rows_first = np.asarray(low.resize((to_width, to_height), PIL.Image.Resampling.BICUBIC))
        names = ("pillow-12.1", "pillow-12.2", "pillow-13.0")
        return tuple(
            bool(
                np.array_equal(_native.resize(case.image(), to_width, to_height, "bicubic", name), rows_first)
            )
            for name in names
        )  # type: ignore[return-value]

    assert orders(300, 300, 150, 150) == (False, False, False)
    assert orders(300, 300, 250, 100) == (False, False, True)  # 200 > 2 * 50
    assert orders(300, 300, 200, 100) == (False, False, False)  # 200 = 2 * 100
    assert orders(30, 300, 60, 299) == (False, False, True)
    assert orders(30, 300, 60, 310) == (False, False, False)  # the height grows
    assert orders(4, 401, 3, 400) == (False, True, False)
    assert orders(4, 400, 3, 399) == (False, False, False)  # 400 = 100 * 4


def torchvision() -> tuple[Any, Callable[..., Any]]:
    torch = pytest.importorskip("torch")
    functional = pytest.importorskip("torchvision.transforms.v2.functional")
    return torch, functional.resize


@pytest.mark.parametrize("name", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_equals_torchvision_on_levels(name: str) -> None:
    torch, resize = torchvision()
    if name == "lanczos" and not hasattr(torch.ops.aten, "_upsample_lanczos2d_aa"):
        pytest.skip(f"Torch {torch.__version__} has no Lanczos for tensors")
    for case in cases.random_cases(0, cases.QUICK):
        image = case.image((3, 3, 4)[case.number % 3])
        planes = torch.from_numpy(image).permute(2, 0, 1)
        # Torch 2.14 fails on a result of one pixel from three separate planes.
        one_pixel = case.to_width == case.to_height == 1
        planes = planes.contiguous() if case.number % 2 and not one_pixel else planes
        wanted = resize(planes, [case.to_height, case.to_width], interpolation=name, antialias=True)
        check(case, image, name, "torchvision", wanted.permute(1, 2, 0).numpy())


@pytest.mark.parametrize("name", ["bilinear", "bicubic"])
def test_equals_torch_on_float32(name: str) -> None:
    torch, _ = torchvision()
    for case in cases.random_cases(0, cases.QUICK):
        if case.to_width == 1:
            # Torch 2.11 to 2.14 repeat the first row over the whole height of a result one pixel wide.
            continue
        image = case.image()
        planes = torch.from_numpy(image).permute(2, 0, 1)[None].float().contiguous()
        wanted = torch.nn.functional.interpolate(
            planes, size=(case.to_height, case.to_width), mode=name, antialias=True, align_corners=False
        )
        check(case, image, name, "aten-float32", wanted[0].permute(1, 2, 0).contiguous().numpy())


@pytest.mark.parametrize("arithmetic", ["pillow", "torchvision", "aten-float32"])
def test_bands_change_nothing(arithmetic: str) -> None:
    for number, size in enumerate(
        [(640, 480, 320, 333), (300, 500, 450, 700), (500, 700, 500, 300), (99, 400, 50, 400)]
    ):
        case = cases.Case(number, *size)
        image = case.image()
        for level in LEVELS:
            whole = _native.resize(image, case.to_width, case.to_height, "bicubic", arithmetic, level=level)
            for bands in (2, 3, 7, 64):
                cut = _native.resize(
                    image, case.to_width, case.to_height, "bicubic", arithmetic, bands=bands, level=level
                )
                assert np.array_equal(whole, cut), (case, level, bands)


def test_a_batch_equals_its_items_on_any_number_of_threads() -> None:
    items = cases.random_cases(40, 24)
    pictures = [case.image() for case in items]
    sizes = [(case.to_width, case.to_height) for case in items]
    alone = [preprocess.resize(image, *size, "lanczos") for image, size in zip(pictures, sizes, strict=True)]
    before = preprocess.threads()
    try:
        for threads in (1, 2, 5):
            preprocess.set_threads(threads)
            assert preprocess.threads() == threads
            together = preprocess.resize_batch(pictures, sizes, "lanczos")
            assert all(np.array_equal(one, other) for one, other in zip(alone, together, strict=True))
    finally:
        preprocess.set_threads(before)


def test_the_same_size_is_a_copy() -> None:
    image = cases.Case(0, 20, 10, 20, 10).image()
    same = preprocess.resize(image, 20, 10)
    assert np.array_equal(same, image)
    assert not np.shares_memory(same, image)


def test_an_array_with_gaps_is_read_right() -> None:
    image = cases.Case(0, 60, 40, 30, 20).image()
    assert np.array_equal(
        preprocess.resize(image[:, ::-1], 30, 20),
        preprocess.resize(np.ascontiguousarray(image[:, ::-1]), 30, 20),
    )
