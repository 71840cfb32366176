"""A writer of PNG for what Pillow does not write: every depth, filter, interlace and chunk order."""

from __future__ import annotations

import struct
import zlib

import numpy as np

SIGNATURE = b"\x89PNG\r\n\x1a\n"
SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
PASSES = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def chunk(name: bytes, content: bytes = b"") -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def header(width: int, height: int, depth: int, kind: int, interlaced: bool = False) -> bytes:
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, int(interlaced)))


def pack(row: np.ndarray, depth: int) -> bytes:
    """One row of levels [width, samples] as PNG stores it."""
    flat = row.reshape(-1)
    if depth == 16:
        return flat.astype(">u2").tobytes()
    if depth == 8:
        return flat.astype(np.uint8).tobytes()
    bits = (flat[:, None] >> np.arange(depth - 1, -1, -1)[None, :]) & 1
    return np.packbits(bits.reshape(-1).astype(np.uint8)).tobytes()


def filtered(row: bytes, above: bytes, kind: int, pixel: int) -> bytes:
    a = np.frombuffer(bytes(pixel) + row[:-pixel] if len(row) > pixel else bytes(len(row)), np.uint8).astype(
        int
    )
    b = np.frombuffer(above, np.uint8).astype(int)
    c = np.frombuffer(
        bytes(pixel) + above[:-pixel] if len(row) > pixel else bytes(len(row)), np.uint8
    ).astype(int)
    estimate = a + b - c
    distance = np.stack([abs(estimate - a), abs(estimate - b), abs(estimate - c)])
    paeth = np.choose(distance.argmin(axis=0), [a, b, c])
    prediction = [0, a, b, (a + b) // 2, paeth][kind]
    return bytes([kind]) + ((np.frombuffer(row, np.uint8) - prediction) & 255).astype(np.uint8).tobytes()


def filtered_rows(levels: np.ndarray, depth: int, filters: list[int]) -> bytes:
    pixel = max(1, levels.shape[2] * depth // 8)
    out = []
    above = bytes(len(pack(levels[0], depth)))
    for y, row in enumerate(levels):
        packed = pack(row, depth)
        out.append(filtered(packed, above, filters[y % len(filters)], pixel))
        above = packed
    return b"".join(out)


def stream(levels: np.ndarray, depth: int, filters: list[int], interlaced: bool) -> bytes:
    """All filtered rows, not yet compressed."""
    if not interlaced:
        return filtered_rows(levels, depth, filters)
    parts = [levels[y::down, x::across] for x, y, across, down in PASSES]
    return b"".join(filtered_rows(part, depth, filters) for part in parts if part.size)


def png(
    levels: np.ndarray,
    depth: int,
    kind: int,
    *,
    filters: list[int] | None = None,
    interlaced: bool = False,
    before: list[bytes] | None = None,
    after: list[bytes] | None = None,
    piece: int = 0,
    level: int = 6,
) -> bytes:
    """A PNG of `levels` [height, width, samples].

    `before` and `after` are whole chunks around the image data, which are split into pieces of `piece` bytes.
    """
    height, width, samples = levels.shape
    assert samples == SAMPLES[kind]
    data = zlib.compress(stream(levels, depth, filters or [0, 1, 2, 3, 4], interlaced), level)
    piece = piece or len(data)
    pieces = [chunk(b"IDAT", data[i : i + piece]) for i in range(0, len(data), piece)]
    parts = [
        SIGNATURE,
        header(width, height, depth, kind, interlaced),
        *(before or []),
        *pieces,
        *(after or []),
    ]
    return b"".join(parts) + chunk(b"IEND")
