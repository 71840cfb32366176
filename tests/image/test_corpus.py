"""Every generated file gives exactly Pillow's pixels, or stands in the table of docs/decoding.md."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from mm_libtorch_encoder import _native
from tests.image import corpus, reference

FILES = list(corpus.everything())
#: Names of files in which we differ on purpose; docs/decoding.md has the reasons.
DIFFERENT = re.compile(
    r"tiff big >"
    r"|tiff .*group3|tiff tiffcp 1 g3.*"
    r"|tiff \(1, 16, 1, \(\), 2, 1\) .* > .* deflate"
    r"|tiff \(6, 8, 3, .* deflate( True)?"
    r"|tiff \([13], 8, 2, \(2,\), 1, 1\) planes .* True"
    r"|tiff \(2, 8, 4, \(\), 1, 1\) planes .* False"
    r"|tiff \(2, 16, .* planes .* False"
    r"|tiff \(5, 16, .* planes .* False"
    r"|tiff \(2, 8, 3, \(\), 1, 2\) planes .* False"
)
#: One file in so many belongs to the short run; a prime, so that each option of the products is met.
STRIDE = 11


def compare(make: Callable[[], bytes]) -> str | None:
    """What differs, if anything."""
    data = make()
    expected = reference.accepts(data)
    try:
        got = _native.decode_image(data)
    except _native.MediaError as error:
        return None if expected is None else f"refused, but Pillow accepts it: {error}"
    if expected is None:
        return "accepted, but Pillow refuses it"
    if got.shape != expected.shape:
        return f"shape {got.shape} instead of {expected.shape}"
    _, width, height = _native.image_header(data)
    if (height, width) != got.shape[:2]:
        return f"the header says {width}x{height}"
    if not np.array_equal(got, expected):
        return f"{np.count_nonzero((got != expected).any(axis=2))} pixels differ"
    return None


def differences(files: list[corpus.File]) -> dict[str, str]:
    return {name: problem for name, make in files if (problem := compare(make))}


def test_sample() -> None:
    found = differences(FILES[::STRIDE])
    assert {name: problem for name, problem in found.items() if not DIFFERENT.fullmatch(name)} == {}


@pytest.mark.slow
def test_everything() -> None:
    assert len(FILES) > 4500
    found = differences(FILES)
    assert {name: problem for name, problem in found.items() if not DIFFERENT.fullmatch(name)} == {}
    # The table holds no row that is not met.
    silent = [name for name, _ in FILES if DIFFERENT.fullmatch(name) and name not in found]
    assert silent == []
