"""A writer of TIFF for what Pillow does not write: every pixel kind, byte order, geometry and plane order.

Compressed files are Pillow's own, and those that `tiffcp` makes of uncompressed ones, where it is installed.
"""

from __future__ import annotations

import itertools
import shutil
import struct
import subprocess
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from tests.image.pictures import levels, noise, picture, saved

File = tuple[str, Callable[[], bytes]]
#: photometric, bits, samples, extra samples, sample format, fill order
KINDS = [
    *(
        (photometric, bits, 1, (), 1, fill)
        for photometric in (0, 1, 3)
        for bits in (1, 2, 4, 8)
        for fill in (1, 2)
    ),
    (1, 8, 1, (), 2, 1),
    (1, 12, 1, (), 1, 1),
    (0, 16, 1, (), 1, 1),
    (1, 16, 1, (), 1, 1),
    (1, 16, 1, (), 1, 2),
    (1, 16, 1, (), 2, 1),
    (1, 32, 1, (), 1, 1),
    (1, 32, 1, (), 2, 1),
    (0, 32, 1, (), 3, 1),
    (1, 32, 1, (), 3, 1),
    *((1, 8, 2, (extra,), 1, 1) for extra in (0, 1, 2)),
    (2, 8, 3, (), 1, 1),
    (2, 8, 3, (), 1, 2),
    *((2, 8, 4, extra, 1, 1) for extra in ((), (0,), (1,), (2,), (999,))),
    *((2, 8, 5, (extra, 0), 1, 1) for extra in (0, 1, 2)),
    *((2, 8, 6, (extra, 0, 0), 1, 1) for extra in (0, 1, 2)),
    (2, 16, 3, (), 1, 1),
    *((2, 16, 4, extra, 1, 1) for extra in ((), (0,), (1,), (2,))),
    (3, 8, 2, (0,), 1, 1),
    (3, 8, 2, (2,), 1, 1),
    (5, 8, 4, (), 1, 1),
    (5, 8, 5, (0,), 1, 1),
    (5, 8, 6, (0, 0), 1, 1),
    (5, 16, 4, (), 1, 1),
    (6, 8, 1, (), 1, 1),
    (6, 8, 3, (), 1, 1),
]
BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 7: 1}


def tiff(
    entries: dict[int, tuple[int, list[int] | bytes]], pixels: bytes, order: str = "<", big: bool = False
) -> bytes:
    """A file of one directory. Values of tags 273 and 324 are offsets within `pixels`."""
    head = (b"II" if order == "<" else b"MM") + struct.pack(order + "H", 43 if big else 42)
    head += struct.pack(order + "HHQ", 8, 0, 16) if big else struct.pack(order + "I", 8)
    word, count_code = ("Q", "Q") if big else ("I", "H")
    size = struct.calcsize(order + count_code) + len(entries) * (20 if big else 12) + (8 if big else 4)
    data_at = len(head) + size
    data = b""
    rows = []
    codes = {1: "B", 3: "H", 4: "I", 6: "b", 8: "h", 9: "i", 16: "Q"}
    lengths = {
        tag: len(values) if isinstance(values, bytes) else len(values) * struct.calcsize(order + codes[kind])
        for tag, (kind, values) in entries.items()
    }
    inline = 8 if big else 4
    pixels_at = data_at + sum(n + n % 2 for n in lengths.values() if n > inline)
    for tag, (kind, values) in sorted(entries.items()):
        if tag in (273, 324):
            values = [value + pixels_at for value in values]
        raw = (
            values
            if isinstance(values, bytes)
            else struct.pack(f"{order}{len(values)}{codes[kind]}", *values)
        )
        row = struct.pack(order + "HH" + word, tag, kind, len(values))
        if len(raw) <= inline:
            row += raw.ljust(inline, b"\0")
        else:
            row += struct.pack(order + word, data_at + len(data))
            data += raw + bytes(len(raw) % 2)
        rows.append(row)
    directory = struct.pack(order + count_code, len(rows)) + b"".join(rows) + bytes(8 if big else 4)
    return head + directory + data + pixels


def samples_of(kind: tuple[int, int, int, tuple[int, ...], int, int], w: int, h: int) -> np.ndarray:
    photometric, bits, samples, extra, form, _ = kind
    top = 1 << min(bits, 16)
    plain = levels(w, h, samples, bits, top).astype(np.int64)
    if bits == 16 and samples == 1:
        plain //= 100
    if form == 2 and bits > 8:
        plain -= top // 512
    if extra[:1] in ((1,), (2,)):
        plain[..., samples - len(extra)] = noise(w, h, 1, 5)[..., 0].astype(np.int64) * (
            257 if bits == 16 else 1
        )
    if photometric == 3:
        plain[..., 0] = levels(w, h, 1, 3, min(top, 256))[..., 0]
    return plain


