"""What Pillow makes of a file, under each policy."""

from __future__ import annotations

import io
import warnings

import numpy as np
from PIL import Image, ImageFile, ImageOps

WHITE = (255, 255, 255)


def opened(data: bytes) -> Image.Image:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = Image.open(io.BytesIO(data))
        image.load()
    return image


def has_transparency(image: Image.Image) -> bool:
    return "A" in image.getbands() or image.info.get("transparency") is not None


def over(image: Image.Image, colour: tuple[int, int, int] = WHITE) -> Image.Image:
    """Composited wherever there is transparency, as transformers' `convert_to_rgb` does."""
    if not has_transparency(image):
        return image.convert("RGB")
    background = Image.new("RGBA", image.size, (*colour, 255))
    return Image.alpha_composite(background, image.convert("RGBA")).convert("RGB")


def over_rgba(image: Image.Image) -> Image.Image:
    """vLLM's rule: only mode RGBA is composited, with `paste`."""
    if image.mode != "RGBA":
        return image.convert("RGB")
    background = Image.new("RGB", image.size, WHITE)
    background.paste(image, mask=image.split()[3])
    return background


def pixels(
    data: bytes, *, orient: bool = False, alpha: str = "drop", background: tuple[int, int, int] = WHITE
) -> np.ndarray:
    """The pixels [height, width, channels]; raises what Pillow raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = opened(data)
        if orient:
            image = ImageOps.exif_transpose(image)
        if alpha == "over":
            image = over(image, background)
        elif alpha == "over-rgba":
            image = over_rgba(image)
        elif alpha == "keep" and has_transparency(image):
            image = image.convert("RGBA")
        else:
            image = image.convert("RGB")
        return np.asarray(image)


def accepts(data: bytes) -> np.ndarray | None:
    """The pixels, or None where Pillow refuses the file."""
    try:
        return pixels(data)
    except Exception:  # Pillow raises errors of a dozen classes
        return None


def filled(data: bytes) -> np.ndarray:
    """The pixels of a file that may end early."""
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    try:
        return pixels(data)
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = False
