"""The encoder: bytes of images or sound in, owning Torch tensors out."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from . import runtime

runtime.check()

import torch  # noqa: E402  (the host's Torch must fit before the bridge is opened)

from . import _native, event_loop  # noqa: E402
from . import device as devices  # noqa: E402
from .cache import CacheConfig  # noqa: E402
from .graphs import GraphConfig  # noqa: E402
from .result import ImageMetadata, ImageResult  # noqa: E402
from .stats import EncoderStats, Histogram  # noqa: E402

_native.open_bridge(Path(__file__).with_name("libmm_torch.so"))

_take: Callable[[int], list[Any]] = torch.ops.mm_libtorch_encoder.take.default
# One object for each call that waits for its results or takes them; the exit waits for them.
_calls: set[object] = set()
# Whether the exit waits for calls no longer.
_ended = False
_open_encoders: weakref.WeakSet[Encoder] = weakref.WeakSet()
# What can be expected of one image; far above any plan, and a number that native code can hold.
_MOST_TOKENS = 2**31 - 1
# Seconds that a call can be told to wait for room; far from where clocks end.
_LONGEST_TIMEOUT = 1e9
# How long the interpreter's exit waits for threads to come back from native code.
_LAST_CALLS_SECONDS = 10.0


class Encoder:
    """A checkpoint's tower, loaded once and used from any thread and event loop of this process.

    On CUDA a result may be read at once on the stream that was current at the call, and on the one that is current
    when the call returns or its task goes on behind `await`; and dropped while they read. Other streams wait for one
    of these, as with any tensor of Torch.

    checkpoint: folder with config.json, processor files and safetensors weights.
    model: the model's name, such as "zai-org/GLM-5.3-Flash"; results carry it.
    device: "cpu" or "cuda:N".
    family: the model family; None: as config.json shows.
    dtype: "float32", "bfloat16" or "float16"; None: the checkpoint's own.
    backend: preprocessing arithmetic, "torchvision", "pillow" (Pillow 13's pass order), "pillow-12.2" or
        "pillow-12.1"; None: what the family's reference uses.
    deepstack: how a tower with deepstack gives its levels: "separate", as the tensor "deepstack"
        [levels, tokens, columns] of encode_image, or "concatenated", as further columns of the embeddings,
        main columns first; None: separate. generate() gives the embeddings alone.
    decode_policy: what is done with orientation and alpha: "pillow" or "sglang" (neither is heeded), "hf" (oriented,
        alpha dropped) or "vllm" (RGBA images composited over white); None: as the family's reference does.
    attention: rounding of DeepSeek's attention: "fused", or "math" for what Torch up to 2.13 gives its own code, all
        in float32 and rounded once; None: fused.
    rescale: factor by which Inkling's images are scaled first; None: as the checkpoint says.
    stream_priority: below 0, the workers' CUDA streams have Torch's high priority; else its normal one. Torch has no
        others. The property stream_priority says which one they have.
    replicas_per_gpu: threads that run the tower at the same time, on one copy of the weights, 1 to 32. On the CPU
        they share Torch's compute threads.
    queue_depth, queue_tokens, queue_bytes: images that wait at once, their tokens, and the bytes of their files and
        patch matrices. A call that finds the queue full waits for room, or raises QueueFull after its timeout. An
        image larger than the whole queue waits until it is empty.
    max_batch_images, max_batch_tokens: images, and tokens, that share one run of the tower if they wait at the same
        time; nobody waits for a batch to fill. With 1 image, the default, a result cannot depend on its neighbours.
    cache: a CacheConfig, to keep finished results in host memory or on disk. All results are then CPU tensors, and
        those for the same image share memory: treat them as read-only. None: nothing is kept.
    cuda_graphs: a GraphConfig, to capture forwards that come often as CUDA graphs; None, or on the CPU: none.
    progress: called with (bytes read, bytes in all) while the weights load.

    Raises CheckpointError if the checkpoint does not fit, RuntimeMismatch if the host does not.
    """

    def __init__(
        self,
        checkpoint: str | bytes | os.PathLike[str] | os.PathLike[bytes],
        model: str,
        device: str = "cuda:0",
        family: str | None = None,
        *,
        dtype: str | torch.dtype | None = None,
        backend: str | None = None,
        deepstack: str | None = None,
        decode_policy: str | None = None,
        attention: str | None = None,
        rescale: float | None = None,
        stream_priority: int = 1,
        replicas_per_gpu: int = 1,
        queue_depth: int = 64,
        queue_tokens: int = 1 << 18,
        queue_bytes: int = 1 << 30,
        max_batch_images: int = 1,
        max_batch_tokens: int = 1 << 14,
        cache: CacheConfig | None = None,
        cuda_graphs: GraphConfig | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> None:
        if cache is not None and not isinstance(cache, CacheConfig):
            raise TypeError(f"cache must be a CacheConfig or None, not {type(cache).__name__}")
        if cuda_graphs is not None and not isinstance(cuda_graphs, GraphConfig):
            raise TypeError(f"cuda_graphs must be a GraphConfig or None, not {type(cuda_graphs).__name__}")
        self._model = model
        devices.prepare(str(device))
        self._native = _native.Encoder(
            Path(os.fsdecode(checkpoint)),
            model,
            str(device),
            family,
            dtype=None if dtype is None else str(dtype),
            backend=backend,
            deepstack=deepstack,
            decode_policy=decode_policy,
            attention=attention,
            rescale=rescale,
            stream_priority=_checked_priority(stream_priority),
            replicas_per_gpu=_checked_size("replicas_per_gpu", replicas_per_gpu),
            queue_depth=_checked_size("queue_depth", queue_depth),
            queue_tokens=_checked_size("queue_tokens", queue_tokens),
            queue_bytes=_checked_size("queue_bytes", queue_bytes),
            max_batch_images=_checked_size("max_batch_images", max_batch_images),
            max_batch_tokens=_checked_size("max_batch_tokens", max_batch_tokens),
            cache=None if cache is None else cache._fields(),
            runtime="" if cache is None else _torch_identity(str(device)),
            graphs=None if cuda_graphs is None else (cuda_graphs._fields(), devices.Pool),
            progress=progress,
        )
        _open_encoders.add(self)

    @property
    def model(self) -> str:
        """The model's name."""
        return self._model

    @property
    def family(self) -> str:
        """The model family."""
        return self._native.family

    @property
    def modality(self) -> str:
        """What the family reads: "image" or "audio"."""
        return self._native.modality

    @property
    def device(self) -> str:
        """Where the tower runs and the embeddings live."""
        return self._native.device

    @property
    def dtype(self) -> torch.dtype:
        """Element type of the tower and its embeddings."""
        return getattr(torch, self._native.dtype)

    @property
    def stream_priority(self) -> int:
        """The priority of the workers' CUDA streams: 0, or the device's highest, below 0. On the CPU 0."""
        return self._native.stream_priority

    @property
    def replicas_per_gpu(self) -> int:
        """Threads that run the tower."""
        return self._native.replicas

    def generate(
        self,
        images: bytes | Iterable[bytes],
        *,
        expected_tokens: Iterable[int] | None = None,
        return_errors: bool = False,
        timeout: float | None = None,
    ) -> list[ImageResult]:
        """Encode images, or sounds where the family reads sound, from their bytes into results in the same order.

        expected_tokens: one positive count an item; an item whose plan differs fails before any pixel or sample
            is touched.
        return_errors: put an item's exception in its place of the list instead of raising the first one. All
            items are encoded either way: a bad one fails alone.
        timeout: seconds that an item may wait for room in the queue, counted from the call; None: as long as it
            takes. Items that found room are encoded, however long that takes.

        Items are prepared on a pool of threads while the tower runs earlier ones.

        Raises MediaError for a damaged or refused item, QueueFull, and EncoderClosed after close().
        """
        sources, counts = _checked_images(images, expected_tokens)
        consumer = devices.Consumer(self.device)
        with _counted():
            outcomes = self._native.generate(sources, counts, _checked_timeout(timeout))
            return self._results(outcomes, return_errors, consumer)

    async def generate_async(
        self,
        images: bytes | Iterable[bytes],
        *,
        expected_tokens: Iterable[int] | None = None,
        return_errors: bool = False,
        timeout: float | None = None,
    ) -> list[ImageResult]:
        """generate(), awaited. No thread waits for it.

        Cancelling the task takes its images out of the queue; one that is in preprocessing or in the tower already
        ends there, and its result is freed.
        """
        sources, counts = _checked_images(images, expected_tokens)
        consumer = devices.Consumer(self.device)
        outcomes = await event_loop.outcomes(self._native, sources, counts, _checked_timeout(timeout))
        with _counted():
            return self._results(outcomes, return_errors, consumer)

    def encode_image(self, data: bytes, *, timeout: float | None = None) -> dict[str, torch.Tensor]:
        """The tower's outputs for one image, by name.

        "embeddings": [tokens, columns]; "grid_thws": int64 [1, 3]; "embedding_offsets": int64 [2]; and what
        else the family's tower gives. timeout: as of generate().
        """
        return self._encode(data, "image", timeout)

    async def encode_image_async(
        self, data: bytes, *, timeout: float | None = None
    ) -> dict[str, torch.Tensor]:
        """encode_image(), awaited, as generate_async() is."""
        return await self._encode_async(data, "image", timeout)

    def encode_audio(self, data: bytes, *, timeout: float | None = None) -> dict[str, torch.Tensor]:
        """The tower's outputs for one sound (WAV), by name, of a family that reads sound.

        "embeddings": [tokens, columns]; "embedding_offsets": int64 [2]; "grid_thws": int64 [0, 3], for a sound has
        no grid. timeout: as of generate().
        """
        return self._encode(data, "audio", timeout)

    async def encode_audio_async(
        self, data: bytes, *, timeout: float | None = None
    ) -> dict[str, torch.Tensor]:
        """encode_audio(), awaited, as generate_async() is."""
        return await self._encode_async(data, "audio", timeout)

    def _check_modality(self, modality: str) -> None:
        if self.modality != modality:
            raise ValueError(f"the family {self.family} reads {self.modality}, not {modality}")

    def _encode(self, data: bytes, modality: str, timeout: float | None) -> dict[str, torch.Tensor]:
        self._check_modality(modality)
        consumer = devices.Consumer(self.device)
        with _counted():
            (outcome,) = self._native.generate([_as_bytes(data)], None, _checked_timeout(timeout))
            return self._outputs(outcome, consumer)

    async def _encode_async(
        self, data: bytes, modality: str, timeout: float | None
    ) -> dict[str, torch.Tensor]:
        self._check_modality(modality)
        sources = [_as_bytes(data)]
        consumer = devices.Consumer(self.device)
        (outcome,) = await event_loop.outcomes(self._native, sources, None, _checked_timeout(timeout))
        with _counted():
            return self._outputs(outcome, consumer)

    def encode_pixels(
        self,
        pixel_values: torch.Tensor,
        grid_thws: Sequence[tuple[int, int, int]],
        *,
        timeout: float | None = None,
    ) -> dict[str, torch.Tensor]:
        """The tower's outputs for an input matrix prepared elsewhere.

        pixel_values: [patches, columns] on the CPU, cast to the tower's dtype if need be; of sound the samples,
            [tokens, samples of a token], the last token filled up with zeros.
        grid_thws: (frames, rows, columns) of each item, in patches; (tokens, 1, 1) of a sound.
        timeout: as of generate().
        """
        matrix = pixel_values.detach().to("cpu", self.dtype).contiguous()
        if matrix.dtype != torch.float32:
            matrix = matrix.view(torch.uint16)
        grids = [_checked_grid(grid) for grid in grid_thws]
        consumer = devices.Consumer(self.device)
        with _counted():
            outcome = self._native.encode_pixels(matrix.numpy(), grids, _checked_timeout(timeout))
            return self._outputs(outcome, consumer)

    def warmup(self, sizes: Iterable[tuple[int, int]]) -> None:
        """Run a blank image of each (width, height) on every replica, so that no request pays for the first touch.

        With cuda_graphs, the forward of each size is captured.

        Beside the queue and its bounds; returns when all have run. Raises ValueError where the family reads sound:
        encode one of the usual length instead.
        """
        self._native.warmup([_checked_image_size(size) for size in sizes])

    def stats(self) -> EncoderStats:
        """Lengths of the queue now, outcomes since the opening, and histograms of the time in each stage."""
        counts = self._native.stats()
        bounds = tuple(self._native.bucket_bounds())
        stages = {
            name: Histogram(bounds, tuple(buckets), total)
            for name, (total, buckets) in counts.pop("stages").items()
        }
        return EncoderStats(stages=stages, **counts)

    def cache_stats(self) -> dict[str, int]:
        """Counts of the cache since the opening, and what it holds; zeros where there is none.

        "memory_hits", "disk_hits", "misses" (computed) and "joins" (waited for another's computation of the same
        image) count every request that gets a result once. "bypasses": results that were returned and not kept.
        "errors": entries on disk that were damaged, and reads and writes that failed. "memory_bytes", "disk_bytes":
        what entries take now.
        "live_cpu_bytes_process": memory of results of all caches of this process that anything still uses.
        """
        return self._native.cache_stats()

    def _results(
        self,
        outcomes: list[_native.Encoding | BaseException],
        return_errors: bool,
        consumer: devices.Consumer,
    ) -> list[ImageResult]:
        results: list[Any] = []
        for index, outcome in enumerate(outcomes):
            if not isinstance(outcome, BaseException):
                results.append(self._result(outcome, consumer))
            elif return_errors:
                results.append(outcome)
            else:
                if len(outcomes) > 1:
                    outcome.add_note(f"This is {self.modality} {index} of {len(outcomes)}, counted from 0.")
                raise outcome
        return results

    def _outputs(
        self, encoding: _native.Encoding | BaseException, consumer: devices.Consumer
    ) -> dict[str, torch.Tensor]:
        if isinstance(encoding, BaseException):
            raise encoding
        outputs = dict(zip(encoding.names, consumer.receive(encoding, _taken(encoding)), strict=True))
        # Named, because a host may have set another default device.
        integers = partial(torch.tensor, dtype=torch.int64, device="cpu")
        outputs["grid_thws"] = integers(encoding.grid_thws).reshape(-1, 3)
        outputs["embedding_offsets"] = integers(encoding.embedding_offsets)
        return outputs

    def _result(self, encoding: _native.Encoding, consumer: devices.Consumer) -> ImageResult:
        tensor = consumer.receive(encoding, _taken(encoding))[0]
        metadata = ImageMetadata(
            model=self._model,
            mm_hash=encoding.mm_hash,
            length=tensor.shape[0],
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype),
            device=str(tensor.device),
            strides=tensor.stride(),
            embedding_offsets=tuple(encoding.embedding_offsets),
            grid_thws=tuple(encoding.grid_thws),
        )
        return ImageResult(tensor, metadata)

    def close(self) -> None:
        """Let the images in the queue finish, then free the weights. Returned tensors stay. Again: a no-op.

        Images that still wait for room in the queue meet EncoderClosed.
        """
        self._native.close()
        _open_encoders.discard(self)

    async def close_async(self) -> None:
        """close(), on a thread of the loop's executor. Cancelling the task does not stop it."""
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    def __enter__(self) -> Encoder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Encoder:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close_async()


