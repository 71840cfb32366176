"""The package's top level: every public name resolves and is documented, exceptions pickle, nothing warns."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import mm_libtorch_encoder

ERRORS = [
    "CheckpointError",
    "DeviceOutOfMemory",
    "EncoderClosed",
    "MediaError",
    "QueueFull",
    "RuntimeMismatch",
]


@pytest.mark.parametrize("name", mm_libtorch_encoder.__all__)
def test_every_public_name_resolves_and_is_documented(name: str) -> None:
    value = getattr(mm_libtorch_encoder, name)
    assert isinstance(value, str) or (value.__doc__ or "").strip()
    assert name in dir(mm_libtorch_encoder)


@pytest.mark.parametrize("name", ERRORS)
def test_exceptions_pickle_and_name_the_package(name: str) -> None:
    kind = getattr(mm_libtorch_encoder, name)
    assert f"{kind.__module__}.{kind.__qualname__}" == f"mm_libtorch_encoder.{name}"
    copy = pickle.loads(pickle.dumps(kind("a sentence")))
    assert (type(copy), copy.args) == (kind, ("a sentence",))


def test_importing_warns_of_nothing() -> None:
    program = "import mm_libtorch_encoder as m; [getattr(m, name) for name in m.__all__ if name != 'Encoder']"
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_package_is_typed(package: Path) -> None:
    assert (package / "py.typed").is_file()
