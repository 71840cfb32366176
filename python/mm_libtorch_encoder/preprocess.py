"""Image preprocessing on NumPy arrays: from encoded bytes to the rows that a vision tower reads.

Nothing here needs Torch. Images are C-contiguous ``uint8`` arrays ``[height, width, channels]`` with 1, 3 or
4 channels, or ``[height, width]``. Every function that touches pixels releases the GIL; do not write to an
array while a call reads it. Batch forms run on one pool of ``min(8, cores)`` threads (:func:`set_threads`).

A ``ValueError`` says what is wrong with an argument, and :class:`MediaError` (a ``ValueError`` too) what is
wrong with an item of media.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import _native
from ._native import DecodePolicy, MediaError, Normalization, instruction_levels, set_threads, threads
from ._native import PixelRecipe as Recipe

__all__ = [
    "Arithmetic",
    "Canvas",
    "DecodePolicy",
    "Filter",
    "MediaError",
    "Normalization",
    "Recipe",
    "base64_decode",
    "base64_encode",
    "content_hash",
    "content_hash_u64",
    "decode",
    "decode_audio",
    "decode_batch",
    "instruction_levels",
    "normalize",
    "patchify",
    "prepare",
    "prepare_batch",
    "resize",
    "resize_batch",
    "scaled_dimensions",
    "set_threads",
    "smart_resize",
    "threads",
]

Image = NDArray[np.uint8]
Buffer = bytes | bytearray | memoryview

Filter = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]

Arithmetic = Literal["pillow", "pillow-13.0", "pillow-12.2", "pillow-12.1", "torchvision", "aten-float32"]
"""Whose bits a resize reproduces.

