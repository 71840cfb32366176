"""Progress on standard error while weights load and items are encoded; nothing where that is no terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

# Seconds between two drawings of the plain line.
REDRAW = 0.1
ERASE_LINE = "\r\x1b[K"


class Progress:
    """A context manager. `rich` draws bars where it is installed, a plain counting line stands in for it."""

    def __init__(self) -> None:
        self._rich: Any = None
        self._tasks: dict[str, Any] = {}
        self._drawn = 0.0
        self._terminal = sys.stderr is not None and sys.stderr.isatty()

    def __enter__(self) -> Progress:
        if self._terminal:
            self._rich = _rich_progress()
            if self._rich is not None:
                self._rich.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._rich is not None:
            self._rich.stop()
        elif self._drawn:
            print(ERASE_LINE, end="", file=sys.stderr, flush=True)

    def weights(self, done: int, total: int) -> None:
        """`done` of `total` bytes of weights are read. Called from the loading thread."""
        self._show("Weights", done, total, f"{done >> 20} of {total >> 20} MiB")

    def items(self, what: str, done: int, total: int) -> None:
        """`done` of `total` are finished, such as "Images"; a single one gets no bar."""
        if total > 1:
            self._show(what, done, total, f"{done} of {total}")

    def _show(self, what: str, done: int, total: int, text: str) -> None:
        if self._rich is not None:
            if what not in self._tasks:
                self._tasks[what] = self._rich.add_task(what, total=total, text=text)
            self._rich.update(self._tasks[what], completed=done, text=text)
        elif self._terminal and (time.monotonic() - self._drawn > REDRAW or done == total):
            self._drawn = time.monotonic()
            print(f"{ERASE_LINE}{what}: {text}", end="", file=sys.stderr, flush=True)


def _rich_progress() -> Any:
    """Bars that vanish when done; None where rich is not installed."""
    try:
        from rich import progress
        from rich.console import Console
    except ImportError:
        return None
    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TextColumn("{task.fields[text]}"),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
