"""Timing side by side, and what machine it was on."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import peers

PACKAGES = ("mm-libtorch-encoder", "torch", "torchvision", "transformers", "pillow", "numpy", "sglang")

#: Seconds before each run: the compute threads of the one before it wait for work by spinning for a while.
PAUSE = 0.005


def load() -> str:
    """How busy the machine is."""
    return f"load average {os.getloadavg()[0]:.1f}"


def interleaved(
    runs: dict[str, Callable[[], object]], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Median seconds of each run. They take turns, so that a busy machine slows all alike.

    A run that gives a number was timed elsewhere, in a process of its own.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(repeats + 1):
        for name, run in runs.items():
            time.sleep(PAUSE)
            start = clock()
            elsewhere = run()
            seconds = clock() - start
            if turn > 0:  # the first turn warms caches and allocators
                times[name].append(elsewhere if isinstance(elsewhere, float) else seconds)
            del elsewhere
    return {name: statistics.median(values) for name, values in times.items()}


def processor() -> str:
    """The CPU's own name."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def versions() -> dict[str, str]:
    """Versions of this package and its peers, where installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found | peers.versions()


def heading(title: str) -> str:
    """A markdown heading with machine and versions."""
    packages = ", ".join(f"{name} {number}" for name, number in versions().items())
    return (
        f"## {title}\n\n{processor()}, {len(os.sched_getaffinity(0))} cores, {platform.system()}, {load()}; "
        f"Python {platform.python_version()}; {packages}\n"
    )


def table(columns: list[str], rows: list[list[str]]) -> str:
    """A markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def milliseconds(seconds: float) -> str:
    """Three significant digits."""
    return f"{seconds * 1e3:.3g} ms"
