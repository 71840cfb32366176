"""A writer of BMP for what Pillow does not write: every depth, header, mask and run-length coding."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator

import numpy as np

from tests.image.pictures import levels, noise, picture, saved

MASKS = [
    (0xFF0000, 0xFF00, 0xFF, 0x0),
    (0xFF000000, 0xFF0000, 0xFF00, 0x0),
    (0xFF000000, 0xFF00, 0xFF, 0x0),
    (0xFF000000, 0xFF0000, 0xFF00, 0xFF),
    (0xFF, 0xFF00, 0xFF0000, 0xFF000000),
    (0xFF0000, 0xFF00, 0xFF, 0xFF000000),
    (0xFF000000, 0xFF00, 0xFF, 0xFF0000),
    (0x0, 0x0, 0x0, 0x0),
    (0xF800, 0x7E0, 0x1F, 0x0),
    (0x7C00, 0x3E0, 0x1F, 0x0),
    (0xF000, 0xF00, 0xF0, 0xF),
]


def rows(raw: np.ndarray, bits: int) -> bytes:
    """Rows of bytes, or of indices below 8 bits, each padded to four bytes."""
    out = []
    for row in raw:
        if bits < 8:
            spread = (row.reshape(-1, 1).astype(int) >> np.arange(bits - 1, -1, -1)) & 1
            packed = np.packbits(spread.reshape(-1).astype(np.uint8)).tobytes()
        else:
            packed = row.astype(np.uint8).tobytes()
        out.append(packed + bytes(-len(packed) % 4))
    return b"".join(out)


def bmp(
    width: int,
    height: int,
    bits: int,
    pixels: bytes,
    *,
    size: int = 40,
    compression: int = 0,
    palette: bytes = b"",
    masks: tuple[int, ...] = (),
    top_down: bool = False,
    colours: int | None = None,
    offset: int | None = None,
    bare: bool = False,
) -> bytes:
    if size == 12:
        info = struct.pack("<IHHHH", 12, width, height, 1, bits)
    else:
        count = len(palette) // 4 if colours is None else colours
        stated = -height if top_down else height
        info = struct.pack(
            "<IIIHHIIiiII",
            size,
            width,
            stated & 0xFFFFFFFF,
            1,
            bits,
            compression,
            len(pixels),
            2835,
            2835,
            count,
            0,
        )
        inside = struct.pack(f"<{len(masks)}I", *masks)
        if size == 40:
            info += inside[:12]
        else:
            info += (inside + bytes(size))[: size - 40]
    body = info + palette
    head = b"BM" + struct.pack(
        "<IHHI", 14 + len(body) + len(pixels), 0, 0, 14 + len(body) if offset is None else offset
    )
    return body + pixels if bare else head + body + pixels


def runs(indices: np.ndarray, rle4: bool, literal: bool) -> bytes:
    """Run-length coded rows, from the bottom up as they are given."""
    out = bytearray()
    for row in indices:
        x = 0
        while x < len(row):
            if literal and len(row) - x >= 3:
                part = row[x : x + min(251, len(row) - x)]
                out += bytes([0, len(part)])
                if rle4:
                    padded = np.append(part, np.zeros(len(part) % 2, part.dtype))
                    packed = bytes((padded[::2] << 4 | padded[1::2]).astype(np.uint8))
                else:
                    packed = bytes(part.astype(np.uint8))
                out += packed + bytes(len(packed) % 2)
            elif rle4:
                part = row[x : x + 2]
                out += bytes([len(part), int(part[0]) << 4 | int(part[-1])])
            else:
                run = 1
                while x + run < len(row) and run < 255 and row[x + run] == row[x]:
                    run += 1
                part = row[x : x + run]
                out += bytes([run, int(row[x])])
            x += len(part)
        out += b"\0\0"
    return bytes(out) + b"\0\1"


def files() -> Iterator[tuple[str, Callable[[], bytes]]]:
    sizes = [(1, 1), (17, 9), (64, 48), (131, 77)]
    for (w, h), mode in itertools.product(sizes, ("1", "L", "P", "RGB", "RGBA")):
        yield f"bmp pillow {mode} {w}x{h}", lambda w=w, h=h, mode=mode: saved(picture(mode, w, h), "BMP")
        yield f"dib pillow {mode} {w}x{h}", lambda w=w, h=h, mode=mode: saved(picture(mode, w, h), "DIB")
    for (w, h), bits, size, top_down in itertools.product(
        sizes, (1, 4, 8, 24, 32), (12, 40, 52, 56, 64, 108, 124), (False, True)
    ):
        if size == 12 and (top_down or bits == 32):
            continue

        def make(
            w: int = w, h: int = h, bits: int = bits, size: int = size, top_down: bool = top_down
        ) -> bytes:
            entry = 3 if size == 12 else 4
            palette = noise(1 << bits, 1, entry).tobytes() if bits <= 8 else b""
            raw = levels(w, h, 1, bits, 1 << bits)[:, :, 0] if bits <= 8 else levels(w, h, bits // 8)
            return bmp(
                w, h, bits, rows(raw.reshape(h, -1), bits), size=size, palette=palette, top_down=top_down
            )

        yield f"bmp {bits} bits {w}x{h} header {size} {'top down' if top_down else ''}", make
    for (w, h), masks, size in itertools.product(sizes, MASKS, (40, 52, 56, 108, 124)):
        bits = 16 if max(masks) in (0xF800, 0x7C00, 0xF000) else 32

        def masked(
            w: int = w, h: int = h, masks: tuple[int, ...] = masks, size: int = size, bits: int = bits
        ) -> bytes:
            raw = noise(w * bits // 8, h, 1)[:, :, 0]
            return bmp(w, h, bits, rows(raw, 8), size=size, compression=3, masks=masks)

        yield f"bmp masks {[hex(m) for m in masks]} {w}x{h} header {size}", masked
    for (w, h), rle4, literal, top_down in itertools.product(
        sizes, (False, True), (False, True), (False, True)
    ):

        def coded(
            w: int = w, h: int = h, rle4: bool = rle4, literal: bool = literal, top_down: bool = top_down
        ) -> bytes:
            bits = 4 if rle4 else 8
            data = runs(levels(w, h, 1, bits, 1 << bits)[:, :, 0], rle4, literal)
            palette = noise(1 << bits, 1, 4).tobytes()
            return bmp(w, h, bits, data, compression=2 if rle4 else 1, palette=palette, top_down=top_down)

        yield f"bmp rle{4 if rle4 else 8} {w}x{h} literal {literal} top down {top_down}", coded
    palette = noise(256, 1, 4).tobytes()
    index = rows(levels(20, 10, 1)[:, :, 0], 8)
    greys = bytes(level for level in range(256) for level in (level, level, level, 0))
    yield "bmp 16 bits", lambda: bmp(20, 10, 16, rows(noise(40, 10, 1)[:, :, 0], 8))
    yield "bmp grey palette", lambda: bmp(20, 10, 8, index, palette=greys)
    yield "bmp black and white palette", lambda: bmp(20, 10, 8, index, palette=bytes(4) + b"\xff\xff\xff\0")
    yield "bmp one colour", lambda: bmp(20, 10, 8, index, palette=bytes(4))
    yield "bmp few colours", lambda: bmp(20, 10, 8, index, palette=palette[:40])
    yield (
        "bmp sixteen greys",
        lambda: bmp(4, 10, 4, rows(levels(4, 10, 1, top=16)[:, :, 0], 4), palette=greys[:64]),
    )
    yield "bmp no offset", lambda: bmp(20, 10, 8, index, palette=palette, offset=0)
    yield "bmp offset to the palette", lambda: bmp(20, 10, 8, index, palette=palette, offset=54)
    yield "bmp bare", lambda: bmp(20, 10, 8, index, palette=palette, bare=True)
    yield (
        "bmp delta",
        lambda: bmp(8, 4, 8, b"\3\7\0\2\2\1\4\5\0\0\0\2\0\2\0\1", compression=1, palette=palette),
    )
