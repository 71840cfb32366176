"""Wrong use and hostile input: a sentence on standard error, the right exit code, and nothing broken."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mm_libtorch_encoder.cli import main, source
from mm_libtorch_encoder.cli.failure import Failure

Cli = Callable[..., Any]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["paint"],
        ["encode"],
        ["encode", "folder"],
        ["encode", "folder", "image", "--dtype", "float8"],
        ["encode", "folder", "image", "--family", "vit"],
        ["encode", "folder", "image", "--backend", "cv2"],
        ["encode", "folder", "-", "-"],
        ["show", "folder", "image"],
        ["make-checkpoint", "vit", "folder"],
        ["make-checkpoint", "qwen35", "folder", "--seed", "-1"],
        ["make-checkpoint", "qwen35", "folder", "--seed", "18446744073709551616"],
        ["make-checkpoint", "qwen35", "folder", "--seed", "x"],
        ["doctor", "--colour"],
    ],
)
def test_wrong_usage(cli: Cli, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = cli(*arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[-1].startswith("mm-encoder")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("device", ["tpu", "cuda:x", "cuda:-1", ""])
def test_an_unknown_device(cli: Cli, checkpoint: Path, photos: Path, device: str) -> None:
    done = cli("encode", checkpoint, photos / "a.png", f"--device={device}")
    if device:
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith("mm-encoder: ")
    else:
        assert done.code == 0  # as if it had not been given


def test_a_device_that_cannot_be_used(cli: Cli, checkpoint: Path, photos: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("a CUDA device is here")
    done = cli("encode", checkpoint, photos / "a.png", "--device=cuda:0")
    assert done.code == 1
    assert done.err.startswith('mm-encoder: device "cuda:0" ') and 'device="cpu"' in done.err


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"model_type": "bert"}'])
def test_no_usable_checkpoint(cli: Cli, photos: Path, tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    for command in (["encode"], ["show", "--out", str(tmp_path / "out.png")]):
        done = cli(command[0], tmp_path, photos / "a.png", *command[1:], "--device=cpu")
        assert (done.code, done.out) == (1, "")
        assert done.err.startswith("mm-encoder: ")
        assert done.err.count("\n") == 1
    assert not (tmp_path / "out.png").exists()


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("folder", "it exists and is no file"),
        ("pipe", "it exists and is no file"),
        ("none/out", "there is no such file or folder"),
        ("file/out", "there is no such file or folder"),
        ("x" * 300, "its name is too long"),
        ("loop", "it is a circle of links"),
    ],
)
def test_a_place_that_cannot_be_written_is_told_before_weights_load(
    cli: Cli, photos: Path, tmp_path: Path, place: str, sentence: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for command in ("encode", "show"):
        done = cli(command, "no checkpoint", photos / "a.png", "--out", tmp_path / place)
        assert done.code == 1
        assert done.err == f"mm-encoder: {tmp_path / place} cannot be written: {sentence}\n"
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)


def test_a_failed_command_leaves_the_old_file(cli: Cli, checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.png"
    out.write_bytes(b"old")
    assert cli("show", checkpoint, tmp_path / "none.png", "--out", out, "--device=cpu").code == 1
    assert out.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["out.png"]


def test_files_over_the_limit_are_not_read(tmp_path: Path) -> None:
    large = tmp_path / "large.jpg"
    with large.open("wb") as file:
        file.truncate(1 << 40)
    for path in (str(large), "/dev/zero"):
        with pytest.raises(Failure, match=f"over the limit of {source.MAX_IMAGE_BYTES} bytes"):
            source.read_image(path)


def test_a_file_that_cannot_be_read() -> None:
    with pytest.raises(Failure, match=r"^the file cannot be read: the system says EIO$"):
        source.read_image("/proc/self/mem")


def test_a_fault_of_our_own_is_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mm_libtorch_encoder import _native

    def broken() -> None:
        raise LookupError("a secret\nof ours")

    monkeypatch.setattr(_native, "families", broken)
    assert main(["families"]) == 1
    assert capsys.readouterr().err == (
        "mm-encoder: internal error, LookupError: a secret\\x0aof ours "
        "(set MM_ENCODER_TRACEBACK=1 to see where)\n"
    )
    monkeypatch.setenv("MM_ENCODER_TRACEBACK", "1")
    with pytest.raises(LookupError):
        main(["families"])
