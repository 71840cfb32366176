"""`mm-encoder make-checkpoint` and `mm-encoder families`: demo checkpoints, and what this build can read."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from .. import _native
from .failure import Failure, Outcome, reason
from .text import Table, shown

MAX_SEED = (1 << 64) - 1
NOTE = """# Demo checkpoint

Random weights of seed {seed} in the published layout of the family {family}, made by `mm-encoder
make-checkpoint`. The tower is small and untrained: its embeddings show that all runs, and mean nothing.
"""


def add_parser(commands: Any) -> None:
    """The arguments of both commands."""
    make = commands.add_parser(
        "make-checkpoint",
        help="write a small demo checkpoint with random weights",
        description="Write a small demo checkpoint in a family's published layout. Its weights are random.",
    )
    make.add_argument(
        "family", metavar="FAMILY", choices=[name for name, *_ in _native.families()], help="%(choices)s"
    )
    make.add_argument("folder", metavar="DIR", help="a new or empty folder")
    make.add_argument("--seed", type=seed, default=0, help="seed of the weights (default: 0)")
    make.set_defaults(run=make_checkpoint)
    families = commands.add_parser("families", help="list the model families of this build")
    families.set_defaults(run=list_families)


def seed(text: str) -> int:
    """`text` as a seed."""
    value = int(text)
    if not 0 <= value <= MAX_SEED:
        raise argparse.ArgumentTypeError(f"a seed is at least 0 and at most {MAX_SEED}")
    return value


def make_checkpoint(options: argparse.Namespace) -> Outcome:
    """Writes the checkpoint, with a note in it that says what it is."""
    folder = Path(options.folder)
    _native.make_checkpoint(options.family, folder, options.seed)
    try:
        (folder / "README.md").write_text(NOTE.format(family=options.family, seed=options.seed), "utf-8")
        files = sorted((path.name, path.stat().st_size) for path in folder.iterdir())
    except OSError as error:
        raise Failure(f"{shown(options.folder)} cannot be written: {reason(error)}") from None
    table = Table("file", ">bytes")
    for name, size in files:
        table.add(shown(name), str(size))
    return Outcome(
        f"Demo checkpoint of the family {options.family}, random weights of seed {options.seed} (its "
        f"embeddings mean nothing): {shown(os.fspath(folder))}\n\n{table.text()}"
    )


def list_families(options: argparse.Namespace) -> Outcome:
    """Name, model types and modality of each family."""
    table = Table("family", "modality", "model types of config.json", "architectures")
    for name, model_types, architectures, modality in _native.families():
        table.add(name, modality, ", ".join(model_types), ", ".join(architectures))
    return Outcome(table.text())
