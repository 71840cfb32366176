"""What holds for checkpoints of every family: a fault in one tensor or value is a sentence, and never a crash."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import checkpoints
import pytest
import torch
from safetensors import safe_open

from mm_libtorch_encoder import CheckpointError, Encoder, MediaError, _native

FAMILIES = [name for name, *_ in _native.families()]
CheckpointOf = Callable[[str], Path]
families = pytest.mark.parametrize("family", FAMILIES)
FILES = ("config.json", "processor_config.json", "preprocessor_config.json")
# Stands for a key that is not there.
ABSENT = object()
ABSURD = [
    ABSENT, None, 0, -1, 1, 3, 7, 10**6, 2**31, 2**32, 2**63, 10**30, 0.1, 1.5, 1e300, -2.5, "x", "", True, False,
    [], [1], [0.5] * 3, ["a"] * 3, {}, {"n": 3},
]  # fmt: skip
# Of the absurd values one in so many is tried at each place, another one at the next, unless all are.
SHARE = 6
SIZES = [(1, 1), (640, 480), (3, 5000), (5000, 3), (65_535, 1), (9000, 9000)]
# Samples and their rate.
LENGTHS = [(1, 1), (1, 24_000), (300, 1), (100_001, 44_100), (230_400_000, 768_000), (2**40, 8_000)]


@pytest.fixture
def folder(family: str, demo_checkpoint: CheckpointOf, tmp_path: Path) -> Path:
    return checkpoints.copied(demo_checkpoint(family), tmp_path / "checkpoint")


def places(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of all values in nested objects."""
    for key, inner in value.items():
        yield (*path, key)
        if isinstance(inner, dict):
            yield from places(inner, (*path, key))


def replaced(value: Any, path: tuple[str, ...], new: Any) -> Any:
    """A copy with the value at `path` replaced, or left out."""
    first, *rest = path
    copy = dict(value)
    if rest:
        copy[first] = replaced(value[first], tuple(rest), new)
    elif new is ABSENT:
        del copy[first]
    else:
        copy[first] = new
    return copy


def plainly(text: str) -> None:
    """An error is one sentence, and not a library's."""
    assert 10 < len(text) < 4000 and "\n" not in text, text
    for leak in ("panick", "serde", "unwrap", "os error", "src/", "overflow when"):
        assert leak not in text, text


def plans(processor: _native.Processor) -> Iterator[int]:
    """Plans of all sizes: numbers, or sentences."""
    images = processor.modality == "image"
    for size in SIZES if images else LENGTHS:
        try:
            if images:
                (frames, rows, columns), tokens = processor.plan(*size)
                yield min(frames, rows, columns, tokens)
            else:
                yield processor.plan_sound(*size)
        except (MediaError, ValueError) as error:
            plainly(str(error))


@families
@pytest.mark.parametrize("every", [SHARE, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "all"])
def test_any_value_in_any_json_file(family: str, every: int, folder: Path) -> None:
    """Refused, or read as a configuration that plans; an absurd one may plan nothing."""
    refused = tried = 0
    for file in FILES:
        if not (folder / file).is_file():
            continue
        original = (folder / file).read_text("utf-8")
        content = json.loads(original)
        for number, path in enumerate(places(content)):
            for value in ABSURD[number % every :: every]:
                (folder / file).write_text(json.dumps(replaced(content, path, value)), "utf-8")
                tried += 1
                try:
                    processor = _native.Processor(folder, "", family)
                except CheckpointError as error:
                    plainly(str(error))
                    refused += 1
                    continue
                for least in plans(processor):
                    assert least > 0, (file, path, value)
        (folder / file).write_text(original, "utf-8")
    assert refused > tried / 10


def names_of(folder: Path) -> list[str]:
    with safe_open(folder / checkpoints.WEIGHTS, framework="pt") as file:
        names = sorted(file.keys())
    return [names[0], names[len(names) // 2], names[-1]]


def longer(value: torch.Tensor) -> torch.Tensor:
    return torch.cat([value, value[:1]])


Change = Callable[[dict[str, torch.Tensor], str], object]
FAULTS: dict[str, tuple[Change, str]] = {
    "missing": (lambda tensors, name: tensors.pop(name), "missing"),
    "extra": (
        lambda tensors, name: tensors.update({name + "_stranger": tensors[name].clone()}),
        "unexpected",
    ),
    "misshapen": (lambda tensors, name: tensors.update({name: longer(tensors[name])}), "of another shape"),
    "integers": (lambda tensors, name: tensors.update({name: tensors[name].to(torch.int8)}), "quantised"),
    "float8": (
        lambda tensors, name: tensors.update({name: tensors[name].to(torch.float8_e4m3fn)}),
        "quantised",
    ),
    "float64": (lambda tensors, name: tensors.update({name: tensors[name].double()}), "quantised"),
    "a scale": (
        lambda tensors, name: tensors.update({name + "_scale": torch.ones(1)}),
        "quantised|unexpected",
    ),
    "NaN": (lambda tensors, name: tensors[name].view(-1)[-1].fill_(float("nan")), "NaN or infinity"),
}


@families
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_one_tensor(family: str, fault: str, folder: Path) -> None:
    change, words = FAULTS[fault]
    original = (folder / checkpoints.WEIGHTS).read_bytes()
    for name in names_of(folder):
        checkpoints.edit_tensors(folder, lambda tensors: change(tensors, name))  # noqa: B023
        with pytest.raises(CheckpointError, match=words) as error:
            Encoder(folder, "", "cpu", family)
        plainly(str(error.value))
        assert name.rpartition(".")[0] in str(error.value)
        (folder / checkpoints.WEIGHTS).write_bytes(original)


@families
def test_weights_of_other_floating_types(family: str, folder: Path) -> None:
    """A mixture loads, cast to the type of execution."""

    def mix(tensors: dict[str, torch.Tensor]) -> None:
        for index, name in enumerate(sorted(tensors)):
            tensors[name] = tensors[name].to((torch.float32, torch.float16, torch.bfloat16)[index % 3])

    checkpoints.edit_tensors(folder, mix)
    with Encoder(folder, "", "cpu", family, dtype="bfloat16") as encoder:
        assert str(encoder.dtype) == "torch.bfloat16"
