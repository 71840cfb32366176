"""`mm-encoder make-checkpoint` and `mm-encoder families`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sounds

from mm_libtorch_encoder import _native

Cli = Callable[..., Any]
MODALITIES = {name: modality for name, *_, modality in _native.families()}
FAMILIES = list(MODALITIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_demo_checkpoint_of_every_family_encodes(
    cli: Cli, family: str, photos: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "new" / "checkpoint"
    done = cli("make-checkpoint", family, folder)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(
        f"Demo checkpoint of the family {family}, random weights of seed 0 (its embeddings mean"
    )
    listed = {line.split()[0]: int(line.split()[1]) for line in done.out.splitlines()[3:]}
    assert listed == {path.name: path.stat().st_size for path in folder.iterdir()}
    assert "Random weights of seed 0" in (folder / "README.md").read_text()
    item = photos / "a.png"
    if MODALITIES[family] == "audio":
        item = tmp_path / "sound.wav"
        item.write_bytes(sounds.Sound(4_000).data())
    # Named, because two families read the checkpoints of Muse Spark.
    arguments = ("--family", family, "--json", "--device=cpu")
    document = json.loads(cli("encode", folder, item, *arguments).out)
    assert document["family"] == family
    assert document["totals"]["encoded"] == 1
    assert cli("encode", folder, item, *arguments[:2], "--device=cpu").out.count(item.name) == 1


def test_the_seed_decides_the_weights(cli: Cli, tmp_path: Path) -> None:
    def weights(name: str, seed: str) -> bytes:
        assert cli("make-checkpoint", "qwen35", tmp_path / name, "--seed", seed).code == 0
        return (tmp_path / name / "model.safetensors").read_bytes()

    assert weights("a", "7") == weights("b", "7") != weights("c", "18446744073709551615")


def test_a_folder_in_use_is_left_alone(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    done = cli("make-checkpoint", "qwen35", tmp_path)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("mm-encoder: ")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_families(cli: Cli) -> None:
    done = cli("families")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].split()[:2] == ["family", "modality"]
    assert [line.split()[0] for line in lines[1:]] == FAMILIES
    for line, (_, model_types, architectures, modality) in zip(lines[1:], _native.families(), strict=True):
        assert ", ".join(model_types) in line
        assert ", ".join(architectures) in line
        assert line.split()[1] == modality
