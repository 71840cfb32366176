"""What broke other systems: one test a public report, under its number."""

from __future__ import annotations

import contextlib
import io
import struct
import threading
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
import scripts
from PIL import ExifTags, Image, ImageCms, ImageOps, features

from mm_libtorch_encoder import _native
from tests.image import reference
from tests.image.corpus import with_adobe_transform, without_adobe_marker
from tests.image.pictures import exif_block, levels, noise, picture, saved
from tests.image.png_writer import SIGNATURE, chunk, header, png, stream
from tests.image.test_limits import claims, large_png, peak
from tests.image.tiff_writer import of_kind

Policy = _native.DecodePolicy


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(2, 9))
def test_sglang_33464_exif_orientation(kind: str, orientation: int) -> None:
    data = saved(picture("RGB", 33, 20), kind, exif=b"Exif\0\0" + exif_block(orientation))
    applied = _native.decode_image(data, Policy(orient=True))
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
    assert np.array_equal(applied, expected)
    assert _native.image_header(data, Policy(orient=True))[1:] == applied.shape[1::-1]
    assert np.array_equal(_native.decode_image(data), reference.pixels(data))


MALFORMED = {
    "empty": b"",
    "text": b"not an EXIF block at all",
    "cut header": b"II*\0",
    "offset beyond the end": b"II*\0" + struct.pack("<I", 0xFFFFFFF0) + bytes(20),
    "entries beyond the end": b"II*\0" + struct.pack("<IH", 8, 65535),
    "loop": b"II*\0" + struct.pack("<IH", 0, 1) + bytes(12),
    "value beyond the end": b"II*\0" + struct.pack("<IHHHII", 8, 1, 274, 3, 1 << 30, 1 << 30),
    "unknown type": b"II*\0" + struct.pack("<IHHHII", 8, 1, 274, 99, 1, 6),
    "meaningless value": exif_block(77),
}


@pytest.mark.parametrize("name", MALFORMED)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_vllm_56527_malformed_exif(kind: str, name: str) -> None:
    block = MALFORMED[name]
    if kind == "PNG":
        data = png(levels(9, 5, 3), 8, 2, before=[chunk(b"eXIf", block)])
    else:
        data = saved(picture("RGB", 9, 5), kind, exif=b"Exif\0\0" + block)
    assert np.array_equal(_native.decode_image(data, Policy(orient=True)), reference.pixels(data))
    assert _native.image_header(data, Policy(orient=True))[1:] == (9, 5)


@pytest.mark.parametrize("alpha", ["drop", "over", "over-rgba", "keep"])
def test_vllm_44974_transparency(alpha: str) -> None:
    palette = [chunk(b"PLTE", noise(16, 1, 3).tobytes()), chunk(b"tRNS", noise(16, 1, 1).tobytes())]
    grey, colour = levels(9, 5, 1), levels(9, 5, 3)
    files = {
        "RGBA": saved(picture("RGBA", 20, 15), "PNG"),
        "LA": saved(picture("LA", 20, 15), "PNG"),
        "PA": saved(picture("PA", 20, 15), "TIFF"),
        "palette with alpha": png(levels(9, 5, 1, top=16), 4, 3, before=palette),
        "grey with a key": png(grey, 8, 0, before=[chunk(b"tRNS", struct.pack(">H", grey[2, 2, 0]))]),
        "RGB with a key": png(colour, 8, 2, before=[chunk(b"tRNS", struct.pack(">3H", *colour[2, 2]))]),
        "GIF": saved(picture("RGBA", 20, 15), "GIF"),
        "WebP": saved(picture("RGBA", 20, 15), "WEBP", quality=60),
        "lossless WebP": saved(picture("RGBA", 20, 15), "WEBP", lossless=True, exact=True),
    }
    for name, data in files.items():
        assert np.array_equal(
            _native.decode_image(data, Policy(alpha=alpha)), reference.pixels(data, alpha=alpha)
        ), name


def test_sglang_26751_grey_jpeg() -> None:
    data = saved(picture("L", 40, 30), "JPEG")
    got = _native.decode_image(data)
    assert got.shape == (30, 40, 3)
    assert np.array_equal(got, reference.pixels(data))
    assert (got[:, :, 0] == got[:, :, 1]).all()
    assert (got[:, :, 0] == got[:, :, 2]).all()


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (3, 5), (16, 16), (17, 33), (640, 427)])
def test_sglang_34163_upsampling_of_420(size: tuple[int, int]) -> None:
    data = saved(picture("RGB", *size), "JPEG", quality=90, subsampling=2)
    assert np.array_equal(_native.decode_image(data), reference.pixels(data))


