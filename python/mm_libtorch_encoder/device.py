"""What a device needs before an encoder can run on it: for CUDA, the library beside this file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from . import _native, runtime

CUDA_LIBRARY = "libmm_cuda.so"
# Memory of deleted pools that Torch's allocator keeps, at most.
_MOST_IDLE_BYTES = 1 << 30
# What has more digits is no device; the native side says so.
_CUDA = re.compile(r"cuda(:\d{1,9})?", re.ASCII)


def prepare(device: str) -> None:
    """Opens the CUDA library if `device` is a CUDA device, else does nothing.

    Raises RuntimeMismatch with one sentence where the library is missing or does not fit this Torch. Whether the
    host has a driver and such a GPU is asked when the encoder opens.
    """
    if not _CUDA.fullmatch(device):
        return
    sentence = problem()
    if sentence:
        raise _native.RuntimeMismatch(f'device "{device}" {sentence}')
    _native.open_cuda(_library())


def problem() -> str | None:
    """What keeps this installation's library from being opened, as `obstacle` says it."""
    record = runtime.manifest()
    return obstacle(
        has_library=_library().is_file(),
        built_for=record["cuda"] if record else None,
        checkout=record is None,
        torch_version=str(torch.__version__),
        torch_cuda=torch.version.cuda,
    )


def obstacle(
    *, has_library: bool, built_for: str | None, checkout: bool, torch_version: str, torch_cuda: str | None
) -> str | None:
    """What keeps the library from being opened, as the rest of a sentence; None: nothing.

    built_for: the CUDA version in the wheel's record; None where there is none.
    checkout: is this a source checkout, which has no record?
    """
    if torch_cuda is None:
        return (
            f"needs a Torch that was built with CUDA, and this one, {torch_version}, is for the CPU alone: "
            'use device="cpu", or install a CUDA build of Torch.'
        )
    if not has_library:
        remedy = (
            "`python -m tools.cuda` builds it"
            if checkout
            else f"install a wheel whose runtime key has {runtime.device_token(torch_cuda, False)}"
        )
        return f'needs the CUDA library {CUDA_LIBRARY}, which is not here: {remedy}, or use device="cpu".'
    wheel, host = runtime.numbers(built_for)[:1], runtime.numbers(torch_cuda)[:1]
    if wheel and wheel != host:
        return (
            f"needs CUDA {wheel[0]}, for which {CUDA_LIBRARY} was built, and this Torch, {torch_version}, has CUDA "
            f"{torch_cuda}: install a wheel whose runtime key has {runtime.device_token(torch_cuda, False)}."
        )
    return None


class Consumer:
    """The CUDA streams on which a caller reads its results; of a CPU encoder none.

    Made at the call: a task of an event loop may meet another current stream behind its `await`.
    """

    def __init__(self, device: str) -> None:
        self._device = device if device.startswith("cuda") else None
        self._asked: Any = None if self._device is None else _current_stream(self._device)

    def receive(self, encoding: _native.Encoding, tensors: list[Any]) -> list[Any]:
        """Makes the caller's streams wait for the result and lets its memory live until they have read it."""
        if self._device is None or not encoding.fenced:
            return tensors
        now = _current_stream(self._device)
        for stream in [now] if now == self._asked else [self._asked, now]:
            encoding.precede(stream.cuda_stream)
            for tensor in tensors:
                _record(tensor, stream)
        return tensors


class Pool:
    """A private pool of Torch's allocator, for a CUDA graph: the calling thread allocates from it until leave().

    The tensors in it must be gone when it is deleted. Torch's allocator has its memory then, and gives it to the device
    when some is missing, or when pools that were deleted hold much.

    No torch.cuda.MemPool: the end of one fails within a destructor, which ends the process, if any thread captures at
    that moment, or allocates to a pool, on the same device.
    """

    _idle_bytes = 0

    def __init__(self, index: int) -> None:
        # Others may take memory from elsewhere without a word.
        backend = torch.cuda.get_allocator_backend()
        if backend != "native":
            raise RuntimeError(f"graphs need Torch's native allocator, and this process has {backend!r}")
        self._index, self._bytes = index, 0
        pool = torch.cuda.graph_pool_handle()
        torch._C._cuda_beginAllocateCurrentThreadToPool(index, pool)
        self._pool, self._entered = pool, True

    def leave(self) -> int:
        """Ends the allocation from the pool; the bytes that it holds."""
        self._entered = False
        torch._C._cuda_endAllocateToPool(self._index, self._pool)
        segments = torch.cuda.memory_snapshot(self._pool, include_traces=False)
        self._bytes = sum(segment["total_size"] for segment in segments)
        return self._bytes

    def __del__(self) -> None:
        if not hasattr(self, "_pool"):
            return
        if self._entered:
            self.leave()
        torch._C._cuda_releasePool(self._index, self._pool)
        Pool._idle_bytes += self._bytes
        if Pool._idle_bytes > _MOST_IDLE_BYTES:
            Pool._idle_bytes = 0
            # Leaves all as it is while any thread captures.
            torch.cuda.empty_cache()


def _current_stream(device: str) -> Any:
    return torch.cuda.current_stream(device)


def _record(tensor: Any, stream: Any) -> None:
    # Without it the allocator could give the memory to the worker's next forward while `stream` still reads.
    tensor.record_stream(stream)


def _library() -> Path:
    return Path(__file__).with_name(CUDA_LIBRARY)
