"""The command line as a process: streams that end early, names that are no text, signals, terminals."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import images
import pytest

COMMAND = [sys.executable, "-m", "mm_libtorch_encoder"]
Process = Callable[..., Any]


def all_of(terminal: int) -> str:
    """What was written to a terminal whose other end is closed."""
    pieces = []
    with contextlib.suppress(OSError):  # EIO is the end
        while piece := os.read(terminal, 1 << 16):
            pieces.append(piece)
    os.close(terminal)
    return b"".join(pieces).decode()


def test_version_and_help(process: Process) -> None:
    done = process("--version")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("mm-libtorch-encoder 0.")
    done = process("--help")
    assert (done.code, done.err) == (0, "")
    for command in ("encode", "show", "doctor", "make-checkpoint", "families"):
        assert f"    {command}" in done.out


def test_names_that_are_not_utf8_and_names_that_a_terminal_would_obey(
    process: Process, checkpoint: Path, tmp_path: Path
) -> None:
    paths = [
        os.fsencode(tmp_path) + b"/" + name
        for name in (b"caf\xe9.png", b"\x1b[31mred\n.png", b"none\xff.png")
    ]
    for path in paths[:2]:
        Path(os.fsdecode(path)).write_bytes(images.png(40, 30))
    out = os.fsencode(tmp_path) + b"/out\xfe.safetensors"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for form in ([], ["--json"]):
        done = process("encode", checkpoint, *paths, "--device=cpu", "--out", out, *form, env=environment)
        assert done.code == 1
        assert "\x1b" not in done.out + done.err
        if form:
            files = [row["file"] for row in json.loads(done.out)["images"]]
            assert files == [
                f"{tmp_path}/{name}" for name in ("caf\\xe9.png", "\\x1b[31mred\\x0a.png", "none\\xff.png")
            ]
        else:
            assert "caf\\xe9.png" in done.out
    assert os.path.getsize(out) > 0


def test_an_image_on_standard_input(process: Process, checkpoint: Path) -> None:
    done = process("encode", checkpoint, "-", "--device=cpu", "--json", input=images.png(50, 40))
    assert done.code == 0, done.err
    (row,) = json.loads(done.out)["images"]
    assert (row["file"], row["size"]) == ("stdin", [50, 40])


def test_nothing_on_standard_input(process: Process, checkpoint: Path) -> None:
    done = process("encode", checkpoint, "-", "--device=cpu", "--json")
    assert done.code == 1
    assert "the item has no bytes" in json.loads(done.out)["images"][0]["error"]


@pytest.mark.parametrize("arguments", [["families"], ["--help"]])
def test_a_reader_that_left(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*COMMAND, *arguments], stdout=writer, stderr=subprocess.PIPE, timeout=300)
    os.close(writer)
    # argparse itself drops what it cannot print, where output is not buffered.
    assert done.returncode == 141 or (arguments == ["--help"] and done.returncode == 0)
    assert done.stderr == b""


def test_a_full_disk(process: Process) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*COMMAND, "families"], stdout=full, stderr=subprocess.PIPE, timeout=300)
    assert done.returncode == 1
    assert done.stderr == b"mm-encoder: standard output cannot be written: the disk is full\n"


def test_closed_streams() -> None:
    program = "exec 0<&- 1>&- 2>&-; exec " + " ".join([*COMMAND, "families"])
    assert subprocess.run(["sh", "-c", program], timeout=300).returncode == 0


def test_ctrl_c(checkpoint: Path, tmp_path: Path) -> None:
    """While an image is read from a pipe that gives nothing: nothing waits for it, nothing is left behind."""
    pipe, out = tmp_path / "pipe", tmp_path / "out.safetensors"
    os.mkfifo(pipe)
    command = [*COMMAND, "encode", str(checkpoint), str(pipe), "--device=cpu", "--out", str(out)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    writer = os.open(pipe, os.O_WRONLY)  # returns when the command has opened its end
    running.send_signal(signal.SIGINT)
    printed, said = running.communicate(timeout=60)
    os.close(writer)
    assert (running.returncode, printed, said) == (130, b"", b"mm-encoder: interrupted\n")
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.parametrize("with_rich", [True, False])
def test_progress_on_a_terminal(checkpoint: Path, photos: Path, tmp_path: Path, with_rich: bool) -> None:
    """Bars, or a counting line where rich is not installed; a pipe gets neither, as other tests show."""
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    if not with_rich:
        (tmp_path / "rich.py").write_text("raise ImportError")
        environment["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    terminal, end = pty.openpty()
    command = [
        *COMMAND,
        "encode",
        str(checkpoint),
        *(str(photos / name) for name in ("a.png", "b.jpg", "c.png")),
    ]
    running = subprocess.Popen(
        [*command, "--device=cpu"], stdout=subprocess.PIPE, stderr=end, env=environment
    )
    os.close(end)
    printed, _ = running.communicate(timeout=300)
    shown = all_of(terminal)
    assert running.returncode == 0
    assert "Weights" in shown
    assert "Images" in shown
    assert ("━" in shown) == with_rich
    assert b"\x1b" not in printed


def test_colours_are_for_terminals(tmp_path: Path, checkpoint: Path) -> None:
    def encode(**environment: str) -> str:
        terminal, end = pty.openpty()
        command = [*COMMAND, "encode", str(checkpoint), str(tmp_path / "none.png"), "--device=cpu"]
        merged = {**os.environ, "TERM": "xterm", **environment}
        running = subprocess.Popen(command, stdout=end, stderr=subprocess.DEVNULL, env=merged)
        os.close(end)
        assert running.wait(300) == 1
        return all_of(terminal)

    assert "\x1b[31m" in encode()
    assert "\x1b" not in encode(NO_COLOR="1")
