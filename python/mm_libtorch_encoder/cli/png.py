"""Writing a PNG file with the standard library alone."""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

SIGNATURE = b"\x89PNG\r\n\x1a\n"
RGB, EIGHT_BIT, UP_FILTER = 2, 8, 2


def encode(pixels: NDArray[np.uint8]) -> bytes:
    """The PNG file of ``uint8 [height, width, 3]``."""
    height, width, _ = pixels.shape
    rows = pixels.reshape(height, width * 3)
    # Filter "up": each row less the one above it, modulo 256; rows that repeat become zeros.
    filtered = np.empty((height, 1 + width * 3), np.uint8)
    filtered[:, 0] = UP_FILTER
    filtered[:, 1:] = rows
    filtered[1:, 1:] -= rows[:-1]
    header = struct.pack(">IIBBBBB", width, height, EIGHT_BIT, RGB, 0, 0, 0)
    return SIGNATURE + b"".join(
        _chunk(kind, data)
        for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(filtered.tobytes(), 6)), (b"IEND", b""))
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
