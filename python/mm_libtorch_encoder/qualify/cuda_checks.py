"""Checks of what only a GPU shows: streams, memory, kernels."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import torch

from .. import DeviceOutOfMemory, _native
from .context import Context, NotRun, difference, embeddings, picture, within

# A wait of about 0.1 s on a GPU of 1.5 GHz: long against everything that is put behind it.
SLEEP_CYCLES = 150_000_000
# Left to the device while memory is short: less than the image's activations take.
SHORT_BYTES = 32 << 20
SANITIZER_SECONDS = 240


def delayed_consumer(context: Context) -> str:
    """A stream that reads a result late reads that result, whatever was encoded meanwhile."""
    context.need_cuda()
    stream = torch.cuda.Stream(context.device)
    with context.encoder() as encoder:
        (wanted,) = embeddings(encoder, picture(448, 448))
        wanted = wanted.clone()
        context.synchronise()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(SLEEP_CYCLES)
            (tensor,) = embeddings(encoder, picture(448, 448))
            copy = tensor.clone()
        for seed in range(20):
            embeddings(encoder, picture(448, 448, seed + 1))
        context.synchronise()
        assert torch.equal(copy, wanted), "a late reader read something else"
    return "a clone on a stream that was busy for 0.1 s had the result's bits"


def dropped_while_read(context: Context) -> str:
    """The memory of a result that is dropped while a stream still reads it is not used again before."""
    context.need_cuda()
    stream = torch.cuda.Stream(context.device)
    with context.encoder() as encoder:
        (wanted,) = embeddings(encoder, picture(448, 448))
        wanted = wanted.clone()
        context.synchronise()
        copies = []
        for _ in range(5):
            with torch.cuda.stream(stream):
                (tensor,) = embeddings(encoder, picture(448, 448))
                torch.cuda._sleep(SLEEP_CYCLES // 5)
                copies.append(tensor.clone())
            del tensor
            for seed in range(8):
                embeddings(encoder, picture(448, 448, seed + 1))
        context.synchronise()
        assert all(torch.equal(copy, wanted) for copy in copies), "freed memory was written while it was read"
    return "five results dropped under a waiting reader, and 40 images encoded meanwhile"


def out_of_memory(context: Context) -> str:
    """Out of memory is an error of its own, the worker lives, and the next request is served."""
    context.need_cuda()
    large = picture(2048, 2048)
    with context.encoder() as encoder:
        (wanted,) = embeddings(encoder, picture(224, 224))
        context.synchronise()
        torch.cuda.empty_cache()
        held = []
        size = torch.cuda.mem_get_info(context.device)[0] - SHORT_BYTES
        while size > SHORT_BYTES:
            try:
                held.append(torch.empty(size, dtype=torch.uint8, device=context.device))
                size = torch.cuda.mem_get_info(context.device)[0] - SHORT_BYTES
            except torch.cuda.OutOfMemoryError:
                size //= 2
        try:
            embeddings(encoder, large)
            outcome = "none"
        except RuntimeError as error:
            outcome = type(error).__name__
        finally:
            held.clear()
            torch.cuda.empty_cache()
        (again,) = embeddings(encoder, picture(224, 224))
        assert torch.equal(again, wanted), "the result behind it differs"
    if outcome == "none":
        raise NotRun("the device still had the memory for an image of 2048 x 2048")
    numbers = _native.torch_version()
    assert outcome == DeviceOutOfMemory.__name__ or numbers < (2, 13), f"it was a {outcome}"
    return f"{outcome} with {SHORT_BYTES >> 20} MiB left, and the right result behind it"


def kernels(context: Context) -> str:
    """Each kernel beside its plain form: by the check at load time, and in the tower."""
    context.need_cuda()
    source = picture(448, 333)
    with context.encoder() as encoder:
        off = [f"{name} ({reason})" for name, on, reason in _native.cuda_kernels() if not on]
        assert not off, f"switched off when loaded: {', '.join(off)}"
        names = [name for name, *_ in _native.cuda_kernels()]
        (wanted,) = embeddings(encoder, source)
        lines = []
        try:
            for name in names:
                _native.set_cuda_kernels([other for other in names if other != name])
                (found,) = embeddings(encoder, source)
                lines.append(within(difference(found, wanted), encoder.dtype, f"without {name}"))
            _native.set_cuda_kernels([])
            (plain,) = embeddings(encoder, source)
            lines.append(within(difference(plain, wanted), encoder.dtype, "without any"))
        finally:
            _native.set_cuda_kernels(names)
    return "; ".join(lines)


def sanitizers(context: Context) -> str:
    """compute-sanitizer's memcheck and racecheck over the check of the kernels."""
    context.need_cuda()
    program = shutil.which("compute-sanitizer")
    if program is None:
        raise NotRun("compute-sanitizer is not on the PATH")
    command = [sys.executable, "-m", "mm_libtorch_encoder.qualify", str(context.checkpoint)]
    command += ["--device", context.device, "--only", "kernels"]
    for tool in ("memcheck", "racecheck"):
        done = subprocess.run(
            # Only our own kernels: LibTorch's are not ours to check, and take an hour.
            [program, "--tool", tool, "--kernel-regex", "kns=mm4cuda", "--error-exitcode", "9", *command],
            capture_output=True,
            text=True,
            timeout=SANITIZER_SECONDS,
            env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, f"{tool}: {done.stdout[-2000:]}{done.stderr[-1000:]}"
    return "memcheck and racecheck found nothing in our kernels"
