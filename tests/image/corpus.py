"""Files of every kind, as names and the functions that make them.

`everything()` lists over four thousand in a fixed order; a test may take every n-th. Formats that Pillow
writes only in part are completed by the writers beside this file and by the formats' own tools, if installed.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from tests.image import bmp_writer, gif_writer, tiff_writer
from tests.image.pictures import exif_block, levels, noise, picture, saved
from tests.image.png_writer import chunk, png

File = tuple[str, Callable[[], bytes]]
SIZES = [(1, 1), (17, 9), (64, 48), (131, 77)]


def run(tool: str, arguments: list[str], source: bytes, suffix: str) -> bytes:
    """The output of a command-line tool that takes its input as a file and writes to standard output."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"source.{suffix}"
        path.write_bytes(source)
        return subprocess.run([tool, *arguments, str(path)], check=True, capture_output=True).stdout


def jpeg_by_pillow() -> Iterator[File]:
    options = itertools.product(SIZES, ("L", "RGB", "CMYK"), (5, 40, 75, 95, 100), (0, 1, 2), (False, True))
    for (w, h), mode, quality, sampling, progressive in options:
        yield (
            f"jpeg {mode} {w}x{h} q{quality} s{sampling} {'progressive' if progressive else 'baseline'}",
            lambda w=w, h=h, mode=mode, quality=quality, sampling=sampling, progressive=progressive: saved(
                picture(mode, w, h), "JPEG", quality=quality, subsampling=sampling, progressive=progressive
            ),
        )
    extras = {
        "restart blocks": {"restart_marker_blocks": 3},
        "restart rows": {"restart_marker_rows": 1},
        "optimised": {"optimize": True},
        "rgb": {"keep_rgb": True},
        "exif": {"exif": b"Exif\0\0" + exif_block(6)},
        "comment": {"comment": b"a comment " * 40},
        "profile": {"icc_profile": bytes(70_000)},
        "16-bit tables": {"qtables": [[300] * 64, [400] * 64], "quality": 50},
    }
    for (w, h), mode, (name, extra) in itertools.product(SIZES, ("L", "RGB", "CMYK"), extras.items()):
        if name == "rgb" and mode != "RGB":
            continue
        yield (
            f"jpeg {mode} {w}x{h} {name}",
            lambda w=w, h=h, mode=mode, extra=extra: saved(picture(mode, w, h), "JPEG", **extra),
        )


def without_adobe_marker(data: bytes) -> bytes:
    start = data.index(b"\xff\xee")
    length = int.from_bytes(data[start + 2 : start + 4], "big")
    return data[:start] + data[start + 2 + length :]


def with_adobe_transform(data: bytes, transform: int) -> bytes:
    at = data.index(b"Adobe") + 11
    return data[:at] + bytes([transform]) + data[at + 1 :]


def jpeg_inks() -> Iterator[File]:
    """CMYK and YCCK, with and without Adobe's marker."""
    for (w, h), sampling, progressive in itertools.product(SIZES, (0, 2), (False, True)):

        def make(w: int = w, h: int = h, sampling: int = sampling, progressive: bool = progressive) -> bytes:
            image = picture("CMYK", w, h)
            return saved(image, "JPEG", quality=90, subsampling=sampling, progressive=progressive)

        name = f"jpeg inks {w}x{h} s{sampling} {progressive}"
        yield f"{name} no adobe", lambda make=make: without_adobe_marker(make())
        yield f"{name} ycck", lambda make=make: with_adobe_transform(make(), 2)


def jpeg_by_cjpeg() -> Iterator[File]:
    if not shutil.which("cjpeg"):
        return
    samplings = ["1x1", "2x1", "1x2", "2x2", "4x1", "1x4", "4x2", "2x4", "2x1,1x2,1x1", "2x2,2x1,1x2"]
    kinds = [
        [],
        ["-progressive"],
        ["-arithmetic"],
        ["-arithmetic", "-progressive"],
        ["-restart", "1"],
        ["-optimize"],
    ]
    for (w, h), sampling, kind in itertools.product(SIZES, samplings, kinds):
        yield (
            f"jpeg cjpeg {w}x{h} {sampling} {' '.join(kind)}",
            lambda w=w, h=h, sampling=sampling, kind=kind: run(
                "cjpeg",
                ["-quality", "85", "-sample", sampling, *kind],
                saved(picture("RGB", w, h), "PPM"),
                "ppm",
            ),
        )
    for (w, h), kind in itertools.product(
        SIZES, [["-dct", "fast"], ["-dct", "float"], ["-rgb"], ["-smooth", "20"]]
    ):
        yield (
            f"jpeg cjpeg {w}x{h} {' '.join(kind)}",
            lambda w=w, h=h, kind=kind: run("cjpeg", kind, saved(picture("RGB", w, h), "PPM"), "ppm"),
        )


