"""The extension module: what `mm_libtorch_encoder` and its `preprocess`, which you should use, stand on."""

import os
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "CheckpointError",
    "DecodePolicy",
    "DeviceOutOfMemory",
    "Encoder",
    "EncoderClosed",
    "Encoding",
    "Mailbox",
    "MediaError",
    "Normalization",
    "PixelRecipe",
    "Processor",
    "QueueFull",
    "Requests",
    "RuntimeMismatch",
    "__version__",
    "base64_decode",
    "base64_encode",
    "check_cache",
    "check_graphs",
    "content_hash",
    "content_hash_u64",
    "cuda_device",
    "cuda_kernels",
    "decode_audio",
    "decode_batch",
    "decode_image",
    "families",
    "image_header",
    "instruction_levels",
    "kernel_level",
    "live_tensors",
    "make_checkpoint",
    "op_schemas",
    "open_bridge",
    "open_cuda",
    "prepare",
    "prepare_batch",
    "resize",
    "resize_batch",
    "scaled_dimensions",
    "set_cuda_kernels",
    "set_plain_ops",
    "set_threads",
    "smart_resize",
    "threads",
    "torch_version",
]

__version__: str

class MediaError(ValueError):
    """A media item is damaged, unsupported or over a limit."""

class CheckpointError(ValueError):
    """A checkpoint is missing parts, contradictory or unsupported."""

class RuntimeMismatch(RuntimeError):
    """The host's Torch does not fit this build."""

class EncoderClosed(RuntimeError):
    """The encoder was closed or belongs to another process."""

class QueueFull(RuntimeError):
    """The queue stayed full for as long as the call would wait."""

class DeviceOutOfMemory(RuntimeError):
    """The device or host ran out of memory."""

# Decoding