def _checked_images(
    images: bytes | Iterable[bytes], expected: Iterable[int] | None
) -> tuple[list[bytes], list[int] | None]:
    sources = [_as_bytes(image) for image in ([images] if _is_bytes(images) else images)]
    return sources, None if expected is None else _checked_counts(expected, len(sources))


def _torch_identity(device: str) -> str:
    """What of the host's Torch and of `device` decides the bits of a result."""
    facts: list[object] = [
        torch.__version__,
        torch.version.git_version,
        torch.version.cuda,
        torch.backends.cpu.get_cpu_capability(),
        torch.get_float32_matmul_precision(),
    ]
    if device.startswith("cuda") and torch.cuda.is_available():
        facts += [torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)]
    return " ".join(map(str, facts))


def _is_bytes(images: object) -> bool:
    return isinstance(images, (bytes, bytearray, memoryview))


def _as_bytes(image: object) -> bytes:
    if isinstance(image, bytes):
        return image
    if isinstance(image, (bytearray, memoryview)):
        return bytes(image)
    raise TypeError(f"an item must be given as bytes, not {type(image).__name__}")


def _checked_grid(grid: Sequence[int]) -> tuple[int, int, int]:
    frames, rows, columns = map(int, grid)
    if not all(0 < side < 2**32 for side in (frames, rows, columns)):
        raise ValueError(f"a grid of {frames}x{rows}x{columns} patches: all three must be from 1 to 2^32 - 1")
    return frames, rows, columns