def reversed_bits(raw: bytes) -> bytes:
    return bytes(int(f"{byte:08b}"[::-1], 2) for byte in raw)


def stored(plain: np.ndarray, kind: tuple[int, int, int, tuple[int, ...], int, int], order: str) -> bytes:
    """Rows of samples as the file holds them."""
    _, bits, _, _, form, _ = kind
    rows = []
    for row in plain.reshape(plain.shape[0], -1):
        if bits in (1, 2, 4, 12):
            spread = (row[:, None] >> np.arange(bits - 1, -1, -1)) & 1
            raw = np.packbits(spread.reshape(-1).astype(np.uint8)).tobytes()
        else:
            code = {
                (8, 1): "u1",
                (8, 2): "u1",
                (16, 1): "u2",
                (16, 2): "i2",
                (32, 1): "u4",
                (32, 2): "i4",
                (32, 3): "f4",
            }
            raw = row.astype(order + code[bits, form]).tobytes()
        rows.append(raw)
    return b"".join(rows)


def pieces(plain: np.ndarray, across: int, down: int, padded: bool) -> Iterator[np.ndarray]:
    """Strips or tiles in the file's order; tiles are filled up to their size."""
    height, width = plain.shape[:2]
    for y in range(0, height, down):
        for x in range(0, width, across):
            part = plain[y : y + down, x : x + across]
            if padded:
                part = np.pad(
                    part, ((0, down - part.shape[0]), (0, across - part.shape[1]), (0, 0)), mode="edge"
                )
            yield part


def of_kind(
    kind: tuple[int, int, int, tuple[int, ...], int, int],
    w: int,
    h: int,
    *,
    order: str = "<",
    big: bool = False,
    tile: tuple[int, int] | None = None,
    rows: int = 0,
    planar: bool = False,
    extra_tags: dict[int, tuple[int, list[int] | bytes]] | None = None,
    deflate: bool = False,
) -> bytes:
    photometric, bits, samples, extra, form, fill = kind
    plain = samples_of(kind, w, h)
    across, down = tile or (w, rows or h)
    planes = [plain[:, :, i : i + 1] for i in range(samples)] if planar else [plain]
    parts = [
        stored(part, kind, order)
        for plane in planes
        for part in pieces(plane, across, down, tile is not None)
    ]
    if deflate:
        parts = [zlib.compress(part) for part in parts]
    if fill == 2:
        parts = [reversed_bits(part) for part in parts]
    starts = list(itertools.accumulate([0, *map(len, parts[:-1])]))
    entries: dict[int, tuple[int, list[int] | bytes]] = {
        256: (4, [w]),
        257: (4, [h]),
        258: (3, [bits] * samples),
        259: (3, [8 if deflate else 1]),
        262: (3, [photometric]),
        266: (3, [fill]),
        277: (3, [samples]),
        284: (3, [2 if planar else 1]),
        339: (3, [form] * samples),
    }
    if extra:
        entries[338] = (3, list(extra))
    if photometric == 3:
        entries[320] = (3, [int(v) * 257 for v in noise(3 << bits, 1, 1)[0, :, 0]])
    if photometric == 6:
        entries[530] = (3, [1, 1])
    if tile:
        entries |= {
            322: (4, [across]),
            323: (4, [down]),
            324: (4, starts),
            325: (4, [len(part) for part in parts]),
        }
    else:
        entries |= {273: (4, starts), 278: (4, [down]), 279: (4, [len(part) for part in parts])}
    return tiff(entries | (extra_tags or {}), b"".join(parts), order, big)


def by_writer() -> Iterator[File]:
    sizes = [(1, 1), (17, 9), (64, 48)]
    shapes: list[tuple[str, dict]] = [
        ("one strip", {}),
        ("strips", {"rows": 5}),
        ("tiles", {"tile": (16, 32)}),
    ]
    for kind, (w, h), order, (shape, options) in itertools.product(KINDS, sizes, "<>", shapes):
        if (w, h) == (1, 1) and shape != "one strip":
            continue
        yield (
            f"tiff {kind} {w}x{h} {order} {shape}",
            lambda kind=kind, w=w, h=h, order=order, options=options: of_kind(
                kind, w, h, order=order, **options
            ),
        )
        if kind[1] in (8, 16) and shape != "one strip":
            yield (
                f"tiff {kind} {w}x{h} {order} {shape} deflate",
                lambda kind=kind, w=w, h=h, order=order, options=options: of_kind(
                    kind, w, h, order=order, deflate=True, **options
                ),
            )
    planar = [kind for kind in KINDS if kind[2] > 1]
    for kind, order, (shape, options), deflate in itertools.product(planar, "<>", shapes, (False, True)):
        yield (
            f"tiff {kind} planes {order} {shape} deflate {deflate}",
            lambda kind=kind, order=order, options=options, deflate=deflate: of_kind(
                kind, 40, 30, order=order, planar=True, deflate=deflate, **options
            ),
        )
    rgb = (2, 8, 3, (), 1, 1)
    for order in "<>":
        yield f"tiff big {order}", lambda order=order: of_kind(rgb, 20, 10, order=order, big=True, rows=3)
    for orientation in range(10):
        yield (
            f"tiff orientation {orientation}",
            lambda orientation=orientation: of_kind(rgb, 20, 10, extra_tags={274: (3, [orientation])}),
        )
    yield (
        "tiff xmp orientation",
        lambda: of_kind(rgb, 20, 10, extra_tags={700: (1, b'<a tiff:Orientation="8"/>')}),
    )
    yield "tiff no photometric", lambda: of_kind((0, 1, 1, (), 1, 1), 20, 10)


