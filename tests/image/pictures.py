"""Sources of pixels: structure, edges and noise, so that no decoder's mistake hides in a flat area."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image

SAMPLES = {
    "1": 1,
    "L": 1,
    "P": 1,
    "LA": 2,
    "PA": 2,
    "RGB": 3,
    "YCbCr": 3,
    "LAB": 3,
    "RGBA": 4,
    "RGBX": 4,
    "CMYK": 4,
}


def levels(width: int, height: int, samples: int, seed: int = 0, top: int = 256) -> np.ndarray:
    """An array [height, width, samples] of levels below `top`: ramps, a sharp edge, and noise."""
    rng = np.random.default_rng([width, height, samples, seed])
    ramp = np.linspace(0, 0.7, width)[None, :, None] * np.linspace(1, 0.3, samples)[None, None, :]
    edge = (np.arange(height) > height // 2)[:, None, None] * 0.15
    noise = rng.random((height, width, samples)) * 0.15
    return ((ramp + edge + noise) * top).astype(np.uint32).clip(0, top - 1)


def noise(width: int, height: int, samples: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([width, height, samples, seed, 1]).integers(
        0, 256, (height, width, samples), dtype=np.uint8
    )


def picture(mode: str, width: int, height: int, seed: int = 0) -> Image.Image:
    """A Pillow image of `mode`."""
    if mode == "1":
        return picture("L", width, height, seed).convert("1")
    if mode in ("I;16", "I"):
        deep = levels(width, height, 1, seed, 65536)[:, :, 0]
        return Image.fromarray(deep.astype(np.uint16 if mode == "I;16" else np.int32))
    if mode == "F":
        return Image.fromarray(levels(width, height, 1, seed, 300)[:, :, 0].astype(np.float32) - 20)
    samples = levels(width, height, SAMPLES[mode], seed).astype(np.uint8)
    if mode in ("RGBA", "LA", "PA"):
        samples[..., -1] = noise(width, height, 1, seed)[..., 0]
        samples[: height // 3, :, -1] = 255
        samples[-(height // 3) :, :, -1] = 0
    image = Image.frombytes(mode, (width, height), samples.tobytes())
    if mode in ("P", "PA"):
        image.putpalette(noise(256, 1, 3, seed).tobytes())
    return image


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def exif_block(orientation: int, order: str = "II", kind: int = 3) -> bytes:
    """An EXIF block with the orientation tag and a description, without its `Exif` prefix."""
    byte_order = "little" if order == "II" else "big"

    def number(value: int, size: int) -> bytes:
        return value.to_bytes(size, byte_order)  # type: ignore[arg-type]

    value = number(orientation, 2) + b"\0\0" if kind == 3 else number(orientation, 4)
    entries = number(270, 2) + number(2, 2) + number(4, 4) + b"abc\0"
    entries += number(274, 2) + number(kind, 2) + number(1, 4) + value
    return order.encode() + number(42, 2) + number(8, 4) + number(2, 2) + entries + number(0, 4)