def _checked_size(name: str, value: int) -> int:
    if type(value) is not int or not 0 < value < 2**63:
        raise ValueError(f"{name} must be a positive integer, not {value!r}")
    return value


def _checked_priority(priority: int) -> int:
    if type(priority) is not int or not -(2**31) <= priority < 2**31:
        raise ValueError(f"stream_priority must be an integer, not {priority!r}")
    return priority


def _checked_image_size(size: tuple[int, int]) -> tuple[int, int]:
    width, height = size
    if not all(type(side) is int and 0 < side < 2**32 for side in (width, height)):
        raise ValueError(f"a size of {width!r}x{height!r} pixels: both must be integers from 1 to 2^32 - 1")
    return width, height


def _checked_timeout(timeout: float | None) -> float | None:
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout must be a number of seconds or None, not {type(timeout).__name__}")
    if not 0 <= timeout <= _LONGEST_TIMEOUT:
        raise ValueError(f"timeout is {timeout}: it must be from 0 to {_LONGEST_TIMEOUT:.0f} seconds")
    return float(timeout)


def _checked_counts(counts: Iterable[int], items: int) -> list[int]:
    checked = list(counts)
    if len(checked) != items:
        raise ValueError(f"expected_tokens has {len(checked)} counts for {items} items: give one an item")
    for count in checked:
        if type(count) is not int or not 0 < count <= _MOST_TOKENS:
            raise ValueError(f"expected_tokens must hold integers from 1 to {_MOST_TOKENS}, not {count!r}")
    return checked


