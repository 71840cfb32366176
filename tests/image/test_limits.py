"""Sizes are refused from the header, before memory is allocated, whatever the format."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import textwrap
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mm_libtorch_encoder import _native
from tests.image.bmp_writer import bmp
from tests.image.gif_writer import screen
from tests.image.pictures import picture, saved
from tests.image.png_writer import SIGNATURE, chunk, header
from tests.image.tiff_writer import tiff

DEFAULT_PIXELS = 1 << 27


def large_png(width: int, height: int, depth: int = 8, kind: int = 2) -> bytes:
    """A valid PNG of one colour, made without its pixels in memory at once."""
    samples = {0: 1, 2: 3, 6: 4}[kind]
    left = height * (1 + (width * depth * samples + 7) // 8)
    packer, parts, zeros = zlib.compressobj(9), [], bytes(1 << 20)
    while left:
        parts.append(packer.compress(zeros[:left]))
        left -= min(left, len(zeros))
    data = b"".join(parts) + packer.flush()
    return SIGNATURE + header(width, height, depth, kind) + chunk(b"IDAT", data) + chunk(b"IEND")


def claims(width: int, height: int) -> dict[str, bytes]:
    """Files that claim a size and hold next to nothing."""
    small = saved(picture("RGB", 8, 8), "JPEG")
    frame = small.index(b"\xff\xc0") + 5
    size = struct.pack(">HH", min(height, 65535), min(width, 65535))
    webp = bytearray(saved(picture("RGB", 8, 8), "WEBP"))
    webp[26:30] = struct.pack("<HH", min(width, 16383), min(height, 16383))
    return {
        "jpeg": small[:frame] + size + small[frame + 4 :],
        "png": SIGNATURE + header(width, height, 8, 2) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND"),
        "webp": bytes(webp),
        "gif": screen(min(width, 65535), min(height, 65535))
        + b","
        + struct.pack("<HHHHB", 0, 0, 1, 1, 0)
        + b"\x02\x00;",
        "bmp": bmp(width, height, 24, b""),
        "ppm": b"P6 %d %d 255\n" % (width, height),
        "tiff": tiff(
            {256: (4, [width]), 257: (4, [height]), 262: (3, [2]), 258: (3, [8, 8, 8]), 277: (3, [3])}, b""
        ),
    }


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp", "gif", "bmp", "ppm", "tiff"])
def test_pixels_are_refused_from_the_header(kind: str) -> None:
    data = claims(14_000, 14_000)[kind]
    start = time.thread_time()
    for call in (_native.decode_image, _native.image_header):
        with pytest.raises(
            _native.MediaError, match=rf"{kind} .*14000x14000 has 196000000 pixels.*134217728"
        ):
            call(data)
    assert time.thread_time() - start < 0.01


@pytest.mark.parametrize("kind", ["png", "bmp", "ppm", "tiff"])
def test_sides(kind: str) -> None:
    with pytest.raises(_native.MediaError, match=r"70000x1 has a side over the limit of 65535"):
        _native.decode_image(claims(70_000, 1)[kind])


@pytest.mark.parametrize("kind", ["png", "bmp", "ppm", "tiff"])
@pytest.mark.parametrize("size", [(0, 5), (5, 0), (0xFFFFFFFF, 0xFFFFFFFF), (0x80000000, 2)])
def test_sizes_without_sense(kind: str, size: tuple[int, int]) -> None:
    with pytest.raises(_native.MediaError, match=r"has (no|a|\d+) |is damaged"):
        _native.decode_image(claims(*size)[kind])


def test_tiles_far_larger_than_the_picture() -> None:
    """A tile is decoded whole: these would take half a gigabyte for 17x9 pixels."""
    entries = {256: (4, [17]), 257: (4, [9]), 258: (3, [16]), 259: (3, [8]), 262: (3, [1]), 277: (3, [1])}
    for height, match in [
        (16_711_712, "16x16711712 pixels for a picture of 17x9"),
        (1 << 20, "cannot be decoded"),
    ]:
        tiles = {322: (4, [16]), 323: (4, [height]), 324: (4, [8, 8]), 325: (4, [16, 16])}
        for policy in (None, _native.DecodePolicy(truncated="fill")):
            start = time.thread_time()
            with pytest.raises(_native.MediaError, match=match):
                _native.decode_image(tiff(entries | tiles, bytes(64)), policy)
            assert time.thread_time() - start < 0.5


def test_max_pixels() -> None:
    data = saved(picture("RGB", 10, 10), "PNG")
    assert _native.decode_image(data, None, 100).shape == (10, 10, 3)
    for call in (_native.decode_image, _native.image_header):
        with pytest.raises(_native.MediaError, match="100 pixels, over the limit of 99"):
            call(data, None, 99)


def test_bytes() -> None:
    with pytest.raises(_native.MediaError, match="bytes is over the limit of 268435456 bytes"):
        _native.decode_image(b"\x89PNG\r\n\x1a\n" + bytes(256 << 20))


def test_frames() -> None:
    still = saved(picture("RGB", 8, 8), "WEBP", save_all=True, append_images=[picture("RGB", 8, 8, 1)])
    at = still.index(b"ANMF")
    length = 8 + int.from_bytes(still[at + 4 : at + 8], "little")
    frame = still[at : at + length]
    data = still[:at] + frame * 70_000
    data = data[:4] + struct.pack("<I", len(data) - 8) + data[8:]
    with pytest.raises(_native.MediaError, match="70000 frames is over the limit of 65536"):
        _native.decode_image(data)


def scans(count: int, width: int = 16, height: int = 16) -> bytes:
    """A progressive JPEG with one scan over and over."""
    data = saved(picture("L", width, height), "JPEG", progressive=True)
    starts = [i for i in range(len(data) - 1) if data[i : i + 2] == b"\xff\xda"]
    first = data[starts[1] : starts[2]]
    return data[: starts[1]] + first * count + data[starts[2] :]


def test_progressive_bomb() -> None:
    assert _native.decode_image(scans(50)).shape == (16, 16, 3)
    with pytest.raises(_native.MediaError, match="more than the 100 scans allowed"):
        _native.decode_image(scans(5000))


def test_large_photographs_pass() -> None:
    image = Image.new("RGB", (12_000, 9_000), (10, 20, 30))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=50)
    got = _native.decode_image(file.getvalue())
    assert got.shape == (9_000, 12_000, 3)
    assert np.array_equal(got[0, 0], got[-1, -1])


# VmHWM, for getrusage's figure counts the parent's memory from before the program began. NumPy is imported first.
PEAK = """
    import sys
    from mm_libtorch_encoder import _native
    def field(name):
        lines = open("/proc/self/status").read().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name))
    _native.decode_image(b"P6 1 1 255 rgb")
    data = open(sys.argv[1], "rb").read()
    before = field("VmRSS")
    pixels = _native.decode_image(data, sys.argv[2])
    print((field("VmHWM") - before) * 1024, pixels.nbytes)
