"""The native parts; use `mm_libtorch_encoder` and `mm_libtorch_encoder.preprocess`, not this module."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

_Pixels: TypeAlias = NDArray[np.uint8]
_Canvas: TypeAlias = tuple[int, int, int, int, int, int]
_Grid: TypeAlias = tuple[int, int, int]

__version__: str

class MediaError(ValueError): ...
class CheckpointError(ValueError): ...
class RuntimeMismatch(RuntimeError): ...
class EncoderClosed(RuntimeError): ...
class DeviceOutOfMemory(RuntimeError): ...

@final
class DecodePolicy:
    """What a decoder does where engines disagree; part of a result's identity."""

    def __new__(
        cls,
        *,
        orient: bool = False,
        alpha: str = "drop",
        background: tuple[int, int, int] = ...,
        sixteen: str = "pillow",
        truncated: str = "refuse",
        icc: str = "ignore",
    ) -> DecodePolicy: ...
    @staticmethod
    def preset(name: str) -> DecodePolicy:
        """The policy of that name: ``"pillow"``, ``"hf"``, ``"vllm"`` or ``"sglang"``."""
    def identity(self) -> str:
        """Equal for equal policies and stable between releases, for cache keys."""
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

def decode_image(
    data: bytes | bytearray | memoryview,
    policy: DecodePolicy | str | None = None,
    max_pixels: int | None = None,
) -> _Pixels: ...
def image_header(
    data: bytes | bytearray | memoryview,
    policy: DecodePolicy | str | None = None,
    max_pixels: int | None = None,
) -> tuple[str, int, int]: ...

@final
class Normalization:
    """From 8-bit levels to a tower's values: a table of 256 ``float32`` a channel, and padded samples."""

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

@final
class PixelRecipe:
    """All that turns an image into a tower's rows, but the canvas.

    ``frames`` copies of the image a patch; blocks of ``merge * merge`` patches stand together. ``samples`` is
    the order within a row: ``"channel-frame"`` ``[channel][frame][y][x]``, ``"frame-channel"``
    ``[frame][channel][y][x]`` or ``"channels-last"`` ``[frame][y][x][channel]``. ``dtype`` is ``"float32"``,
    ``"float16"`` or ``"bfloat16"``.
    """

    def __new__(
        cls,
        normalization: Normalization,
        patch: int,
        *,
        frames: int = 1,
        merge: int = 1,
        samples: str = "channel-frame",
        dtype: str = "float32",
        filter: str = "bicubic",
        arithmetic: str = "pillow",
    ) -> PixelRecipe: ...

def resize(
    image: _Pixels,
    width: int,
    height: int,
    filter: str = "bicubic",
    arithmetic: str = "pillow",
    *,
    bands: int = 1,
    level: str | None = None,
) -> NDArray[Any]: ...
def resize_batch(
    images: list[_Pixels],
    sizes: list[tuple[int, int]],
    filter: str = "bicubic",
    arithmetic: str = "pillow",
) -> list[NDArray[Any]]: ...
def prepare(
    image: _Pixels, recipe: PixelRecipe, canvas: _Canvas, *, bands: int = 1, level: str | None = None
) -> NDArray[Any]: ...
def prepare_batch(
    images: list[_Pixels], recipe: PixelRecipe, canvases: list[_Canvas]
) -> list[NDArray[Any]]: ...
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
def families() -> list[str]:
    """Names of the families of this build."""

def make_checkpoint(family: str, directory: Path, seed: int = 0) -> None:
    """Writes a small checkpoint with seeded random weights in a family's published layout to a new folder."""

@final
class Processor:
    """The preprocessing of one checkpoint's family."""

    def __new__(
        cls, checkpoint: Path, model: str = "", family: str | None = None, *, backend: str | None = None
    ) -> Processor: ...
    @property
    def family(self) -> str: ...
    def plan(self, width: int, height: int) -> tuple[_Grid, int]:
        """((frames, rows, columns) in patches, tokens) of an image of ``width`` x ``height`` pixels."""
    def plan_bytes(self, data: bytes) -> tuple[_Grid, int]:
        """The same for encoded bytes, read from their header alone."""
    def pixel_values(
        self, data: bytes, dtype: str = "float32"
    ) -> tuple[NDArray[np.float32] | NDArray[np.uint16], _Grid]:
        """(pixel values [patches, columns], grid); bfloat16 and float16 come as uint16 bits."""

def open_bridge(path: Path) -> None:
    """Opens the LibTorch bridge; ``import torch`` must have run. A second call is a no-op."""

def torch_version() -> tuple[int, int, int]: ...
def live_tensors() -> int:
    """Tensors that the library owns now; results that Python took do not count."""

def op_schemas() -> list[tuple[str, str, str]]:
    """(name, overload, schema) of every ATen operator that the bridge calls through the dispatcher."""

def set_plain_ops(plain: bool) -> None:
    """Composes every operator of plain ATen calls instead of the fused forms; for comparison."""

@final
class Encoding:
    """One item's result; ``id`` is for ``torch.ops.mm_libtorch_encoder.take``."""

    @property
    def id(self) -> int: ...
    @property
    def names(self) -> list[str]: ...
    @property
    def mm_hash(self) -> str: ...
    @property
    def embedding_offsets(self) -> list[int]: ...
    @property
    def grid_thws(self) -> list[_Grid]: ...
    @property
    def milliseconds(self) -> dict[str, float]: ...

@final
class Encoder:
    """The native side of `mm_libtorch_encoder.Encoder`."""

    def __new__(
        cls,
        checkpoint: Path,
        model: str,
        device: str,
        family: str | None = None,
        *,
        dtype: str | None = None,
        backend: str | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> Encoder: ...
    @property
    def family(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    def generate(self, items: list[bytes], expected: list[int] | None) -> list[Encoding | BaseException]: ...
    def encode_pixels(
        self, pixels: NDArray[np.float32] | NDArray[np.uint16], grid_thws: list[_Grid]
    ) -> Encoding | BaseException: ...
    def close(self) -> None: ...
