"""Metadata says what the tensor is, cannot be changed, and travels between processes."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import images
import pytest
import torch
from scripts import run

import mm_libtorch_encoder
from mm_libtorch_encoder import Encoder, ImageMetadata, ImageResult

EncoderOf = Callable[..., Encoder]
GOOD = images.png(300, 200, 1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("family", ["qwen35", "glm53"])
def test_values_equal_the_tensors(shared_encoder: EncoderOf, family: str, dtype: str) -> None:
    (result,) = shared_encoder(family, dtype).generate(GOOD)
    tensor, metadata = result
    assert metadata.model == "demo"
    assert metadata.shape == tuple(tensor.shape)
    assert metadata.length == tensor.shape[0] == len(tensor)
    assert metadata.strides == tensor.stride()
    assert metadata.dtype == str(tensor.dtype) == f"torch.{dtype}"
    assert torch.device(metadata.device) == tensor.device
    assert metadata.embedding_offsets == (0, metadata.length)
    ((frames, rows, columns),) = metadata.grid_thws
    assert frames == 1 and rows * columns == 4 * metadata.length


def kinds(value: Any) -> set[type]:
    if isinstance(value, tuple):
        return {tuple}.union(*(kinds(part) for part in value))
    return {type(value)}


def test_it_is_made_of_plain_values(shared_encoder: EncoderOf) -> None:
    metadata = shared_encoder("glm53").generate(GOOD)[0].metadata
    values = [getattr(metadata, field.name) for field in dataclasses.fields(metadata)]
    assert set().union(*map(kinds, values)) == {int, str, tuple}


def test_it_is_frozen_and_compares(shared_encoder: EncoderOf) -> None:
    encoder = shared_encoder("glm53")
    first, second = (encoder.generate(GOOD)[0].metadata for _ in range(2))
    assert first == second and hash(first) == hash(second)
    assert first != encoder.generate(images.png(300, 200, 2))[0].metadata
    for change in (lambda: setattr(first, "length", 5), lambda: setattr(first, "other", 5)):
        with pytest.raises((dataclasses.FrozenInstanceError, AttributeError, TypeError)):
            change()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_it_pickles(shared_encoder: EncoderOf, protocol: int) -> None:
    result = shared_encoder("glm53").generate(GOOD)[0]
    assert pickle.loads(pickle.dumps(result.metadata, protocol)) == result.metadata
    assert copy.deepcopy(result.metadata) == result.metadata
    if protocol >= 2:
        tensor, metadata = pickle.loads(pickle.dumps(result, protocol))
        assert torch.equal(tensor, result.tensor) and metadata == result.metadata


def test_it_is_read_where_torch_is_never_imported(shared_encoder: EncoderOf, tmp_path: Path) -> None:
    metadata = shared_encoder("glm53").generate(GOOD)[0].metadata
    (tmp_path / "metadata").write_bytes(pickle.dumps(metadata))
    program = """
        import pickle, sys
        print(pickle.load(open(sys.argv[1], "rb")))
        assert "torch" not in sys.modules
    """
    outcome = run(program, tmp_path / "metadata")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.strip() == repr(metadata)


def test_the_hash(shared_encoder: EncoderOf, demo_checkpoint: Callable[[str], Path]) -> None:
    def digest(encoder: Encoder, data: bytes = GOOD) -> str:
        return encoder.generate(data)[0].metadata.mm_hash

    encoder = shared_encoder("glm53")
    first = digest(encoder)
    assert re.fullmatch("[0-9a-f]{64}", first)
    assert digest(encoder) == digest(encoder, bytearray(GOOD)) == first
    assert digest(encoder, images.png(300, 200, 2)) != first
    # The same pixels in another file are another item: the source bytes count.
    assert digest(encoder, images.encode(images.picture(300, 200, 1), compress_level=9)) != first
    assert digest(shared_encoder("qwen35")) != first
    with Encoder(demo_checkpoint("glm53"), "another name", "cpu") as other:
        assert digest(other) != first


def test_the_hash_tells_what_makes_other_pixels(shared_encoder: EncoderOf) -> None:
    """Another resampling arithmetic gives other embeddings of the same bytes."""
    data = images.png(333, 777, 3, grain_only=True)
    default, pillow = (
        shared_encoder("qwen35", **options).generate(data)[0] for options in ({}, {"backend": "pillow"})
    )
    assert not torch.equal(default.tensor, pillow.tensor)
    assert default.metadata.mm_hash != pillow.metadata.mm_hash


def test_the_hash_is_the_same_in_another_process(
    shared_encoder: EncoderOf, demo_checkpoint: Callable[[str], Path]
) -> None:
    program = """
        import images, sys
        from mm_libtorch_encoder import Encoder
        with Encoder(sys.argv[1], "demo", "cpu") as encoder:
            print(encoder.generate(images.png(300, 200, 1))[0].metadata.mm_hash)
    """
    outcome = run(program, demo_checkpoint("glm53"))
    assert outcome.out.strip() == shared_encoder("glm53").generate(GOOD)[0].metadata.mm_hash, outcome.err


EXCEPTIONS = ("CheckpointError", "DeviceOutOfMemory", "EncoderClosed", "MediaError", "RuntimeMismatch")


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_exceptions_pickle(name: str) -> None:
    kind = getattr(mm_libtorch_encoder, name)
    again = pickle.loads(pickle.dumps(kind("a sentence")))
    assert type(again) is kind and again.args == ("a sentence",)


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_exceptions_show_the_packages_name(name: str) -> None:
    kind = getattr(mm_libtorch_encoder, name)
    assert f"{kind.__module__}.{kind.__qualname__}" == f"mm_libtorch_encoder.{name}"
    assert issubclass(kind, ValueError if name in ("CheckpointError", "MediaError") else RuntimeError)


def test_an_encoder_does_not_pickle(shared_encoder: EncoderOf) -> None:
    for attempt in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="pickle"):
            attempt(shared_encoder("glm53"))


def test_results_unpack_and_have_names(shared_encoder: EncoderOf) -> None:
    result = shared_encoder("glm53").generate(GOOD)[0]
    tensor, metadata = result
    assert isinstance(result, ImageResult) and isinstance(metadata, ImageMetadata)
    assert result.tensor is tensor and result.metadata is metadata
