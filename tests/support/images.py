"""Seeded images. Only integer arithmetic makes them, so the pixels are the same on every machine."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import PIL.Image
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]

_BANDS = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4, "CMYK": 4}


def _mixed(counter: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's mixing of a counter into bits that pass for random."""
    counter = (counter ^ (counter >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    counter = (counter ^ (counter >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return counter ^ (counter >> np.uint64(31))


def noise(width: int, height: int, seed: int = 0, bands: int = 3) -> Pixels:
    """Uniform noise ``[height, width, bands]``: where arithmetic is wrong, noise shows it."""
    words = -(-width * height * bands // 8)
    counter = np.arange(words, dtype=np.uint64) + np.uint64((seed * 0x9E3779B97F4A7C15) % 2**64)
    return _mixed(counter).view(np.uint8)[: width * height * bands].reshape(height, width, bands)


def scene(width: int, height: int, seed: int = 0, bands: int = 3) -> Pixels:
    """Gradients, edges and grain ``[height, width, bands]``: what resampling filters meet in photographs."""
    y, x = np.mgrid[0:height, 0:width].astype(np.int64)
    planes = (
        255 * x // max(1, width - 1),
        np.where((x // 13 + y // 7 + seed) % 2, 216, 38),
        abs((x + 2 * y + 37 * seed) % 510 - 255),
        255 * (x + y) // max(1, width + height - 2),
    )
    grain = noise(width, height, seed, bands).astype(np.int64) % 37 - 18
    picked = [planes[0]] if bands == 1 else [planes[1], planes[3]] if bands == 2 else list(planes[:bands])
    return np.clip(np.stack(picked, axis=-1) + grain, 0, 255).astype(np.uint8)


def picture(
    width: int, height: int, seed: int = 0, mode: str = "RGB", *, grain_only: bool = False
) -> PIL.Image.Image:
    """A seeded Pillow image; mode "P" has a palette of which index 0 is transparent."""
    make = noise if grain_only else scene
    if mode == "P":
        indices = make(width, height, seed, 1)[..., 0]
        image = PIL.Image.fromarray(indices).convert("P")
        image.putpalette(noise(256, 1, seed + 1).tobytes())
        image.info["transparency"] = 0
        return image
    samples = make(width, height, seed, _BANDS[mode])
    return PIL.Image.frombytes(mode, (width, height), samples.tobytes())


def encode(image: PIL.Image.Image, form: str = "PNG", **options: Any) -> bytes:
    """The image in a container; PNG, lossless, unless told otherwise."""
    out = io.BytesIO()
    if form == "PNG":
        options.setdefault("compress_level", 1)
    image.save(out, form, **options)
    return out.getvalue()


def png(width: int, height: int, seed: int = 0, mode: str = "RGB", *, grain_only: bool = False) -> bytes:
    """A seeded PNG."""
    return encode(picture(width, height, seed, mode, grain_only=grain_only))


def jpeg(
    width: int, height: int, seed: int = 0, mode: str = "RGB", quality: int = 90, **options: Any
) -> bytes:
    """A seeded JPEG."""
    return encode(picture(width, height, seed, mode), "JPEG", quality=quality, **options)


def oriented(image: PIL.Image.Image, orientation: int, form: str = "JPEG", **options: Any) -> bytes:
    """The image with an EXIF orientation."""
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    return encode(image, form, exif=exif.tobytes(), **options)


@dataclass(frozen=True)
class Spec:
    """One seeded PNG by its parameters."""

    width: int
    height: int
    seed: int = 0
    mode: str = "RGB"

    # Pixel values can be compared bit for bit.
    exact = True

    def data(self) -> bytes:
        return png(self.width, self.height, self.seed, self.mode)

    def __str__(self) -> str:
        return f"{self.width}x{self.height}-{self.mode}"


def sizes(count: int, seed: int, longest: int) -> list[tuple[int, int]]:
    """Seeded (width, height): a third uniform, a third logarithmic, a third thin strips."""
    rng = np.random.default_rng(seed)
    out = []
    for index in range(count):
        uniform = rng.integers(1, longest + 1, 2)
        if index % 3 == 0:
            width, height = uniform
        else:
            width, height = np.exp(rng.uniform(0, np.log(longest), 2)).round()
            if index % 3 == 2:
                height = 1 + int(height) % 40
                width = uniform[0]
                if rng.integers(2):
                    width, height = height, width
        out.append((int(width), int(height)))
    return out
