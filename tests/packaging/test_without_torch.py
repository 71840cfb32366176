"""A gateway host has NumPy and no Torch: preprocessing works, and what needs Torch says so in a sentence."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest


def run(program: str) -> str:
    python = os.environ.get("MM_PLAIN_PYTHON")
    if python is None:
        pytest.skip(
            "MM_PLAIN_PYTHON names no Python with NumPy and the wheel but without Torch; make test does"
        )
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, cwd=Path(python).parent)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_that_python_has_no_torch() -> None:
    run("import importlib.util as u; assert u.find_spec('torch') is None and u.find_spec('numpy')")


def test_the_package_imports_and_lists_its_names() -> None:
    out = run(
        "import mm_libtorch_encoder as m; print(m.__version__, 'Encoder' in dir(m), m.MediaError.__mro__[1])"
    )
    assert "True <class 'ValueError'>" in out


def test_preprocessing_works() -> None:
    out = run(
        "import numpy as np\n"
        "from mm_libtorch_encoder import preprocess\n"
        "image = np.arange(60 * 40 * 3, dtype=np.uint32).astype(np.uint8).reshape(60, 40, 3)\n"
        "small = preprocess.resize(image, 20, 30)\n"
        "print(small.shape, small.dtype, preprocess.smart_resize(60, 40, 28, 3136, 50176))\n"
        "try:\n    preprocess.decode(b'no image')\n"
        "except preprocess.MediaError as error:\n    print(error)\n"
    )
    first, second = out.splitlines()
    assert first == "(30, 20, 3) uint8 (84, 56)"
    assert second


def test_touching_the_encoder_gives_a_sentence() -> None:
    out = run(
        "import mm_libtorch_encoder as m\n"
        "for _ in range(2):\n"
        "    try:\n        m.Encoder\n"
        "    except m.RuntimeMismatch as error:\n        print(error)\n"
    )
    first, second = out.splitlines()
    assert first == second
    assert "torch: built for 2.11 or newer, host has none" in first
    assert "No wheel fits this host before it has Torch 2.11 or newer." in first
