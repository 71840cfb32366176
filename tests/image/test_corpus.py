"""Every generated file gives exactly Pillow's pixels, or stands in the table of docs/decoding.md."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable

import numpy as np
import pytest

from mm_libtorch_encoder import _native
from tests.image import corpus, reference

FILES = list(corpus.everything())
#: Files in which we differ from Pillow, and why: the rows of docs/decoding.md that a valid file can meet.
DIFFERENCES = {
    r"tiff big >": "Pillow does not know big-endian BigTIFF",
    r"tiff .*group3|tiff tiffcp 1 g3.*": "no library for Group 3",
    r"tiff \(1, 16, 1, \(\), 2, 1\) .* > .* deflate": "Pillow exchanges the bytes twice",
    r"tiff \(6, 8, 3, .* deflate( True)?": "compressed YCbCr other than JPEG",
    r"tiff \([13], 8, 2, \(2,\), 1, 1\) planes .* True": "Pillow loses the plane of alpha",
    r"tiff \(2, 8, 4, \(\), 1, 1\) planes .* False": "planes of alpha without a name",
    r"tiff \((2|5), 16, .* planes .* False": "Pillow reads planes of 16 bits as bytes",
    r"tiff \(2, 8, 3, \(\), 1, 2\) planes .* False": "Pillow forgets to reverse the bits",
}
#: The formats' own tools make part of the files.
TOOLS = shutil.which("tiffcp") and shutil.which("cjpeg")
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


def unexplained(found: dict[str, str]) -> dict[str, str]:
    known = re.compile("|".join(DIFFERENCES))
    return {name: problem for name, problem in found.items() if not known.fullmatch(name)}


def test_sample() -> None:
    assert unexplained(differences(FILES[::STRIDE])) == {}


@pytest.mark.slow
def test_everything() -> None:
    assert len(FILES) > 4000
    found = differences(FILES)
    assert unexplained(found) == {}
    # The table holds no row that is not met.
    unmet = [row for row in DIFFERENCES if not any(re.fullmatch(row, name) for name in found)]
    assert unmet == [] or not TOOLS
