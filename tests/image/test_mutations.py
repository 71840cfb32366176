"""Hostile bytes: no crash, no hang, bounded memory, and Pillow's verdict on nearly all of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mm_libtorch_encoder import _native
from tests.image import mutations

#: Share of mutants on which both decoders agree; docs/decoding.md explains the rest.
LEAST = dict.fromkeys(mutations.FORMATS, 0.995) | {"tiff": 0.97, "webp": 0.99}


@pytest.mark.parametrize("name", mutations.FORMATS)
def test_agrees_with_pillow(name: str) -> None:
    report = mutations.examine_all(name, 400, seed=1)
    assert report.outcomes.total() == 400
    # Mutants that nobody accepts, or everybody, would test nothing.
    assert report.outcomes["equal"] >= 10
    assert report.outcomes["both refuse"] >= 10
    assert report.agreement >= LEAST[name], report.outcomes


def alone(count: int, names: list[str]) -> None:
    """In a process of its own, whose peak of memory is the decoder's."""
    root = Path(__file__).parents[2]
    program = [sys.executable, "-m", "tests.image.mutations", "--alone", str(count), *names]
    package = Path(_native.__file__).parents[1]
    done = subprocess.run(
        program,
        cwd=root,
        env={"PYTHONPATH": f"{package}:{root}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_time_and_memory() -> None:
    alone(150, list(mutations.FORMATS))


@pytest.mark.slow
@pytest.mark.parametrize("name", mutations.FORMATS)
def test_two_hundred_thousand(name: str) -> None:
    alone(200_000, [name])


@pytest.mark.slow
@pytest.mark.parametrize("name", mutations.FORMATS)
def test_agrees_with_pillow_at_length(name: str) -> None:
    report = mutations.examine_all(name, 10_000, seed=2)
    assert report.agreement >= LEAST[name], report.outcomes