@contextmanager
def _counted() -> Iterator[None]:
    """Counts a call to its end: taking a result passes through LibTorch, which lets go of the GIL.

    An asynchronous call counts from its answer on: before, its loop may be one that nobody runs any more, and the exit
    would wait for it in vain.
    """
    call = object()
    _calls.add(call)
    try:
        yield
    finally:
        _calls.discard(call)


def _taken(encoding: _native.Encoding) -> list[Any]:
    """The tensors, once, of a call that is counted: the exit waits for it, or it is refused here."""
    if _ended and threading.current_thread() is not threading.main_thread():
        raise _native.EncoderClosed("the interpreter is about to end: no result can be taken any more")
    return _take(encoding.id)


@atexit.register
def _close_all() -> None:
    """At interpreter exit, before LibTorch is torn down, no worker may be inside it."""
    global _ended
    closed: list[Encoder] = []
    for encoder in list(_open_encoders):
        try:
            encoder.close()
            closed.append(encoder)
        except RuntimeError:
            # A forked child: the parent's encoder is not its to close.
            continue
    # All calls have their answers now. A daemon thread that were still in native code when the interpreter ends would
    # be torn out of it, which ends the process by a signal.
    end = time.monotonic() + _LAST_CALLS_SECONDS
    while (_calls or any(encoder._native.calls for encoder in closed)) and time.monotonic() < end:
        time.sleep(0.001)
    # An event loop on a daemon thread may still find an answer. What it counted before this is waited for.
    _ended = True
    while _calls and time.monotonic() < end:
        time.sleep(0.001)
