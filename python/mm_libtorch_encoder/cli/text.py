"""Text for a terminal: names made harmless, and tables."""

from __future__ import annotations

import os
import sys
import textwrap
import unicodedata
from typing import TextIO

GAP = "  "
# A sentence in a table wraps at the terminal's width, but is not squeezed below this many columns.
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
        self._sentences: dict[int, tuple[str, str]] = {}

    def add(self, *row: str) -> None:
        """A row with a cell for each heading."""
        self._rows.append(list(row))

    def add_sentence(self, first: str, sentence: str) -> None:
        """A row with one cell and a sentence that spans the other columns."""
        self._rows.append([])
        self._sentences[len(self._rows) - 1] = (first, sentence)

    def text(self) -> str:
        """The table for standard output."""
        colour = use_colour(sys.stdout)
        full = [self._headings, *(row for row in self._rows if row)]
        widths = [max(map(cells, column)) for column in zip(*full, strict=True)]
        widths[0] = max([widths[0], *(cells(first) for first, _ in self._sentences.values())])
        heading = self._line(self._headings, widths)
        lines = [f"{BOLD}{heading}{RESET}" if colour else heading]
        for number, row in enumerate(self._rows):
            if row:
                lines.append(self._line(row, widths))
            else:
                lines += self._sentence(*self._sentences[number], widths[0], colour)
        return "\n".join(lines)

    def _line(self, row: list[str], widths: list[int]) -> str:
        padded = []
        for cell, width, right in zip(row, widths, self._right, strict=True):
            space = " " * (width - cells(cell))
            padded.append(space + cell if right else cell + space)
        return GAP.join(padded).rstrip()

    def _sentence(self, first: str, sentence: str, width: int, colour: bool) -> list[str]:
        start = width + len(GAP)
        terminal = terminal_width()
        lines = [sentence]
        if terminal is not None:
            lines = textwrap.wrap(sentence, max(terminal - start, LEAST_SENTENCE_WIDTH)) or [""]
        if colour:
            lines = [f"{RED}{line}{RESET}" for line in lines]
        heads = [first + " " * (start - cells(first)), *(" " * start for _ in lines[1:])]
        return [head + line for head, line in zip(heads, lines, strict=True)]
