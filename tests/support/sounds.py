"""Seeded sounds in WAV files that are written here, byte by byte."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import images
import numpy as np
from numpy.typing import NDArray

TOWER_RATE = 24_000
PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
GUID = b"\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71"
# By name: codec, bits of a sample.
ENCODINGS = {
    "u8": (PCM, 8),
    "i16": (PCM, 16),
    "i24": (PCM, 24),
    "i32": (PCM, 32),
    "f32": (FLOAT, 32),
    "f64": (FLOAT, 64),
}


def noise(samples: int, channels: int = 1, seed: int = 0) -> NDArray[np.float64]:
    """``[samples, channels]`` between -1 and 1, multiples of 2^-31: the same on every machine."""
    words = images.noise(samples, 1, seed, 4 * channels).reshape(samples, channels, 4)
    return np.ascontiguousarray(words).view("<i4")[..., 0] / 2.0**31


def stored(values: NDArray[np.float64], encoding: str) -> bytes:
    """Samples as a WAV holds them."""
    codec, bits = ENCODINGS[encoding]
    if codec == FLOAT:
        return values.astype(f"<f{bits // 8}").tobytes()
    levels = np.clip(np.floor(values * 2.0 ** (bits - 1)), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if bits == 8:
        return (levels + 128).astype(np.uint8).tobytes()
    if bits == 24:
        return levels.astype("<i4").reshape(-1, 1).view(np.uint8)[:, :3].tobytes()
    return levels.astype(f"<i{bits // 8}").tobytes()


def chunk(name: bytes, body: bytes, size: int | None = None) -> bytes:
    """A chunk at an even length; `size` is written instead of the body's own."""
    return name + struct.pack("<I", len(body) if size is None else size) + body + b"\0" * (len(body) % 2)


def form(encoding: str, rate: int, channels: int, extensible: bool = False) -> bytes:
    """The body of a fmt chunk."""
    codec, bits = ENCODINGS[encoding]
    block = channels * bits // 8
    fields = struct.pack("<HIIHH", channels, rate, rate * block % 2**32, block % 2**16, bits)
    if not extensible:
        return struct.pack("<H", codec) + fields
    return struct.pack("<H", EXTENSIBLE) + fields + struct.pack("<HHIH", 22, bits, 0, codec) + GUID


def riff(*chunks: bytes) -> bytes:
    body = b"WAVE" + b"".join(chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def wav(
    values: NDArray[np.float64], encoding: str = "i16", rate: int = 24_000, extensible: bool = False
) -> bytes:
    """A WAV of ``[samples, channels]``."""
    return riff(
        chunk(b"fmt ", form(encoding, rate, values.shape[1], extensible)),
        chunk(b"data", stored(values, encoding)),
    )


@dataclass(frozen=True)
class Sound:
    """One seeded WAV by its parameters."""

    samples: int
    seed: int = 0
    encoding: str = "i16"
    rate: int = TOWER_RATE
    channels: int = 1

    @property
    def exact(self) -> bool:
        """Whether its samples reach the tower as they are; other rates are resampled."""
        return self.rate == TOWER_RATE

    def data(self) -> bytes:
        return wav(noise(self.samples, self.channels, self.seed), self.encoding, self.rate)

    def __str__(self) -> str:
        return f"{self.samples} samples-{self.encoding}-{self.rate}-{self.channels}"