def test_torchvision_6538_inks_with_and_without_adobe_marker() -> None:
    cmyk = saved(picture("CMYK", 40, 30), "JPEG", quality=95)
    for data in (cmyk, without_adobe_marker(cmyk), with_adobe_transform(cmyk, 2)):
        assert np.array_equal(_native.decode_image(data), reference.pixels(data))


def test_pillow_3011_sixteen_bits() -> None:
    grey, colour = levels(20, 10, 1, top=65536), levels(20, 10, 3, top=65536)
    for data, plain in ((png(grey, 16, 0), grey), (png(colour, 16, 2), colour)):
        assert np.array_equal(_native.decode_image(data), reference.pixels(data))
        scaled = np.round(plain / 257).astype(np.uint8)
        assert np.array_equal(
            _native.decode_image(data, Policy(sixteen="scale")), np.broadcast_to(scaled, (10, 20, 3))
        )


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_comfyui_11241_profiles_are_ignored(kind: str) -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    image = picture("RGB", 20, 15)
    data = saved(image, kind, icc_profile=profile)
    assert np.array_equal(_native.decode_image(data), reference.pixels(data))
    assert np.array_equal(_native.decode_image(data), _native.decode_image(saved(image, kind)))


@pytest.mark.parametrize(
    "data", [b"", b"\0", b"hello, this is text", b"<html></html>", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"]
)
def test_vllm_38253_no_image_at_all(data: bytes) -> None:
    for call in (_native.decode_image, _native.image_header):
        with pytest.raises(_native.MediaError):
            call(data)
    assert _native.decode_image(saved(picture("RGB", 4, 3), "PNG")).shape == (3, 4, 3)


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_vllm_17769_a_jpeg_cut_in_half_is_refused(mode: str, progressive: bool) -> None:
    data = saved(picture(mode, 200, 150), "JPEG", progressive=progressive)
    assert reference.accepts(data[: len(data) // 2]) is None
    with pytest.raises(_native.MediaError, match="cut short"):
        _native.decode_image(data[: len(data) // 2])
    assert np.array_equal(_native.decode_image(data), reference.pixels(data))


@pytest.mark.parametrize("quality", range(60, 100))
def test_a_jpeg_without_its_end_marker_is_judged_as_pillow_judges_it(quality: int) -> None:
    data = saved(picture("RGB", 61, 43), "JPEG", quality=quality)[:-2]
    expected = reference.accepts(data)
    if expected is None:
        with pytest.raises(_native.MediaError, match="cut short"):
            _native.decode_image(data)
    else:
        assert np.array_equal(_native.decode_image(data), expected)


def test_vllm_47010_png_bomb() -> None:
    data = large_png(14_000, 14_000)
    assert len(data) < 600_000
    times = []
    for _ in range(20):
        start = time.thread_time()
        with pytest.raises(
            _native.MediaError, match=r"14000x14000 has 196000000 pixels, over the limit of 134217728"
        ):
            _native.decode_image(data)
        times.append(time.thread_time() - start)
    # Decoding takes more than a hundred times as long on any machine.
    assert min(times) < 0.001
    with pytest.raises(_native.MediaError, match="144000000 pixels"):
        _native.decode_image(claims(12_000, 12_000)["png"])


def test_one_bit_png_of_9000x9000() -> None:
    data = large_png(9_000, 9_000, 1, 0)
    assert len(data) < 10_500
    with pytest.raises(_native.MediaError, match="81000000 pixels, over the limit of 50000000"):
        _native.decode_image(data, None, 50_000_000)
    got = _native.decode_image(data)
    assert got.shape == (9_000, 9_000, 3)
    assert not got.any()


@pytest.mark.parametrize(
    "size", [(1, 1), (1, 7), (7, 1), (3, 3), (3, 4), (3, 200), (4, 3), (200, 3), (1, 3), (3, 1)]
)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "PPM", "TIFF"])
def test_vllm_8954_axes_are_never_guessed(kind: str, size: tuple[int, int]) -> None:
    for mode in ("L", "RGB"):
        data = saved(picture(mode, *size), kind)
        got = _native.decode_image(data)
        assert got.shape == (size[1], size[0], 3)
        assert np.array_equal(got, reference.pixels(data))


def test_infinity_367_a_failure_stays_with_its_item() -> None:
    good = saved(picture("RGB", 30, 20), "JPEG")
    expected = reference.pixels(good)
    wrong: list[object] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(50):
            with contextlib.suppress(_native.MediaError):
                _native.decode_image(good[: int(rng.integers(len(good)))])
            if not np.array_equal(_native.decode_image(good), expected):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_openclaw_36662_first_frame_of_an_animation(kind: str) -> None:
    frames = [picture("RGBA", 40, 30, seed) for seed in range(12)]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = saved(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    for alpha in ("drop", "over"):
        assert np.array_equal(
            _native.decode_image(data, Policy(alpha=alpha)), reference.pixels(data, alpha=alpha)
        )
    assert _native.image_header(data)[1:] == (40, 30)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_meme_search_191_memory_does_not_grow_with_the_frames(kind: str, tmp_path: Path) -> None:
    def added(count: int) -> int:
        frames = [picture("RGB", 500, 400, seed) for seed in range(count)]
        options = {"lossless": True, "method": 0} if kind == "WEBP" else {}
        data = saved(frames[0], kind, save_all=True, append_images=frames[1:], **options)
        return peak(tmp_path, data)[0]

    assert added(24) < added(2) + (1 << 20)


UNSUPPORTED = {
    "heic": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic",
    "avif": b"\0\0\0\x1cftypavif\0\0\0\0avifmif1miaf",
    "jpeg xl": b"\xff\x0a" + bytes(20),
    "jpeg 2000": b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(20),
    "psd": b"8BPS\0\1" + bytes(20),
    "mp4 video": b"\0\0\0\x18ftypisom\0\0\0\0isomiso2",
    "pdf": b"%PDF-1.7 ",
    "svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_hermes_67848_unsupported_formats_are_named(name: str) -> None:
    for call in (_native.decode_image, _native.image_header):
        with pytest.raises(_native.MediaError, match=f"^unsupported format: {name}$"):
            call(UNSUPPORTED[name])


@pytest.mark.parametrize("brands", [b"mif1\0\0\0\0mif1avifmiaf", b"msf1\0\0\0\0msf1avismiaf"])
def test_names_are_found_in_compatible_brands(brands: bytes) -> None:
    with pytest.raises(_native.MediaError, match=r"^unsupported format: avif$"):
        _native.decode_image(b"\0\0\0\x1cftyp" + brands)


@pytest.mark.skipif(not features.check("avif"), reason="Pillow was built without AVIF")
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_avif_files_are_named_whole_or_damaged(mode: str) -> None:
    frames = [picture(mode, 64, 48, seed) for seed in range(2)]
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    files = [
        saved(frames[0], "AVIF"),
        saved(frames[0], "AVIF", exif=exif, icc_profile=b"profile"),
        saved(frames[0], "AVIF", save_all=True, append_images=frames[1:]),
    ]
    files += [data[: len(data) // 2] for data in files] + [files[0][:12]]
    for data in files:
        for call in (_native.decode_image, _native.image_header):
            with pytest.raises(_native.MediaError, match=r"^unsupported format: avif$"):
                call(data)


@pytest.mark.slow
def test_memory_is_flat() -> None:
    files = [saved(picture("RGB", 200, 150), kind) for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")]
    files += [data[: len(data) // 2] for data in files]

    def rounds(count: int) -> int:
        for _ in range(count):
            for data in files:
                with contextlib.suppress(_native.MediaError):
                    _native.decode_image(data, Policy(orient=True, alpha="over"))
        return scripts.resident()

    before = rounds(50)
    assert rounds(1000) - before < 4 << 20


def test_pixels_that_a_file_leaves_out_have_sample_0() -> None:
    """Which is not black in a palette, in ink, or under a background."""
    palette = [chunk(b"PLTE", noise(256, 1, 3).tobytes())]
    files = {}
    for interlaced in (False, True):
        plain = levels(30, 40, 1)
        rows = stream(plain, 8, [0], interlaced)
        line = 31 if not interlaced else 5
        data = zlib.compress(rows[: line * 3])
        head = SIGNATURE + header(30, 40, 8, 3, interlaced)
        files[f"png {interlaced}"] = head + palette[0] + chunk(b"IDAT", data) + chunk(b"IEND")
    place = struct.pack(">IIIIIHHBB", 0, 10, 8, 3, 4, 1, 10, 0, 0)
    part = zlib.compress(stream(levels(10, 8, 4), 8, [0], False))
    files["apng"] = SIGNATURE + header(30, 40, 8, 6) + chunk(b"acTL", struct.pack(">II", 2, 0))
    files["apng"] += chunk(b"fcTL", place) + chunk(b"IDAT", part) + chunk(b"IEND")
    for kind in ((3, 8, 1, (), 1, 1), (5, 8, 4, (), 1, 1), (2, 8, 4, (2,), 1, 1)):
        whole = of_kind(kind, 40, 30, rows=10)
        # Three strips become one.
        entry = whole.index(struct.pack("<HHI", 273, 4, 3))
        offset = int.from_bytes(whole[entry + 8 : entry + 12], "little")
        first = whole[offset : offset + 4]
        files[f"tiff {kind}"] = whole[: entry + 4] + struct.pack("<I", 1) + first + whole[entry + 12 :]
    for name, data in files.items():
        for alpha in ("drop", "over", "keep"):
            expected = reference.pixels(data, alpha=alpha)
            assert np.array_equal(_native.decode_image(data, Policy(alpha=alpha)), expected), name
