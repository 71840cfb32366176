"""Colour profiles to sRGB, beside LittleCMS. Both round on their own, so levels may differ by a few."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from PIL import Image, ImageCms

from mm_libtorch_encoder import _native
from tests.image import reference
from tests.image.pictures import noise, picture, saved

Policy = _native.DecodePolicy
#: Levels by which a channel may differ from LittleCMS.
TOLERANCE = 2
#: Colourants adapted to D50, as XYZ rows of red, green and blue.
DISPLAY_P3 = ((0.51512, 0.24120, -0.00105), (0.29198, 0.69225, 0.04189), (0.15710, 0.06657, 0.78407))
ADOBE_RGB = ((0.60974, 0.31111, 0.01947), (0.20528, 0.62567, 0.06087), (0.14919, 0.06322, 0.74457))


def fixed(value: float) -> bytes:
    return struct.pack(">i", round(value * 65536))


def profile(space: bytes, tags: dict[bytes, bytes]) -> bytes:
    """An ICC profile of version 2."""
    at = 128 + 4 + 12 * len(tags)
    table, data = b"", b""
    for name, content in tags.items():
        content += bytes(-len(content) % 4)
        table += name + struct.pack(">II", at + len(data), len(content))
        data += content
    head = (
        bytes(4) + bytes(4) + struct.pack(">I", 0x02100000) + b"mntr" + space + b"XYZ " + bytes(12) + b"acsp"
    )
    head = head.ljust(68, b"\0") + fixed(0.9642) + fixed(1.0) + fixed(0.8249)
    body = head.ljust(128, b"\0") + struct.pack(">I", len(tags)) + table + data
    return struct.pack(">I", len(body)) + body[4:]


def xyz(values: tuple[float, float, float]) -> bytes:
    return b"XYZ " + bytes(4) + b"".join(map(fixed, values))


def gamma(value: float) -> bytes:
    return b"curv" + bytes(4) + struct.pack(">IH", 1, round(value * 256))


def matrix_profile(colourants: tuple[tuple[float, float, float], ...], exponent: float) -> bytes:
    names = (b"rXYZ", b"gXYZ", b"bXYZ")
    tags = {name: xyz(row) for name, row in zip(names, colourants, strict=True)}
    tags |= {name: gamma(exponent) for name in (b"rTRC", b"gTRC", b"bTRC")}
    return profile(b"RGB ", tags | {b"wtpt": xyz((0.9642, 1.0, 0.8249))})


PROFILES = {"display p3": matrix_profile(DISPLAY_P3, 2.2), "adobe rgb": matrix_profile(ADOBE_RGB, 2.19921875)}
GREY = profile(b"GRAY", {b"kTRC": gamma(1.8), b"wtpt": xyz((0.9642, 1.0, 0.8249))})


def by_littlecms(image: Image.Image, source: bytes) -> np.ndarray:
    srgb = ImageCms.createProfile("sRGB")
    done = ImageCms.profileToProfile(
        image, ImageCms.ImageCmsProfile(io.BytesIO(source)), srgb, outputMode="RGB"
    )
    return np.asarray(done)


def close(got: np.ndarray, expected: np.ndarray) -> bool:
    return (
        got.shape == expected.shape and int(np.abs(got.astype(int) - expected.astype(int)).max()) <= TOLERANCE
    )


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF"])
def test_rgb_profiles(name: str, kind: str) -> None:
    image = Image.fromarray(noise(64, 48, 3))
    options = {"lossless": True} if kind == "WEBP" else {}
    data = saved(image, kind, icc_profile=PROFILES[name], **options)
    expected = by_littlecms(Image.fromarray(reference.pixels(data)), PROFILES[name])
    got = _native.decode_image(data, Policy(icc="srgb"))
    assert close(got, expected)
    assert not close(got, reference.pixels(data))
    assert np.array_equal(_native.decode_image(data), reference.pixels(data))


def test_grey_profile() -> None:
    image = Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16))
    data = saved(image, "PNG", icc_profile=GREY)
    got = _native.decode_image(data, Policy(icc="srgb"))
    assert close(got, by_littlecms(image, GREY))
    assert not close(got, reference.pixels(data))


def test_composited_in_srgb() -> None:
    image = Image.fromarray(noise(40, 30, 4))
    data = saved(image, "PNG", icc_profile=PROFILES["display p3"])
    colours = by_littlecms(image.convert("RGB"), PROFILES["display p3"])
    converted = Image.fromarray(np.dstack([colours, np.asarray(image)[:, :, 3]]))
    expected = np.asarray(reference.over(converted))
    assert close(_native.decode_image(data, Policy(icc="srgb", alpha="over")), expected)
    kept = _native.decode_image(data, Policy(icc="srgb", alpha="keep"))
    assert np.array_equal(kept[:, :, 3], np.asarray(image)[:, :, 3])


@pytest.mark.parametrize(
    "broken",
    [b"", b"no profile", PROFILES["adobe rgb"][:200], PROFILES["adobe rgb"][:128] + b"\xff" * 300, GREY],
)
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF"])
def test_profiles_that_do_not_fit_are_ignored(kind: str, broken: bytes) -> None:
    data = saved(picture("RGB", 20, 15), kind, icc_profile=broken)
    assert np.array_equal(_native.decode_image(data, Policy(icc="srgb")), reference.pixels(data))


def test_inks_keep_pillows_conversion() -> None:
    data = saved(picture("CMYK", 20, 15), "JPEG", icc_profile=PROFILES["adobe rgb"])
    assert np.array_equal(_native.decode_image(data, Policy(icc="srgb")), reference.pixels(data))


def test_hostile_profiles() -> None:
    rng = np.random.default_rng(3)
    for source in (*PROFILES.values(), GREY):
        for _ in range(300):
            changed = bytearray(source)
            for at in rng.integers(0, len(changed), int(rng.integers(1, 6))):
                changed[at] = int(rng.integers(256))
            image = picture("L" if source is GREY else "RGB", 4, 3)
            assert _native.decode_image(
                saved(image, "PNG", icc_profile=bytes(changed)), Policy(icc="srgb")
            ).shape == (3, 4, 3)