@final
class DecodePolicy:
    """What a decoder does where engines disagree; part of a result's identity.

    orient: apply the EXIF orientation.
    alpha: "drop", "over" (any transparency over `background`), "over-rgba" (only mode RGBA) or "keep".
    sixteen: 16-bit samples as "pillow" reads them, or "scale"d.
    truncated: "refuse" a file that ends early, or "fill" its missing part.
    icc: "ignore" colour profiles, or convert to "srgb".

    ValueError for another value.
    """

    def __new__(
        cls,
        *,
        orient: bool = False,
        alpha: str = "drop",
        background: Sequence[int] = ...,
        sixteen: str = "pillow",
        truncated: str = "refuse",
        icc: str = "ignore",
    ) -> DecodePolicy: ...
    @staticmethod
    def preset(name: str) -> DecodePolicy:
        """The policy "pillow" (the default), "hf", "vllm" or "sglang"; ValueError for another name."""
    def identity(self) -> str:
        """A text that is equal for equal policies and stable between releases, for cache keys."""
    def __eq__(self, value: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

def decode_image(
    data: bytes | bytearray | memoryview,
    policy: str | DecodePolicy | None = None,
    max_pixels: int | None = None,
) -> NDArray[np.uint8]:
    """``uint8 [height, width, 3]``, 4 channels where the policy keeps alpha. Raises MediaError."""

def image_header(
    data: bytes | bytearray | memoryview,
    policy: str | DecodePolicy | None = None,
    max_pixels: int | None = None,
) -> tuple[str, int, int]:
    """(format, width, height) from the header, the policy's orientation included. Raises MediaError."""

def decode_batch(
    datas: list[bytes], policy: str | DecodePolicy | None = None, max_pixels: int | None = None
) -> list[NDArray[np.uint8]]:
    """`preprocess.decode_batch`."""

def decode_audio(
    data: bytes | bytearray | memoryview, sample_rate: int | None = None
) -> tuple[NDArray[np.float32], int]:
    """`preprocess.decode_audio`. Raises MediaError."""

# Pixels: `preprocess` holds the documented forms.

_Pixels = NDArray[np.uint8]
_CanvasTuple = tuple[int, int, int, int, int, int]

@final
class Normalization:
    """From 8-bit levels to a tower's values: 256 ``float32`` a channel, and the values of padded samples."""

    @staticmethod
    def named(
        arithmetic: str,
        rescale_factor: float,
        mean: Sequence[float],
        std: Sequence[float],
    ) -> Normalization:
        """By arithmetic: ``"pil"`` and ``"torchvision"`` are transformers' backends.

        The other three take 1/255 as the factor: ``"divided"`` (level / 255, float32 steps), ``"multiplied"``
        (level * (1 / 255), float32 steps) and ``"double"`` (float64 steps, each rounded to float32).
        """
    @staticmethod
    def from_table(table: NDArray[np.float32], fill: Sequence[float]) -> Normalization:
        """From ``float32 [3, 256]`` and three values of padded samples."""
    def with_fill_level(self, level: int) -> Normalization:
        """The same with padded samples of an 8-bit level (0 unless told otherwise)."""
    def with_fill(self, fill: Sequence[float]) -> Normalization:
        """The same with padded samples of these three values."""
    def table(self) -> NDArray[np.float32]:
        """A copy of the table, ``float32 [3, 256]``."""

@final
class PixelRecipe:
    """All that turns an image into a tower's rows, but the canvas.

    ``frames`` copies of the image a patch; blocks of ``merge * merge`` patches stand together.
    ``samples`` is the order within a row: ``"channel-frame"`` ``[channel][frame][y][x]``, ``"frame-channel"``
    ``[frame][channel][y][x]`` or ``"channels-last"`` ``[frame][y][x][channel]``.
    ``dtype`` is ``"float32"``, ``"float16"`` or ``"bfloat16"``.

    Raises ValueError for a ``patch`` above 256, more than 16 ``frames``, and names that are not known.
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
) -> NDArray[Any]:
    """`preprocess.resize`; ``level`` caps the instruction level, for tests."""

def resize_batch(
    images: list[_Pixels], sizes: list[tuple[int, int]], filter: str = "bicubic", arithmetic: str = "pillow"
) -> list[NDArray[Any]]:
    """`preprocess.resize_batch`."""

def prepare(
    image: _Pixels, recipe: PixelRecipe, canvas: _CanvasTuple, *, bands: int = 1, level: str | None = None
) -> NDArray[Any]:
    """`preprocess.prepare`; ``level`` caps the instruction level, for tests."""

def prepare_batch(
    images: list[_Pixels], recipe: PixelRecipe, canvases: list[_CanvasTuple]
) -> list[NDArray[Any]]:
    """`preprocess.prepare_batch`."""

def smart_resize(
    height: int, width: int, factor: int, min_pixels: int, max_pixels: int, at_least_one: bool
) -> tuple[int, int]:
    """`preprocess.smart_resize`; ``at_least_one`` is sglang's rule."""

def scaled_dimensions(
    width: int, height: int, factor: float | None = None, cap: int | None = None
) -> tuple[int, int]:
    """`preprocess.scaled_dimensions`."""

def threads() -> int:
    """Threads on which bands and batches run."""

def set_threads(threads: int) -> None:
    """Sets the number of threads on which bands and batches run; calls under way finish on the old ones."""

def instruction_levels() -> list[str]:
    """Names of the instruction levels this machine can run, narrowest first."""

# Media

def content_hash(data: bytes) -> str:
    """BLAKE3: 64 hexadecimal digits."""

def content_hash_u64(data: bytes) -> int:
    """The first eight bytes of BLAKE3, read big-endian."""

def base64_encode(data: bytes) -> str:
    """Standard alphabet, padded."""

def base64_decode(text: bytes) -> bytes:
    """Bytes of base64 text or of a data URL. Raises MediaError."""

# Families

def families() -> list[tuple[str, list[str], list[str], str]]:
    """(name, model_type values, architectures, modality) of the families of this build."""

def make_checkpoint(
    family: str, directory: str | os.PathLike[str], seed: int = 0, files: dict[str, str] | None = None
) -> None:
    """Writes a small checkpoint, in the family's published layout with random weights, into a new folder.

    family: a family, or "kimi_k25" for the older layout of kimi.
    files: texts that replace the configuration files of these names, for towers of another size.
    """

@final
class Processor:
    """The preprocessing of one checkpoint's family. Raises CheckpointError; its methods raise MediaError."""

    def __new__(
        cls,
        checkpoint: str | os.PathLike[str],
        model: str = "",
        family: str | None = None,
        *,
        backend: str | None = None,
        decode_policy: str | None = None,
        rescale: float | None = None,
    ) -> Processor: ...
    @property
    def family(self) -> str:
        """Name of the family."""
    @property
    def modality(self) -> str:
        """What the family reads: "image" or "audio". The methods of the other kind raise ValueError."""
    def plan(self, width: int, height: int) -> tuple[tuple[int, int, int], int]:
        """((frames, rows, columns) in patches, tokens) of an image of this size in pixels."""
    def plan_sound(self, samples: int, rate: int) -> int:
        """Tokens of a sound of so many samples (of each channel) at `rate` hertz."""
    def plan_bytes(self, data: bytes) -> tuple[tuple[int, int, int], int]:
        """Grid and tokens of encoded bytes, read from their header alone; a sound has (tokens, 1, 1)."""
    def outline(self, data: bytes) -> tuple[tuple[int, int], _CanvasTuple, tuple[int, int, int], int]:
        """((width, height), canvas, (frames, rows, columns), tokens) of encoded bytes, from the header alone.

        The size is that after orientation; the canvas has the order of `preprocess.Canvas`.
        """
    def token_grid(self, grid: tuple[int, int, int]) -> tuple[int, int, int, int, int] | None:
        """Where the rows of the embeddings of (frames, rows, columns) stand; None where they are no raster.

        (patches of a token's side, lines, tokens of a line, row of the first token, rows from line to line).
        """
    def decode(self, data: bytes) -> NDArray[np.uint8]:
        """``uint8 [height, width, 3]``, decoded by the family's policy."""
    def pixel_values(self, data: bytes, dtype: str = "float32") -> tuple[NDArray[Any], tuple[int, int, int]]:
        """([patches, columns], (frames, rows, columns)), of a sound (tokens, 1, 1).

        bfloat16 and float16 come as ``uint16`` bits.
        """

# LibTorch: `open_bridge` comes first; the other functions raise RuntimeError before it.

def open_bridge(path: str | os.PathLike[str]) -> None:
    """Opens the bridge; `import torch` must have run. A second call is a no-op. Raises RuntimeMismatch."""

def torch_version() -> tuple[int, int, int]:
    """(major, minor, patch) of the running LibTorch."""

def live_tensors() -> int:
    """Tensors that the library owns at this moment; of results that Python took, those alone whose memory is shared."""

def op_schemas() -> list[tuple[str, str, str]]:
    """(name, overload, schema) of every ATen operator that the bridge calls through the dispatcher."""

def kernel_level() -> str:
    """Instruction set of the fused CPU kernels: "base", "avx2" or "avx512"."""

def set_plain_ops(plain: bool) -> None:
    """Composes every operator of plain ATen calls instead of the fused forms; for comparison."""

def check_cache(
    memory_bytes: int, disk_path: str | os.PathLike[str] | None, disk_bytes: int, max_entry_bytes: int
) -> None:
    """Raises ValueError for settings of a cache that cannot work."""

def check_graphs(min_hits: int, max_graphs: int, max_tokens: int, max_bytes: int) -> None:
    """Raises ValueError for numbers out of their range."""

# CUDA

def open_cuda(path: str | os.PathLike[str]) -> None:
    """Opens libmm_cuda.so; the bridge must be open. A second call is a no-op. RuntimeMismatch if it does not load."""

def cuda_device(index: int) -> dict[str, Any]:
    """ "name", "capability" and "driver" (two numbers each) and "memory" in bytes of a CUDA device.

    RuntimeMismatch says why it cannot be used.
    """

def cuda_kernels() -> list[tuple[str, bool, str | None]]:
    """The CUDA library's parts: name, whether it is in use, why the check on a device switched it off."""

def set_cuda_kernels(names: list[str]) -> None:
    """Uses exactly these parts of the CUDA library from now on; plain operators serve for the others."""

@final
class Encoder:
    """The native side of `mm_libtorch_encoder.Encoder`."""

    def __new__(
        cls,
        checkpoint: str | os.PathLike[str],
        model: str,
        device: str,
        family: str | None = None,
        *,
        dtype: str | None = None,
        backend: str | None = None,
        deepstack: str | None = None,
        decode_policy: str | None = None,
        attention: str | None = None,
        rescale: float | None = None,
        stream_priority: int | None = None,
        replicas_per_gpu: int | None = None,
        queue_depth: int | None = None,
        queue_tokens: int | None = None,
        queue_bytes: int | None = None,
        max_batch_images: int | None = None,
        max_batch_tokens: int | None = None,
        cache: tuple[int, os.PathLike[str] | None, int, int] | None = None,
        runtime: str = "",
        graphs: tuple[tuple[int, int, int, int], Callable[[int], object]] | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> Encoder: ...
    def cache_stats(self) -> dict[str, int]:
        """Counts of the cache by name; zeros where there is none."""
    @property
    def family(self) -> str:
        """Name of the family."""
    @property
    def modality(self) -> str:
        """What the family reads: "image" or "audio"."""
    @property
    def device(self) -> str:
        """Where the tower runs."""
    @property
    def dtype(self) -> str:
        """Element type of the tower, such as "bfloat16"."""
    @property
    def stream_priority(self) -> int:
        """The priority of the workers' streams."""
    @property
    def replicas(self) -> int:
        """Threads that run the tower."""
    @property
    def calls(self) -> int:
        """Calls that are in native code now."""
    def generate(
        self, items: Sequence[bytes], expected: Sequence[int] | None, timeout: float | None = None
    ) -> list[Encoding | BaseException]:
        """Encodes every item; each place holds an Encoding or the exception of that item alone.

        An item that finds no room in the queue for `timeout` seconds fails with QueueFull; None: it waits.
        """
    def submit(
        self, items: Sequence[bytes], expected: Sequence[int] | None, mailbox: Mailbox, token: int
    ) -> Requests:
        """Queues every item and returns at once; `mailbox` receives `token` when all are answered."""
    def encode_pixels(
        self, pixels: NDArray[Any], grid_thws: Sequence[tuple[int, int, int]], timeout: float | None = None
    ) -> Encoding | BaseException:
        """Encodes a patch matrix that the caller prepared; bfloat16 and float16 come as ``uint16`` bits."""
    def warmup(self, sizes: Sequence[tuple[int, int]]) -> None:
        """Runs a blank image of each (width, height) on every replica."""
    def stats(self) -> dict[str, Any]:
        """Counts and lengths by name, and under "stages" (seconds in all, items in each bucket) of each stage."""
    @staticmethod
    def bucket_bounds() -> list[float]:
        """Upper bounds of the buckets of `stats`, in seconds; the last bucket has none."""
    def close(self) -> None:
        """Finishes what the queue let in and frees the weights. A second call is a no-op."""

@final
class Mailbox:
    """Finished requests of one event loop, by their tokens."""

    def __new__(cls) -> Mailbox: ...
    def fileno(self) -> int:
        """The file descriptor that is readable while tokens wait."""
    def drain(self) -> list[int]:
        """Takes out all tokens, in the order of their ends. Never blocks."""

@final
class Requests:
    """The requests of one asynchronous call."""

    def results(self) -> list[Encoding | BaseException]:
        """The outcomes in order, once all are there: an Encoding, or the exception of that item alone."""
    def expire(self) -> None:
        """Refuses those that still wait for room in the queue."""
    def cancel(self) -> None:
        """Takes all that have not begun out of the queue and frees the answers of the others."""

@final
class Encoding:
    """One item's result, until `torch.ops.mm_libtorch_encoder.take` takes its tensors."""

    @property
    def id(self) -> int:
        """What `take` is called with, once."""
    @property
    def names(self) -> list[str]:
        """Names of the tensors that `take` gives, "embeddings" first."""
    @property
    def mm_hash(self) -> str:
        """Identity of source bytes, model and choices; empty for prepared pixels."""
    @property
    def embedding_offsets(self) -> list[int]:
        """First row of each grid's embeddings, and one past the last."""
    @property
    def grid_thws(self) -> list[tuple[int, int, int]]:
        """(frames, rows, columns) of each grid, in patches; none for sound."""
    @property
    def fenced(self) -> bool:
        """Whether a stream has to wait for the result: not on the CPU, nor where a cache has it in host memory."""
    def precede(self, stream: int) -> None:
        """Makes Torch's CUDA stream `stream` wait for the result; a no-op on the CPU."""
    @property
    def milliseconds(self) -> dict[str, float]:
        """Time in each stage: "wait", "decode", "resize", "queue", "forward" and "transfer"."""
