"""A writer of GIF for what Pillow does not write: any palette, code size, frame place and block order."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator

import numpy as np

from tests.image.pictures import levels, noise

RAMP = bytes(level for level in range(256) for _ in range(3))


def blocks(data: bytes, size: int = 255) -> bytes:
    parts = (data[i : i + size] for i in range(0, len(data), size))
    return b"".join(bytes([len(part)]) + part for part in parts) + b"\0"


def lzw(indices: bytes, bits: int, clear_every: int = 0) -> bytes:
    """Compressed indices; a clear code also after every `clear_every` codes."""
    clear, end = 1 << bits, (1 << bits) + 1
    codes: list[tuple[int, int]] = []
    table: dict[bytes, int] = {}
    size = bits + 1

    def reset() -> None:
        nonlocal size
        codes.append((clear, size))
        table.clear()
        table.update({bytes([i]): i for i in range(min(clear, 256))})
        size = bits + 1

    reset()
    following = end + 1
    string = b""
    for index in indices:
        longer = string + bytes([index])
        if longer in table:
            string = longer
            continue
        codes.append((table[string], size))
        if following < 4096:
            table[longer] = following
            if following == 1 << size and size < 12:
                size += 1
            following += 1
        elif clear_every == 0:
            reset()
            following = end + 1
        if clear_every and len(codes) % clear_every == 0:
            reset()
            following = end + 1
        string = bytes([index])
    codes.append((table[string], size))
    if following == 1 << size and size < 12:
        size += 1
    codes.append((end, size))
    buffer = count = 0
    out = bytearray()
    for code, width in codes:
        buffer |= code << count
        count += width
        while count >= 8:
            out.append(buffer & 255)
            buffer >>= 8
            count -= 8
    if count:
        out.append(buffer)
    return bytes(out)


def screen(width: int, height: int, palette: bytes = b"") -> bytes:
    flags = 0x80 | palette_bits(palette) if palette else 0
    return b"GIF89a" + struct.pack("<HHBBB", width, height, flags, 0, 0) + palette


def palette_bits(palette: bytes) -> int:
    return (len(palette) // 3).bit_length() - 2


def control(transparent: int | None = None, disposal: int = 0) -> bytes:
    flags = disposal << 2 | (transparent is not None)
    return b"!\xf9\x04" + struct.pack("<BHB", flags, 10, transparent or 0) + b"\0"


def interlaced_rows(height: int) -> list[int]:
    return [*range(0, height, 8), *range(4, height, 8), *range(2, height, 4), *range(1, height, 2)]


def frame(
    indices: np.ndarray,
    bits: int,
    *,
    place: tuple[int, int] = (0, 0),
    palette: bytes = b"",
    interlaced: bool = False,
    clear_every: int = 0,
    block: int = 255,
) -> bytes:
    height, width = indices.shape
    flags = (0x80 | palette_bits(palette) if palette else 0) | (0x40 if interlaced else 0)
    rows = indices[interlaced_rows(height)] if interlaced else indices
    head = b"," + struct.pack("<HHHHB", *place, width, height, flags) + palette
    return head + bytes([bits]) + blocks(lzw(rows.astype(np.uint8).tobytes(), bits, clear_every), block)


def files() -> Iterator[tuple[str, Callable[[], bytes]]]:
    for (w, h), bits, local, transparent, interlaced in itertools.product(
        [(1, 1), (17, 9), (64, 48), (131, 77)], (2, 4, 8), (False, True), (None, 3), (False, True)
    ):

        def make(
            w: int = w,
            h: int = h,
            bits: int = bits,
            local: bool = local,
            transparent: int | None = transparent,
            interlaced: bool = interlaced,
        ) -> bytes:
            palette = noise(1 << bits, 1, 3).tobytes()
            indices = levels(w, h, 1, bits, 1 << bits)[:, :, 0]
            picture = frame(indices, bits, palette=palette[::-1] if local else b"", interlaced=interlaced)
            return screen(w, h, palette) + control(transparent) + picture + b";"

        yield f"gif {bits} bits {w}x{h} local {local} transparent {transparent} interlaced {interlaced}", make
    index = levels(40, 30, 1, 1, 256)[:, :, 0]
    palette = noise(256, 1, 3).tobytes()
    small = index[:20, :25]
    yield "gif no palette", lambda: screen(40, 30) + frame(index, 8) + b";"
    yield "gif grey palette", lambda: screen(40, 30, RAMP) + control(7) + frame(index, 8) + b";"
    yield "gif grey local palette", lambda: screen(40, 30, palette) + frame(index, 8, palette=RAMP) + b";"
    yield "gif placed", lambda: screen(40, 30, palette) + frame(small, 8, place=(7, 5)) + b";"
    yield (
        "gif placed, transparent",
        lambda: screen(40, 30, palette) + control(9) + frame(small, 8, place=(7, 5)) + b";",
    )
    yield "gif beyond the screen", lambda: screen(20, 10, palette) + frame(index, 8, place=(3, 2)) + b";"
    yield "gif clear codes", lambda: screen(40, 30, palette) + frame(index, 8, clear_every=50) + b";"
    yield "gif small blocks", lambda: screen(40, 30, palette) + frame(index, 8, block=1) + b";"
    yield "gif no trailer", lambda: screen(40, 30, palette) + frame(index, 8)
    yield "gif few colours", lambda: screen(40, 30, palette[:12]) + frame(index, 8) + b";"
    yield (
        "gif extensions",
        lambda: (
            screen(40, 30, palette)
            + b"!\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00"
            + b"!\xfe\x05hello\x00"
            + b"!\x01\x0c"
            + bytes(12)
            + b"\x00"
            + control(2)
            + frame(index, 8)
            + b";"
        ),
    )
    wide = np.tile(np.arange(4096) % 251, (300, 1))
    yield "gif full table", lambda: screen(4096, 300, palette) + frame(wide, 8) + b";"
    yield "gif noise", lambda: screen(300, 200, palette) + frame(noise(300, 200, 1)[:, :, 0], 8) + b";"