def by_pillow() -> Iterator[File]:
    compressions = {
        "1": ("raw", "packbits", "tiff_lzw", "tiff_adobe_deflate", "tiff_deflate", "group3", "group4"),
        "L": ("raw", "packbits", "tiff_lzw", "tiff_adobe_deflate", "jpeg"),
        "P": ("raw", "packbits", "tiff_lzw", "tiff_adobe_deflate"),
        "LA": ("raw", "packbits", "tiff_lzw", "tiff_adobe_deflate"),
        "RGB": ("raw", "packbits", "tiff_lzw", "tiff_adobe_deflate", "jpeg"),
        "RGBA": ("raw", "packbits", "tiff_lzw", "tiff_adobe_deflate"),
        "CMYK": ("raw", "packbits", "tiff_lzw", "tiff_adobe_deflate", "jpeg"),
        "YCbCr": ("raw",),
        "I;16": ("raw", "tiff_lzw", "tiff_adobe_deflate"),
        "I": ("raw", "tiff_lzw"),
        "F": ("raw", "tiff_lzw"),
    }
    for (w, h), (mode, names) in itertools.product(
        [(1, 1), (17, 9), (64, 48), (131, 77)], compressions.items()
    ):
        for name in names:
            yield (
                f"tiff pillow {mode} {w}x{h} {name}",
                lambda w=w, h=h, mode=mode, name=name: saved(picture(mode, w, h), "TIFF", compression=name),
            )
    for mode, name, rows in itertools.product(
        ("L", "RGB", "I;16"), ("tiff_lzw", "tiff_adobe_deflate"), (1, 7)
    ):
        yield (
            f"tiff pillow {mode} {name} predictor rows {rows}",
            lambda mode=mode, name=name, rows=rows: saved(
                picture(mode, 60, 40), "TIFF", compression=name, tiffinfo={317: 2, 278: rows}
            ),
        )


def tiffcp(source: bytes, arguments: list[str]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder, "before.tif"), Path(folder, "after.tif")
        before.write_bytes(source)
        subprocess.run(["tiffcp", *arguments, str(before), str(after)], check=True, capture_output=True)
        return after.read_bytes()


def by_tiffcp() -> Iterator[File]:
    if not shutil.which("tiffcp"):
        return
    codecs = ["lzw", "lzw:2", "zip", "zip:2", "packbits", "jpeg", "jpeg:r", "none"]
    shapes = [["-s"], ["-s", "-r", "7"], ["-t", "-w", "32", "-l", "16"]]
    orders = [["-L"], ["-B"]]
    for mode, codec, shape, order, planes in itertools.product(
        ("L", "RGB", "RGBA", "I;16"), codecs, shapes, orders, ([], ["-p", "separate"])
    ):
        if "jpeg" in codec and (mode in ("RGBA", "I;16") or planes or shape == ["-s"]):
            continue
        if planes and mode in ("L", "I;16"):
            continue
        if "jpeg" in codec and "-r" in shape:
            shape = ["-s", "-r", "16"]
        yield (
            f"tiff tiffcp {mode} {codec} {' '.join(shape + order + planes)}",
            lambda mode=mode, codec=codec, shape=shape, order=order, planes=planes: tiffcp(
                saved(picture(mode, 75, 50), "TIFF"), ["-c", codec, *shape, *order, *planes]
            ),
        )
    for codec, shape, order in itertools.product(
        ("g3", "g3:1d", "g3:2d", "g4", "lzw"), shapes, ([], ["-f", "lsb2msb"])
    ):
        yield (
            f"tiff tiffcp 1 {codec} {shape} {order}",
            lambda codec=codec, shape=shape, order=order: tiffcp(
                saved(picture("1", 75, 50), "TIFF"), ["-c", codec, *shape, *order]
            ),
        )


def files() -> Iterator[File]:
    yield from by_writer()
    yield from by_pillow()
    yield from by_tiffcp()