``"pillow"`` follows the newest Pillow; ``"pillow-12.1"`` stands for all up to 12.1, ``"pillow-12.2"`` for
12.2 and 12.3 (they differ in which pass runs first). ``"torchvision"`` is its ``uint8`` path on the CPU
(nearest, bilinear, bicubic, lanczos; antialiased). ``"aten-float32"`` is Torch's antialiased interpolation of
``float32`` on the CPU (bilinear, bicubic); its result is ``float32`` on the scale of the levels, neither
rounded nor clamped.
"""


class Canvas(NamedTuple):
    """Where the resized content sits on the padded canvas, in pixels. The canvas is tiled by patches."""

    height: int
    width: int
    content_height: int
    content_width: int
    top: int = 0
    left: int = 0

    @classmethod
    def full(cls, height: int, width: int) -> Canvas:
        """A canvas that the content fills."""
        return cls(height, width, height, width)


def _image(array: NDArray[Any]) -> Image:
    array = np.asarray(array)
    if array.dtype != np.uint8:
        raise ValueError(f"an image array has the dtype uint8, not {array.dtype}")
    return np.ascontiguousarray(array)


def _count(name: str, value: int, least: int = 1) -> int:
    value = operator.index(value)
    if not least <= value < 1 << 31:
        raise ValueError(f"{name} is {value}: it must be at least {least} and less than {1 << 31}")
    return value


def _canvas(canvas: Sequence[int]) -> tuple[int, int, int, int, int, int]:
    if len(canvas) != 6:
        raise ValueError("a canvas is (height, width, content_height, content_width, top, left)")
    height, width, content_height, content_width, top, left = (
        _count("a canvas side", side, 0) for side in canvas
    )
    return height, width, content_height, content_width, top, left


def decode(data: Buffer, policy: str | DecodePolicy | None = None, max_pixels: int | None = None) -> Image:
    """Decodes an image to ``uint8 [height, width, 3]`` (4 where the policy keeps alpha).

    ``policy`` is a :class:`DecodePolicy` or the name of a preset: ``"pillow"`` (the default), ``"hf"``,
    ``"vllm"`` or ``"sglang"``. ``max_pixels`` sets the limit on width times height (134,217,728 unless told
    otherwise), which is checked against the header before any pixel is decoded. Raises :class:`MediaError`.
    """
    return _native.decode_image(data, policy, max_pixels)


def decode_audio(data: Buffer, sample_rate: int | None = None) -> tuple[NDArray[np.float32], int]:
    """Decodes WAV to ``float32 [samples]``, the mean of all channels, and its samples a second.

    PCM of 8, 16, 24 and 32 bits and floating point of 32 and 64; full scale is -1 to 1. With ``sample_rate`` it is
    resampled as torchaudio does by default. At most 300 seconds and 256 MiB. Raises :class:`MediaError`.
    """
    return _native.decode_audio(data, sample_rate)


def decode_batch(
    datas: Iterable[Buffer], policy: str | DecodePolicy | None = None, max_pixels: int | None = None
) -> list[Image]:
    """:func:`decode` of each item, one item a thread of the pool. An error names its item."""
    return _native.decode_batch([bytes(data) for data in datas], policy, max_pixels)


def resize(
    image: Image,
    width: int,
    height: int,
    filter: Filter = "bicubic",
    arithmetic: Arithmetic = "pillow",
    *,
    bands: int = 1,
) -> NDArray[Any]:
    """Resizes to ``[height, width, ...]``: ``uint8``, or ``float32`` for ``"aten-float32"``.

    Four channels are RGBA: Pillow's arithmetic filters them premultiplied, as Pillow does. ``bands`` above 1
    cuts the image into that many bands of rows that run on the pool; the result does not depend on it.
    """
    return _native.resize(
        _image(image),
        _count("width", width),
        _count("height", height),
        filter,
        arithmetic,
        bands=_count("bands", bands),
    )


def resize_batch(
    images: Iterable[Image],
    sizes: Iterable[tuple[int, int]],
    filter: Filter = "bicubic",
    arithmetic: Arithmetic = "pillow",
) -> list[NDArray[Any]]:
    """Resizes each image to its (width, height) in ``sizes``, one image a thread of the pool."""
    targets = [(_count("width", width), _count("height", height)) for width, height in sizes]
    return _native.resize_batch([_image(image) for image in images], targets, filter, arithmetic)


def scaled_dimensions(
    width: int, height: int, factor: float | None = None, cap: int | None = None
) -> tuple[int, int]:
    """The (width, height) after scaling both by ``factor``, rounded half up, at least 1.

    Enlarging stops where the longer side reaches ``cap``; a cap never shrinks, and needs a factor above 1.
    """
    if cap is not None:
        cap = _count("cap", cap)
    return _native.scaled_dimensions(_count("width", width), _count("height", height), factor, cap)


def smart_resize(
    height: int,
    width: int,
    factor: int = 28,
    min_pixels: int = 56 * 56,
    max_pixels: int = 14 * 14 * 4 * 1280,
    rule: Literal["transformers", "sglang"] = "transformers",
) -> tuple[int, int]:
    """Qwen-VL's target (height, width): multiples of ``factor``, ``min_pixels`` to ``max_pixels`` in all.

    The rules differ for a side shorter than half the factor: ``"transformers"`` rounds it to 0 before the
    bounds are applied, ``"sglang"`` to ``factor``. Raises :class:`MediaError` for an aspect ratio above 200.
    """
    if rule not in ("transformers", "sglang"):
        raise ValueError(f"rule {rule!r} is not known: use transformers or sglang")
    return _native.smart_resize(
        _count("height", height),
        _count("width", width),
        _count("factor", factor),
        operator.index(min_pixels),
        operator.index(max_pixels),
        rule == "sglang",
    )


def normalize(image: Image, normalization: Normalization) -> NDArray[np.float32]:
    """The ``float32`` values of an RGB image, ``[height, width, 3]``."""
    image = _image(image)
    if image.ndim != 3 or image.shape[2] != 3:
        raise ValueError(f"normalisation needs an RGB image [height, width, 3], not {list(image.shape)}")
    return normalization.table()[np.arange(3), image]


def patchify(image: Image, recipe: Recipe) -> NDArray[Any]:
    """Normalises an RGB image as it is and lays out its patches; its sides must be multiples of the patch."""
    height, width = image.shape[:2]
    return prepare(image, recipe, Canvas.full(height, width))


def prepare(image: Image, recipe: Recipe, canvas: Sequence[int], *, bands: int = 1) -> NDArray[Any]:
    """Resizes an RGB image to the content of ``canvas``, pads, normalises and lays out patches, in one pass.

    Returns ``[patches, 3 * frames * patch * patch]`` in the recipe's dtype. NumPy has no bfloat16: its bit
    patterns come as ``uint16`` (``torch.from_numpy(rows).view(torch.bfloat16)``). Content of zero height or
    width gives a canvas of padding alone. ``bands`` as in :func:`resize`.
    """
    return _native.prepare(_image(image), recipe, _canvas(canvas), bands=_count("bands", bands))


def prepare_batch(
    images: Iterable[Image], recipe: Recipe, canvases: Iterable[Sequence[int]]
) -> list[NDArray[Any]]:
    """:func:`prepare` of each image on its canvas, one image a thread of the pool."""
    return _native.prepare_batch(
        [_image(image) for image in images], recipe, [_canvas(canvas) for canvas in canvases]
    )


def content_hash(data: Buffer) -> str:
    """BLAKE3 of ``data``: 64 hexadecimal digits."""
    return _native.content_hash(bytes(data))


def content_hash_u64(data: Buffer) -> int:
    """The first eight bytes of BLAKE3 of ``data``, big-endian; too few for a key that outlives a process."""
    return _native.content_hash_u64(bytes(data))


def base64_encode(data: Buffer) -> str:
    """``data`` in base64: standard alphabet, padded."""
    return _native.base64_encode(bytes(data))


def base64_decode(text: str | Buffer) -> bytes:
    """Bytes of base64 text (either alphabet, padded or not, white space ignored) or of a data URL's payload.

    Raises :class:`MediaError`.
    """
    return _native.base64_decode(text.encode("utf-8", "replace") if isinstance(text, str) else bytes(text))
