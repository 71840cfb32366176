from typing import Any

import numpy as np
from numpy.typing import NDArray

__version__: str

class MediaError(ValueError): ...
class CheckpointError(ValueError): ...
class RuntimeMismatch(RuntimeError): ...
class EncoderClosed(RuntimeError): ...
class DeviceOutOfMemory(RuntimeError): ...

def decode_image(data: bytes, policy: str, max_pixels: int | None) -> NDArray[np.uint8]: ...

class Normalization:
    """From 8-bit levels to a tower's values: one table of 256 ``float32`` a channel, and the values of padded samples."""

    @staticmethod
    def named(
        arithmetic: str,
        rescale_factor: float,
        mean: tuple[float, float, float],
        std: tuple[float, float, float],
    ) -> Normalization:
        """By arithmetic: ``"pil"`` and ``"torchvision"`` are transformers' backends.

        The other three take 1/255 as the factor: ``"divided"`` (level / 255, float32 steps), ``"multiplied"``
        (level * (1 / 255), float32 steps) and ``"double"`` (float64 steps, each rounded to float32).
        """
    @staticmethod
    def from_table(table: NDArray[np.float32], fill: tuple[float, float, float]) -> Normalization:
        """From ``float32 [3, 256]`` and three values of padded samples."""
    def with_fill_level(self, level: int) -> Normalization:
        """The same with padded samples of an 8-bit level (0 unless told otherwise)."""
    def with_fill(self, fill: tuple[float, float, float]) -> Normalization:
        """The same with padded samples of these values."""
    def table(self) -> NDArray[np.float32]:
        """A copy of the table, ``float32 [3, 256]``."""

class PixelRecipe:
    """All that turns an image into a tower's rows, but the canvas."""

    def __init__(
        self,
        normalization: Normalization,
        patch: int,
        *,
        frames: int = 1,
        merge: int = 1,
        samples: str = "channel-frame",
        dtype: str = "float32",
        filter: str = "bicubic",
        arithmetic: str = "pillow",
    ) -> None:
        """``frames`` copies of the image a patch; blocks of ``merge * merge`` patches stand together.

        ``samples`` is the order within a row: ``"channel-frame"`` ``[channel][frame][y][x]``, ``"frame-channel"``
        ``[frame][channel][y][x]`` or ``"channels-last"`` ``[frame][y][x][channel]``. ``dtype`` is ``"float32"``,
        ``"float16"`` or ``"bfloat16"``.
        """

Pixels = NDArray[np.uint8]
CanvasTuple = tuple[int, int, int, int, int, int]

def resize(
    image: Pixels,
    width: int,
    height: int,
    filter: str = "bicubic",
    arithmetic: str = "pillow",
    *,
    bands: int = 1,
    level: str | None = None,
) -> NDArray[Any]: ...
def resize_batch(
    images: list[Pixels], sizes: list[tuple[int, int]], filter: str = "bicubic", arithmetic: str = "pillow"
) -> list[NDArray[Any]]: ...
def prepare(
    image: Pixels, recipe: PixelRecipe, canvas: CanvasTuple, *, bands: int = 1, level: str | None = None
) -> NDArray[Any]: ...
def prepare_batch(images: list[Pixels], recipe: PixelRecipe, canvases: list[CanvasTuple]) -> list[NDArray[Any]]: ...
def smart_resize(
    height: int, width: int, factor: int, min_pixels: int, max_pixels: int, at_least_one: bool
) -> tuple[int, int]: ...
def scaled_dimensions(
    width: int, height: int, factor: float | None = None, cap: int | None = None
) -> tuple[int, int]: ...
def threads() -> int:
    """Threads on which bands and batches run."""

def set_threads(threads: int) -> None:
    """Sets the number of threads on which bands and batches run; calls under way finish on the old ones."""

def instruction_levels() -> list[str]:
    """Names of the instruction levels this machine can run, narrowest first."""

def content_hash(data: bytes) -> str: ...
def content_hash_u64(data: bytes) -> int: ...
def base64_encode(data: bytes) -> str: ...
def base64_decode(text: bytes) -> bytes: ...
