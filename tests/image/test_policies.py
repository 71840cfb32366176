"""Each choice of a policy, against the Pillow code that it stands for."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
from PIL import Image

from mm_libtorch_encoder import _native
from tests.image import corpus, reference
from tests.image.pictures import exif_block, levels, noise, picture, saved
from tests.image.png_writer import chunk, png
from tests.image.tiff_writer import of_kind

Policy = _native.DecodePolicy
#: Sources of alpha and of transparent colours.
TRANSPARENT = [
    file
    for file in corpus.everything()
    if file[0].startswith(
        (
            "png",
            "webp RGBA",
            "webp animated RGBA",
            "apng",
            "gif",
            "ico",
            "bmp masks",
            "tiff (2",
            "tiff (1, 8, 2",
        )
    )
][::7]


@pytest.mark.parametrize("alpha", ["over", "over-rgba", "keep"])
def test_transparency(alpha: str) -> None:
    met = 0
    for name, make in TRANSPARENT:
        data = make()
        try:
            expected = reference.pixels(data, alpha=alpha)
            got = _native.decode_image(data, Policy(alpha=alpha))
        except _native.MediaError:
            continue  # test_corpus holds the table of refusals
        except Exception:
            continue
        assert got.shape == expected.shape, name
        assert np.array_equal(got, expected), name
        met += got.shape[2] == 4 or not np.array_equal(got, _native.decode_image(data))
    assert met > 30


@pytest.mark.parametrize("background", [(0, 0, 0), (255, 255, 255), (1, 128, 254)])
def test_compositing_of_every_level_and_alpha(background: tuple[int, int, int]) -> None:
    level, alpha = np.meshgrid(np.arange(256, dtype=np.uint8), np.arange(256, dtype=np.uint8))
    data = saved(
        Image.fromarray(np.stack([level, 255 - level, level ^ 85, alpha], axis=2)), "PNG", compress_level=1
    )
    expected = reference.pixels(data, alpha="over", background=background)
    assert np.array_equal(_native.decode_image(data, Policy(alpha="over", background=background)), expected)


def oriented(kind: str, orientation: int) -> bytes:
    image = picture("RGB", 37, 23)
    exif = b"Exif\0\0" + exif_block(orientation)
    if kind == "TIFF":
        return of_kind((2, 8, 3, (), 1, 1), 37, 23, extra_tags={274: (3, [orientation])})
    return saved(image, kind, exif=exif)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(10))
def test_orientation(kind: str, orientation: int) -> None:
    data = oriented(kind, orientation)
    expected = reference.pixels(data, orient=True)
    assert np.array_equal(_native.decode_image(data, Policy(orient=True)), expected)
    _, width, height = _native.image_header(data, Policy(orient=True))
    assert (height, width) == expected.shape[:2]
    assert np.array_equal(_native.decode_image(data), reference.pixels(data))


@pytest.mark.parametrize("kind", [3, 4])
@pytest.mark.parametrize("order", ["II", "MM"])
def test_orientation_in_both_byte_orders_and_types(order: str, kind: int) -> None:
    data = saved(picture("RGB", 9, 5), "JPEG", exif=b"Exif\0\0" + exif_block(8, order, kind))
    assert np.array_equal(_native.decode_image(data, "hf"), reference.pixels(data, orient=True))
    assert _native.image_header(data, "hf") == ("jpeg", 5, 9)


def test_orientation_from_other_places() -> None:
    image = picture("RGB", 9, 5)
    xmp = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    raw = exif_block(5).hex().encode()
    text = b"Raw profile type exif\0\nexif\n      %d\n%s\n" % (len(raw) // 2, raw)
    plain = levels(9, 5, 3)
    files = {
        "jpeg xmp": saved(image, "JPEG", xmp=xmp),
        "jpeg exif before xmp": saved(image, "JPEG", xmp=xmp, exif=b"Exif\0\0" + exif_block(3)),
        "webp xmp": saved(image, "WEBP", xmp=xmp),
        "png xmp": png(plain, 8, 2, before=[chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp)]),
        "png exif behind the pixels": png(plain, 8, 2, after=[chunk(b"eXIf", exif_block(7))]),
        "png raw profile": png(plain, 8, 2, before=[chunk(b"tEXt", text)]),
    }
    for name, data in files.items():
        expected = reference.pixels(data, orient=True)
        assert not np.array_equal(expected, reference.pixels(data)), name
        assert np.array_equal(_native.decode_image(data, Policy(orient=True)), expected), name
        _, width, height = _native.image_header(data, Policy(orient=True))
        assert (height, width) == expected.shape[:2], name


def test_sixteen_bits_scaled() -> None:
    deep = np.random.default_rng(1).integers(0, 65536, (20, 30, 4))
    for kind, samples in ((0, 1), (2, 3), (4, 2), (6, 4)):
        data = png(deep[:, :, :samples], 16, kind)
        scaled = np.round(deep[:, :, :samples] / 257).astype(np.uint8)
        expected = scaled[:, :, :3] if samples >= 3 else scaled[:, :, :1].repeat(3, axis=2)
        assert np.array_equal(_native.decode_image(data, Policy(sixteen="scale")), expected)
        assert np.array_equal(_native.decode_image(data), reference.pixels(data))
    data = saved(picture("I;16", 20, 10), "TIFF")
    expected = np.round(np.asarray(picture("I;16", 20, 10)) / 257).astype(np.uint8)
    assert np.array_equal(_native.decode_image(data, Policy(sixteen="scale"))[:, :, 0], expected)


@pytest.mark.parametrize("kind", ["JPEG", "JPEG progressive", "PNG", "GIF", "BMP", "TIFF", "PPM"])
@pytest.mark.parametrize("share", [0.5, 0.8, 0.95])
def test_truncated(kind: str, share: float) -> None:
    options = {"progressive": True} if "progressive" in kind else {}
    whole = saved(picture("RGB", 80, 60), kind.split()[0], **options)
    data = whole[: int(len(whole) * share)]
    with pytest.raises(_native.MediaError, match=r"cut short|damaged"):
        _native.decode_image(data)
    if kind == "JPEG progressive":
        # The libraries differ in how they smooth what is missing.
        assert _native.decode_image(data, Policy(truncated="fill")).shape == (60, 80, 3)
    else:
        assert np.array_equal(_native.decode_image(data, Policy(truncated="fill")), reference.filled(data))


def test_presets() -> None:
    assert Policy.preset("pillow") == Policy() == Policy.preset("sglang")
    assert Policy.preset("hf") == Policy(orient=True)
    assert Policy.preset("vllm") == Policy(alpha="over-rgba")
    turned = saved(picture("RGBA", 9, 5), "PNG", exif=b"Exif\0\0" + exif_block(6))
    assert _native.decode_image(turned, "hf").shape == (9, 5, 3)
    assert np.array_equal(_native.decode_image(turned, "vllm"), reference.pixels(turned, alpha="over-rgba"))
    grey = saved(picture("LA", 9, 5), "PNG")
    assert np.array_equal(_native.decode_image(grey, "vllm"), reference.pixels(grey, alpha="over-rgba"))
    with pytest.raises(ValueError, match='"hf"'):
        Policy.preset("other")
    with pytest.raises(TypeError):
        _native.decode_image(turned, 3)


def test_identity_tells_policies_apart() -> None:
    choices = {
        "orient": (False, True),
        "alpha": ("drop", "over", "over-rgba", "keep"),
        "sixteen": ("pillow", "scale"),
        "truncated": ("refuse", "fill"),
        "icc": ("ignore", "srgb"),
    }
    policies = [
        Policy(**dict(zip(choices, values, strict=True))) for values in itertools.product(*choices.values())
    ]
    assert len({policy.identity() for policy in policies}) == len(policies) == len(set(policies))
    assert Policy(alpha="over", background=(0, 0, 0)).identity() != Policy(alpha="over").identity()
    assert Policy().identity() == "decode1;orient=0;alpha=drop;sixteen=pillow;truncated=refuse;icc=ignore"


@pytest.mark.parametrize(
    ("argument", "value"), [("alpha", "blend"), ("sixteen", ""), ("truncated", "x"), ("icc", "x")]
)
def test_unknown_values_name_the_known_ones(argument: str, value: str) -> None:
    with pytest.raises(ValueError, match=f'{argument}="{value}" is unknown: use "'):
        Policy(**{argument: value})


def test_frozen() -> None:
    with pytest.raises(AttributeError):
        Policy().orient = True


def test_bytes_like() -> None:
    data = saved(picture("RGB", 9, 5), "PNG")
    for form in (bytes, bytearray, memoryview, lambda b: np.frombuffer(b, np.uint8)):
        assert np.array_equal(_native.decode_image(form(data)), reference.pixels(data))
    with pytest.raises(TypeError):
        _native.decode_image("text")


def test_result_owns_its_pixels() -> None:
    data = saved(Image.fromarray(noise(9, 5, 3)), "PNG")
    got = _native.decode_image(data)
    assert got.dtype == np.uint8
    assert got.flags.c_contiguous
    assert got.flags.writeable
    got[:] = 0
    assert np.array_equal(_native.decode_image(data), reference.pixels(data))
    assert np.array_equal(pickle.loads(pickle.dumps(got)), got)
