"""Compiles the kernels of cuda/ for the CPU, and the double of the CUDA library that tests put in its place."""

from __future__ import annotations

import subprocess
from pathlib import Path

SUPPORT = Path(__file__).resolve().parent / "cuda"
SOURCES = SUPPORT.parents[2] / "cuda"
FLAGS = ["-std=c++20", "-O3", "-shared", "-fPIC", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"]


def kernels(folder: Path) -> Path:
    """The kernels as functions for ctypes; needs g++ alone."""
    path = folder / "kernels_on_host.so"
    command = ["g++", *FLAGS, f"-I{SOURCES}", str(SUPPORT / "kernels_on_host.cpp"), "-o", str(path)]
    subprocess.run(command, check=True)
    return path


def double(folder: Path) -> Path:
    """A CUDA library whose device is the host: same table, same kernels, streams and launches written to a log."""
    import torch

    root = Path(torch.__file__).parent
    path = folder / "libmm_cuda.so"
    sources = [str(SUPPORT / name) for name in ("double.cpp", "kernels_on_host.cpp")]
    command = ["g++", *FLAGS, f"-I{SOURCES}", "-isystem", str(root / "include"), *sources, "-o", str(path)]
    command += ["-DTORCH_TARGET_VERSION=0x020b000000000000", f"-L{root / 'lib'}", "-ltorch_cpu"]
    subprocess.run(command, check=True)
    return path
