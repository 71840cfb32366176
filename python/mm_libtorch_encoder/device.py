"""What a device needs before an encoder can run on it: for CUDA, the library beside this file."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from . import _native, runtime

CUDA_LIBRARY = "libmm_cuda.so"
_CUDA = re.compile(r"cuda(:\d+)?", re.ASCII)


def prepare(device: str) -> None:
    """Opens the CUDA library if `device` is a CUDA device, else does nothing.

    Raises RuntimeMismatch with one sentence where the library is missing or does not fit this Torch. Whether the
    host has a driver and such a GPU is asked when the encoder opens.
    """
    if not _CUDA.fullmatch(device):
        return
    record = runtime.manifest()
    problem = obstacle(
        has_library=_library().is_file(),
        built_for=record["cuda"] if record else None,
        checkout=record is None,
        torch_version=str(torch.__version__),
        torch_cuda=torch.version.cuda,
    )
    if problem:
        raise _native.RuntimeMismatch(f'device "{device}" {problem}')
    _native.open_cuda(_library())


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
            else "install a wheel whose runtime key has {}".format(runtime.device_token(torch_cuda, False))
        )
        return f'needs the CUDA library {CUDA_LIBRARY}, which is not here: {remedy}, or use device="cpu".'
    wheel, host = runtime.numbers(built_for)[:1], runtime.numbers(torch_cuda)[:1]
    if wheel and wheel != host:
        return (
            f"needs CUDA {wheel[0]}, for which {CUDA_LIBRARY} was built, and this Torch, {torch_version}, has CUDA "
            f"{torch_cuda}: install a wheel whose runtime key has {runtime.device_token(torch_cuda, False)}."
        )
    return None


def _library() -> Path:
    return Path(__file__).with_name(CUDA_LIBRARY)
