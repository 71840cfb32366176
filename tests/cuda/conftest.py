"""The kernels of the CUDA library, compiled for the CPU."""

from __future__ import annotations

import ctypes
from pathlib import Path

import cuda_build
import pytest


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Functions of tests/support/cuda/kernels_on_host.h."""
    return ctypes.CDLL(str(cuda_build.kernels(tmp_path_factory.mktemp("kernels"))))


@pytest.fixture(scope="session")
def double(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for libmm_cuda.so, for a process of its own: it stays in whatever process opens it."""
    return cuda_build.double(tmp_path_factory.mktemp("double"))
