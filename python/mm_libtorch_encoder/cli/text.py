"""Text for a terminal: names made harmless, and tables."""

from __future__ import annotations

import os
import sys
import textwrap
import unicodedata
from typing import TextIO

GAP = "  "
# A sentence in a table wraps here where the terminal's width is unknown.
DEFAULT_WIDTH = 100
# And is never squeezed below this many columns.
LEAST_SENTENCE_WIDTH = 40
BOLD, RED, RESET = "\x1b[1m", "\x1b[31m", "\x1b[0m"


def shown(text: str) -> str:
    """`text` with all that a terminal would obey or cannot show as an escape: names come from outside."""
    return "".join(character if character.isprintable() else _escape(character) for character in text)


def _escape(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a file name that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def cells(text: str) -> int:
    """Columns of a terminal that printable `text` takes."""
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def shortened(text: str, most: int) -> str:
    """`text` in at most `most` columns, its beginning cut off: the end of a path tells more."""
    if cells(text) <= most:
        return text
    while cells(text) > most - 1:
        text = text[1:]
    return "…" + text


def use_colour(stream: TextIO) -> bool:
    """Is this a terminal that wants colours?"""
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def terminal_width() -> int | None:
    """Columns of the terminal that standard output is; None for a file or pipe."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError):
        return None


class Table:
    """Rows under headings; a heading that starts with ">" has its column set to the right."""

    def __init__(self, *headings: str) -> None:
        self._right = [heading.startswith(">") for heading in headings]
        self._headings = [heading.removeprefix(">") for heading in headings]
        self._rows: list[list[str]] = []

    def add(self, *row: str) -> None:
        """A row with a cell for each heading; or a first cell and a sentence that spans the others."""
        self._rows.append(list(row))

    def text(self) -> str:
        """The table for standard output."""
        colour = use_colour(sys.stdout)
        columns = len(self._headings)
        full = [row for row in self._rows if len(row) == columns]
        widths = [max(cells(row[i]) for row in [self._headings, *full]) for i in range(columns)]
        widths[0] = max([widths[0], *(cells(row[0]) for row in self._rows)])
        lines = [self._line(self._headings, widths)]
        lines[0] = f"{BOLD}{lines[0]}{RESET}" if colour else lines[0]
        for row in self._rows:
            if len(row) == columns:
                lines.append(self._line(row, widths))
            else:
                lines += self._sentence(row, widths[0], colour)
        return "\n".join(lines)

    def _line(self, row: list[str], widths: list[int]) -> str:
        padded = []
        for cell, width, right in zip(row, widths, self._right, strict=True):
            space = " " * (width - cells(cell))
            padded.append(space + cell if right else cell + space)
        return GAP.join(padded).rstrip()

    def _sentence(self, row: list[str], first: int, colour: bool) -> list[str]:
        start = first + len(GAP)
        width = max((terminal_width() or DEFAULT_WIDTH) - start, LEAST_SENTENCE_WIDTH)
        lines = textwrap.wrap(row[1], width) or [""]
        if colour:
            lines = [f"{RED}{line}{RESET}" for line in lines]
        return [
            row[0] + " " * (start - cells(row[0])) + lines[0],
            *(" " * start + line for line in lines[1:]),
        ]
