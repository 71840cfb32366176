"""Running the command line, in this process and in one of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import images
import pytest

from mm_libtorch_encoder.cli import main

COMMAND = [sys.executable, "-m", "mm_libtorch_encoder"]


@dataclass(frozen=True)
class Done:
    """A finished command."""

    code: int
    out: str
    err: str


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Runs a command in this process. No command may end in a traceback."""

    def run(*arguments: object) -> Done:
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return Done(code, out, err)

    return run


@pytest.fixture
def process() -> Callable[..., Done]:
    """Runs a command in a process of its own."""

    def run(*arguments: str | bytes | Path, **options: Any) -> Done:
        options = {"stdin": subprocess.DEVNULL, "timeout": 300, **options}
        if "input" in options:
            del options["stdin"]
        done = subprocess.run([*COMMAND, *arguments], capture_output=True, check=False, **options)
        out, err = done.stdout.decode(), done.stderr.decode()
        assert "Traceback" not in err
        return Done(done.returncode, out, err)

    return run


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three images: a.png of 300x200, b.jpg of 97x301, c.png of 64x64."""
    folder = tmp_path_factory.mktemp("photos")
    (folder / "a.png").write_bytes(images.png(300, 200, 1))
    (folder / "b.jpg").write_bytes(images.jpeg(97, 301, 2))
    (folder / "c.png").write_bytes(images.png(64, 64, 3, "RGBA"))
    return folder


@pytest.fixture(scope="session")
def checkpoint(demo_checkpoint: Callable[[str], Path]) -> Path:
    """The demonstration checkpoint of qwen35."""
    return demo_checkpoint("qwen35")
