"""README.md and docs/cli.md say what is so: the example runs, every family and every option is there."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import images

from mm_libtorch_encoder import _native
from mm_libtorch_encoder.cli.main import parser


def test_the_example_runs(root: Path, tmp_path: Path, demo_checkpoint: Callable[[str], Path]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (root / "README.md").read_text("utf-8"), re.DOTALL)
    (tmp_path / "photo.jpg").write_bytes(images.jpeg(320, 200))
    (tmp_path / "checkpoint").symlink_to(demo_checkpoint("qwen35"))
    command = [sys.executable, "-W", "error", "-c", example]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert "is cut short" in done.stdout
    assert "'embeddings'" in done.stdout


def test_every_family_is_in_the_support_table(root: Path) -> None:
    text = (root / "README.md").read_text("utf-8")
    table = text[text.index("## What it supports") : text.index("## Limits")]
    first_cells = (line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))
    named = {name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)}
    assert named == {name for name, *_ in _native.families()}


def test_every_command_and_option_is_described(root: Path) -> None:
    text = (root / "docs" / "cli.md").read_text("utf-8")
    (commands,) = (action for action in parser()._actions if action.choices and not action.option_strings)
    assert commands.choices is not None
    for name in commands.choices:
        assert f"mm-encoder {name}" in text
        options = commands.choices[name]._actions  # type: ignore[call-overload, index]
        for option in (option for action in options for option in action.option_strings):
            assert option in ("-h", "--help") or f"{option}" in text, f"{name} {option}"