PNG_KINDS = [
    *((depth, 0) for depth in (1, 2, 4, 8, 16)),
    *((depth, 2) for depth in (8, 16)),
    *((depth, 3) for depth in (1, 2, 4, 8)),
    *((depth, 4) for depth in (8, 16)),
    *((depth, 6) for depth in (8, 16)),
]


def transparency(kind: int, depth: int, plain: np.ndarray) -> dict[str, list[bytes]]:
    """tRNS chunks to try with a picture."""
    chunks: dict[str, list[bytes]] = {"": []}
    if kind in (0, 2):
        key = plain[plain.shape[0] // 2, plain.shape[1] // 2].astype(">u2").tobytes()
        chunks["key"] = [chunk(b"tRNS", key)]
    if kind == 3:
        size = min(256, 1 << depth)
        chunks["alpha"] = [chunk(b"tRNS", noise(size, 1, 1).tobytes())]
        chunks["few"] = [chunk(b"tRNS", bytes([255, 0]))]
        chunks["short"] = [chunk(b"tRNS", bytes([128]))]
    return chunks


def png_by_writer() -> Iterator[File]:
    variants = [([0, 1, 2, 3, 4], 0), ([4], 100), ([3, 1], 1)]
    for (w, h), (depth, kind), interlaced in itertools.product(SIZES, PNG_KINDS, (False, True)):
        plain = levels(w, h, {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[kind], depth, 1 << depth)
        palette = [chunk(b"PLTE", noise(min(256, 1 << depth), 1, 3).tobytes())] if kind == 3 else []
        label = f"png {depth} bits kind {kind} {w}x{h} {'adam7' if interlaced else ''}"
        for (name, extra), (filters, piece) in itertools.product(
            transparency(kind, depth, plain).items(), variants
        ):
            if piece == 1 and (w, h) == SIZES[-1]:
                continue
            options = {
                "filters": filters,
                "piece": piece,
                "interlaced": interlaced,
                "before": palette + extra,
            }
            yield (
                f"{label} {name} {filters} {piece}",
                lambda plain=plain, depth=depth, kind=kind, options=options: png(
                    plain, depth, kind, **options
                ),
            )


def png_with_metadata() -> Iterator[File]:
    plain = levels(40, 30, 3)
    early = {
        "exif": [chunk(b"eXIf", exif_block(6))],
        "profile": [chunk(b"iCCP", b"name\0\0" + b"not a zlib stream")],
        "text": [
            chunk(b"tEXt", b"key\0value"),
            chunk(b"zTXt", b"key\0\0x"),
            chunk(b"iTXt", b"key\0\0\0\0\0value"),
        ],
        "physical": [
            chunk(b"pHYs", bytes(9)),
            chunk(b"gAMA", bytes(4)),
            chunk(b"cHRM", bytes(32)),
            chunk(b"sRGB", b"\0"),
        ],
        "unknown": [chunk(b"abCd", b"anything"), chunk(b"ABCD", b"critical")],
        "palette of a colour picture": [chunk(b"PLTE", bytes(30))],
    }
    for name, chunks in early.items():
        yield f"png {name} before", lambda chunks=chunks: png(plain, 8, 2, before=chunks)
        yield f"png {name} after", lambda chunks=chunks: png(plain, 8, 2, after=chunks)
    indices = levels(40, 30, 1, top=16)
    palette = chunk(b"PLTE", noise(16, 1, 3).tobytes())
    yield "png palette missing", lambda: png(indices, 4, 3)
    yield "png palette short", lambda: png(indices, 4, 3, before=[chunk(b"PLTE", bytes(range(12)))])
    yield "png palette odd", lambda: png(indices, 4, 3, before=[chunk(b"PLTE", bytes(range(13)))])
    yield (
        "png transparency behind",
        lambda: png(indices, 4, 3, before=[palette], after=[chunk(b"tRNS", bytes(5))]),
    )
    yield (
        "png transparency before palette",
        lambda: png(indices, 4, 3, before=[chunk(b"tRNS", bytes(5)), palette]),
    )


def png_by_pillow() -> Iterator[File]:
    modes = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")
    for (w, h), mode, compression in itertools.product(SIZES, modes, (0, 1, 6, 9)):
        yield (
            f"png pillow {mode} {w}x{h} z{compression}",
            lambda w=w, h=h, mode=mode, compression=compression: saved(
                picture(mode, w, h), "PNG", compress_level=compression
            ),
        )
    for (w, h), default, blend in itertools.product(SIZES, (False, True), (0, 1)):
        yield (
            f"apng {w}x{h} default {default} blend {blend}",
            lambda w=w, h=h, default=default, blend=blend: saved(
                picture("RGBA", w, h),
                "PNG",
                save_all=True,
                append_images=[picture("RGBA", w, h, 1), picture("RGBA", w, h, 2)],
                default_image=default,
                blend=blend,
            ),
        )


def webp() -> Iterator[File]:
    options = [{"lossless": True, "exact": exact} for exact in (False, True)]
    options += [
        {"quality": quality, "method": method} for quality in (0, 30, 80, 100) for method in (0, 4, 6)
    ]
    options += [{"quality": 70, "alpha_quality": quality} for quality in (0, 50, 100)]
    for (w, h), mode, option in itertools.product(SIZES, ("L", "RGB", "RGBA", "P"), options):
        yield (
            f"webp {mode} {w}x{h} {option}",
            lambda w=w, h=h, mode=mode, option=option: saved(picture(mode, w, h), "WEBP", **option),
        )
    metadata = {"exif": b"Exif\0\0" + exif_block(6), "xmp": b"<x/>", "icc_profile": bytes(600)}
    for (w, h), mode, (key, value) in itertools.product(SIZES, ("RGB", "RGBA"), metadata.items()):
        yield (
            f"webp {mode} {w}x{h} {key}",
            lambda w=w, h=h, mode=mode, key=key, value=value: saved(
                picture(mode, w, h), "WEBP", **{key: value}
            ),
        )
    for (w, h), mode, lossless, mixed in itertools.product(
        SIZES, ("RGB", "RGBA"), (False, True), (False, True)
    ):
        yield (
            f"webp animated {mode} {w}x{h} {lossless} {mixed}",
            lambda w=w, h=h, mode=mode, lossless=lossless, mixed=(mixed): saved(
                picture(mode, w, h),
                "WEBP",
                save_all=True,
                append_images=[picture(mode, w, h, seed) for seed in range(1, 4)],
                lossless=lossless,
                allow_mixed=mixed,
                background=(10, 20, 30, 40),
            ),
        )


def gif() -> Iterator[File]:
    for (w, h), mode, interlaced in itertools.product(SIZES, ("1", "L", "P", "RGB", "RGBA"), (False, True)):
        yield (
            f"gif pillow {mode} {w}x{h} {interlaced}",
            lambda w=w, h=h, mode=mode, interlaced=interlaced: saved(
                picture(mode, w, h), "GIF", interlace=interlaced
            ),
        )
    for (w, h), mode, disposal in itertools.product(SIZES, ("P", "RGB", "RGBA"), (0, 1, 2, 3)):
        yield (
            f"gif animated {mode} {w}x{h} {disposal}",
            lambda w=w, h=h, mode=mode, disposal=disposal: saved(
                picture(mode, w, h),
                "GIF",
                save_all=True,
                append_images=[picture(mode, w, h, seed) for seed in range(1, 4)],
                disposal=disposal,
            ),
        )
    yield from gif_writer.files()


def ppm() -> Iterator[File]:
    for (w, h), mode in itertools.product(SIZES, ("1", "L", "RGB", "I")):
        yield f"ppm {mode} {w}x{h}", lambda w=w, h=h, mode=mode: saved(picture(mode, w, h), "PPM")
    for (w, h), kind, top in itertools.product(SIZES, b"2356", (1, 15, 100, 255, 256, 1023, 65535)):
        samples = 3 if kind in b"36" else 1
        plain = levels(w, h, samples, top, top + 1)

        def make(
            w: int = w, h: int = h, kind: int = kind, top: int = top, plain: np.ndarray = plain
        ) -> bytes:
            head = b"P%c\n# a comment\n%d %d\n%d\n" % (kind, w, h, top)
            if kind in b"23":
                return (
                    head + b"\n".join(b" ".join(b"%d" % v for v in row.reshape(-1)) for row in plain) + b"\n"
                )
            return head + plain.astype(">u2" if top > 255 else np.uint8).tobytes()

        yield f"ppm P{kind - 48} {w}x{h} up to {top}", make
    yield "ppm P1", lambda: b"P1 5 2\n01010 1 # rest\n0 1 01"
    yield "ppm P1 comment", lambda: b"P1#c\n5#c\n 2\n01010\n#c\n10101"


def ico() -> Iterator[File]:
    sizes = [(16, 16), (48, 48), (33, 20)]
    for (w, h), mode, form in itertools.product(sizes, ("1", "L", "P", "RGB", "RGBA", "LA"), ("png", "bmp")):
        if (mode, form) == ("LA", "bmp"):
            continue
        yield (
            f"ico {mode} {w}x{h} {form}",
            lambda w=w, h=h, mode=mode, form=form: saved(
                picture(mode, w, h), "ICO", bitmap_format=form, sizes=[(w, h), (8, 8)]
            ),
        )


def everything() -> Iterator[File]:
    """All files, format after format."""
    sources = [
        jpeg_by_pillow,
        jpeg_inks,
        jpeg_by_cjpeg,
        png_by_writer,
        png_with_metadata,
        png_by_pillow,
        webp,
        gif,
        bmp_writer.files,
        ppm,
        ico,
        tiff_writer.files,
    ]
    for source in sources:
        yield from source()
