"""Arguments of `Encoder(...)`: devices, dtypes, names, paths."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoints
import images
import pytest
import torch

from mm_libtorch_encoder import CheckpointError, Encoder, RuntimeMismatch, _native

CheckpointOf = Callable[[str], Path]


def sentence(error: pytest.ExceptionInfo[BaseException]) -> str:
    """The text of an error, which must read as one sentence for a person."""
    text = str(error.value)
    assert 10 < len(text) < 5000 and "\n" not in text and text.isprintable(), text
    return text


# Devices


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:7", torch.device("cuda", 0)])
def test_a_gpu_that_is_not_there(demo_checkpoint: CheckpointOf, device: Any) -> None:
    with pytest.raises(RuntimeMismatch) as error:
        Encoder(demo_checkpoint("glm53"), "demo", device)
    assert "cuda" in sentence(error) and "cpu" in sentence(error)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_the_default_device_is_a_gpu(demo_checkpoint: CheckpointOf) -> None:
    with pytest.raises(RuntimeMismatch, match="cuda:0"):
        Encoder(demo_checkpoint("glm53"), "demo")


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")])
def test_the_cpu_by_name_and_by_torch_device(demo_checkpoint: CheckpointOf, device: Any) -> None:
    with Encoder(demo_checkpoint("glm53"), "demo", device) as encoder:
        assert encoder.device == "cpu"


@pytest.mark.parametrize(
    "device",
    ["", " cpu", "CPU", "cpu:0", "cpu:1", "tpu", "cuda:", "cuda:-1", "cuda:+1", "cuda:0x1", "cuda:1.0",
     "cuda:99999999999", "cuda:٣", "cuda:0 ", "cuda0", "meta", "cpu\0", "x" * 99_999, None, 5, b"cpu", [""]],
)  # fmt: skip
def test_what_is_no_device(demo_checkpoint: CheckpointOf, device: Any) -> None:
    with pytest.raises((ValueError, TypeError)) as error:
        Encoder(demo_checkpoint("glm53"), "demo", device)
    assert "device" in sentence(error)


# Element types


@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [
        ("float32", torch.float32),
        ("torch.bfloat16", torch.bfloat16),
        (torch.float16, torch.float16),
        (None, torch.bfloat16),
    ],
)
@pytest.mark.parametrize("family", ["qwen35", "glm53"])
def test_dtypes(demo_checkpoint: CheckpointOf, family: str, dtype: Any, wanted: torch.dtype) -> None:
    with Encoder(demo_checkpoint(family), "demo", "cpu", dtype=dtype) as encoder:
        assert encoder.dtype == wanted
        assert encoder.generate(images.png(8, 8))[0].tensor.dtype == wanted


@pytest.mark.parametrize(
    "dtype", ["", "float64", "int8", "half", "bf16", torch.float64, torch.int8, 5, "float32\0"]
)
def test_what_is_no_dtype(demo_checkpoint: CheckpointOf, dtype: Any) -> None:
    with pytest.raises(ValueError) as error:
        Encoder(demo_checkpoint("glm53"), "demo", "cpu", dtype=dtype)
    assert "dtype" in sentence(error) and "bfloat16" in sentence(error)


@pytest.mark.parametrize("stored", [torch.float32, torch.float16])
def test_the_checkpoints_own_dtype(
    demo_checkpoint: CheckpointOf, tmp_path: Path, stored: torch.dtype
) -> None:
    """Without a word in config.json the stored tensors decide, whatever they are."""
    folder = checkpoints.copied(demo_checkpoint("qwen35"), tmp_path / "checkpoint")
    checkpoints.edit_tensors(
        folder, lambda tensors: tensors.update({n: t.to(stored) for n, t in tensors.items()})
    )
    with Encoder(folder, "demo", "cpu") as encoder:
        assert encoder.dtype == stored


def test_mixed_stored_dtypes(demo_checkpoint: CheckpointOf, tmp_path: Path) -> None:
    """bfloat16 widened to float32 in the file is the same tower."""
    folder = checkpoints.copied(demo_checkpoint("qwen35"), tmp_path / "checkpoint")
    checkpoints.edit_tensors(
        folder, lambda tensors: tensors.update({n: t.float() for n, t in list(tensors.items())[::2]})
    )
    source = images.png(200, 100)
    with (
        Encoder(folder, "demo", "cpu", dtype="float32") as mixed,
        Encoder(demo_checkpoint("qwen35"), "demo", "cpu", dtype="float32") as plain,
    ):
        assert torch.equal(mixed.generate(source)[0].tensor, plain.generate(source)[0].tensor)


# Names


@pytest.mark.parametrize("backend", ["", "PIL", "torchvision ", "pillow-99", "cuda"])
def test_what_is_no_backend(demo_checkpoint: CheckpointOf, backend: str) -> None:
    with pytest.raises(ValueError) as error:
        Encoder(demo_checkpoint("glm53"), "demo", "cpu", backend=backend)
    assert "backend" in sentence(error) and "torchvision" in sentence(error)


@pytest.mark.parametrize("family", ["", "GLM53", "qwen", "nonsense", "glm53\0", "x" * 10_000])
def test_an_unknown_family(demo_checkpoint: CheckpointOf, family: str) -> None:
    with pytest.raises(CheckpointError) as error:
        Encoder(demo_checkpoint("glm53"), "demo", "cpu", family)
    assert "family" in sentence(error)
    assert len(family) > 100 or ("glm53" in sentence(error) and "qwen35" in sentence(error))


def test_a_family_that_config_json_contradicts(demo_checkpoint: CheckpointOf) -> None:
    with pytest.raises(CheckpointError) as error:
        Encoder(demo_checkpoint("glm53"), "demo", "cpu", "qwen35")
    assert "glm5_next" in sentence(error) and "qwen35" in sentence(error)


@pytest.mark.parametrize("model", ["Qwen/Qwen3.5-9B", "qwen/qwen3.5-0.8b"])
def test_a_model_id_that_config_json_contradicts(demo_checkpoint: CheckpointOf, model: str) -> None:
    with pytest.raises(CheckpointError) as error:
        Encoder(demo_checkpoint("glm53"), model, "cpu")
    assert "model id" in sentence(error) and "qwen35" in sentence(error)


@pytest.mark.parametrize(
    "model", ["", "zai-org/GLM-5.3-Flash", "anything", "名前/モデル", "a\nb\0c", "x" * 100_000]
)
def test_model_names_are_carried_as_they_are(demo_checkpoint: CheckpointOf, model: str) -> None:
    with Encoder(demo_checkpoint("glm53"), model, "cpu") as encoder:
        assert encoder.model == model
        assert encoder.generate(images.png(8, 8))[0].metadata.model == model


@pytest.mark.parametrize("model", [None, 5, b"bytes", "\udcff"])
def test_what_is_no_model_name(demo_checkpoint: CheckpointOf, model: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        Encoder(demo_checkpoint("glm53"), model, "cpu")


# Paths


@pytest.mark.parametrize("kind", [str, Path, os.fsencode])
def test_kinds_of_paths(demo_checkpoint: CheckpointOf, kind: Callable[[Path], Any]) -> None:
    with Encoder(kind(demo_checkpoint("glm53")), "demo", "cpu") as encoder:
        assert encoder.generate(images.png(8, 8))


@pytest.mark.parametrize("path", [None, 5, 1.5, object()])
def test_what_is_no_path(path: Any) -> None:
    with pytest.raises(TypeError):
        Encoder(path, "demo", "cpu")


def test_a_path_that_is_not_utf8(demo_checkpoint: CheckpointOf, tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe\x80"))
    with pytest.raises(CheckpointError) as error:
        Encoder(folder, "demo", "cpu")
    assert "not a folder" in sentence(error)
    checkpoints.copied(demo_checkpoint("glm53"), folder)
    with Encoder(folder, "demo", "cpu") as encoder:
        assert encoder.generate(images.png(8, 8))


@pytest.mark.parametrize(
    "path", ["", "/", ".", "/dev/null", "/proc/self/mem", "no such folder", "a\0b", "x" * 5000]
)
def test_paths_that_hold_no_checkpoint(path: str) -> None:
    with pytest.raises(ValueError) as error:
        Encoder(path, "demo", "cpu")
    sentence(error)


def test_a_folder_that_may_not_be_read(demo_checkpoint: CheckpointOf, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads everything")
    folder = checkpoints.copied(demo_checkpoint("glm53"), tmp_path / "closed")
    folder.chmod(0)
    try:
        with pytest.raises(CheckpointError) as error:
            Encoder(folder, "demo", "cpu")
        sentence(error)
    finally:
        folder.chmod(0o700)


def test_the_planner_takes_no_empty_or_negative_size(demo_checkpoint: CheckpointOf) -> None:
    processor = _native.Processor(demo_checkpoint("glm53"), "", "glm53")
    for size in [(0, 1), (1, 0), (0, 0)]:
        with pytest.raises(ValueError, match="empty"):
            processor.plan(*size)
    for size in [(-1, 5), (2**32, 5), (5, 2**70)]:
        with pytest.raises((ValueError, OverflowError)):
            processor.plan(*size)