"""


def peak(tmp_path: Path, data: bytes, policy: str = "pillow") -> tuple[int, int]:
    """Bytes that decoding adds to a fresh process at its peak, and bytes of the result."""
    file = tmp_path / "file"
    file.write_bytes(data)
    package = Path(_native.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PEAK), str(file), policy],
        env={"PYTHONPATH": str(package)},
        check=True,
        capture_output=True,
        text=True,
    )
    added, size = map(int, done.stdout.split())
    return added, size


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "PPM", "TIFF", "GIF"])
def test_peak_memory(tmp_path: Path, kind: str) -> None:
    """Result and a tenth, or what docs/decoding.md says a format needs beside its result."""
    added, size = peak(tmp_path, saved(picture("RGB", 2000, 1500), kind))
    beside = {"WEBP": 1.5, "GIF": 1 / 3, "TIFF": 1.0}.get(kind, 0.0)
    assert added < size * (1.1 + beside) + (4 << 20)


def test_peak_memory_of_a_progressive_jpeg(tmp_path: Path) -> None:
    added, size = peak(tmp_path, saved(picture("RGB", 2000, 1500), "JPEG", progressive=True, subsampling=0))
    assert added < size * 3.1 + (4 << 20)


def test_peak_memory_of_a_turned_picture(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[274] = 6
    added, size = peak(tmp_path, saved(picture("RGB", 2000, 1500), "JPEG", exif=exif), "hf")
    assert added < size * 2.1 + (4 << 20)
