"""Tables, and names made fit for a terminal."""

from __future__ import annotations

import os

import pytest

from mm_libtorch_encoder.cli import text
from mm_libtorch_encoder.cli.encode import unique_names
from mm_libtorch_encoder.cli.text import Table, cells, shortened, shown


@pytest.mark.parametrize(
    ("name", "escaped"),
    [
        (b"plain name.png", "plain name.png"),
        ("größe 名前.png".encode(), "größe 名前.png"),
        (b"\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        (b"two\nlines\t", "two\\x0alines\\x09"),
        (b"latin \xe9", "latin \\xe9"),
        ("\u202egnp.exe".encode(), "\\u202egnp.exe"),
        ("\U000e0041".encode(), "\\U000e0041"),
        ("\u0085".encode(), "\\x85"),
    ],
)
def test_shown(name: bytes, escaped: str) -> None:
    assert shown(os.fsdecode(name)) == escaped
    shown(os.fsdecode(name)).encode()


def test_cells_and_shortening() -> None:
    assert (cells("abc"), cells("名前"), cells("e\u0301")) == (3, 4, 1)
    assert shortened("short", 8) == "short"
    assert shortened("folder/image.png", 10) == "…image.png"
    assert cells(shortened("名前名前名前", 6)) <= 6


def test_columns_line_up() -> None:
    table = Table("file", ">tokens", "hash")
    table.add("名.png", "7", "abc")
    table.add("longer.png", "12345678", "d")
    assert table.text().splitlines() == [
        "file          tokens  hash",
        "名.png             7  abc",
        "longer.png  12345678  d",
    ]


def test_a_sentence_spans_the_columns_and_wraps_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table("file", ">tokens")
    table.add_sentence("bad.png", " ".join(["word"] * 40))
    assert table.text().splitlines() == ["file     tokens", "bad.png  " + " ".join(["word"] * 40)]
    monkeypatch.setattr(text, "terminal_width", lambda: 60)
    lines = table.text().splitlines()
    assert lines[1].startswith("bad.png  word word")
    assert len(lines) > 2
    assert all(line.startswith(" " * 9 + "word") and len(line) <= 60 for line in lines[2:])
    assert sum(line.count("word") for line in lines) == 40


def test_names_are_unique() -> None:
    assert unique_names(["a", "b", "a", "a#2", "a", "-"]) == ["a", "b", "a#2", "a#2#2", "a#3", "stdin"]
