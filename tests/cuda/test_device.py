"""Asking for CUDA where it cannot be had: one sentence each, of the right kind, that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from scripts import run

import mm_libtorch_encoder
from mm_libtorch_encoder import device, runtime

TORCH: dict[str, Any] = {"torch_version": "2.14.1+cu130", "torch_cuda": "13.0"}


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (
            {"torch_version": "2.14.1+cpu", "torch_cuda": None},
            ["built with CUDA", "2.14.1+cpu, is for the CPU alone", 'device="cpu"'],
        ),
        (
            {"has_library": False},
            ["libmm_cuda.so, which is not here", "runtime key has cu13", 'device="cpu"'],
        ),
        ({"has_library": False, "checkout": True}, ["python -m tools.cuda", 'device="cpu"']),
        (
            {"torch_version": "2.14.1+cu128", "torch_cuda": "12.8"},
            ["needs CUDA 13", "has CUDA 12.8", "runtime key has cu12"],
        ),
    ],
)
def test_what_is_missing_is_said(facts: dict[str, Any], words: list[str]) -> None:
    fitting = {"has_library": True, "built_for": "13.0", "checkout": False, **TORCH}
    sentence = device.obstacle(**{**fitting, **facts})
    assert sentence is not None and "\n" not in sentence and sentence.endswith(".")
    for part in words:
        assert part in sentence, sentence


def test_nothing_is_missing() -> None:
    assert device.obstacle(has_library=True, built_for="13.0", checkout=False, **TORCH) is None
    newer = {"torch_version": "2.16.0+cu132", "torch_cuda": "13.2"}
    assert device.obstacle(has_library=True, built_for="13.0", checkout=False, **newer) is None
    assert device.obstacle(has_library=True, built_for=None, checkout=True, **TORCH) is None


OPEN = """
    import sys
    from pathlib import Path
    from mm_libtorch_encoder import Encoder, RuntimeMismatch, device
    import mm_libtorch_encoder.encoder, torch

    folder, name, library = sys.argv[1:]
    if library:
        device._library = lambda: Path(library)
        torch.version.cuda = torch.version.cuda or "13.0"
    try:
        Encoder(folder, "demo", name)
    except RuntimeMismatch as error:
        print(error)
"""


def refusal(folder: Path, name: str = "cuda:0", library: str | Path = "") -> str:
    outcome = run(OPEN, folder, name, library)
    assert outcome.code == 0, outcome.err
    (sentence,) = outcome.out.splitlines()
    return sentence


def test_a_library_that_is_none(demo_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    broken = tmp_path / "libmm_cuda.so"
    broken.write_bytes(b"not a library")
    assert "does not load beside this Torch" in refusal(demo_checkpoint("qwen35"), library=broken)
    absent = refusal(demo_checkpoint("qwen35"), library=tmp_path / "absent.so")
    assert "libmm_cuda.so, which is not here" in absent


def test_a_library_of_another_version(demo_checkpoint: Callable[[str], Path]) -> None:
    package = Path(mm_libtorch_encoder.__file__).parent
    sentence = refusal(demo_checkpoint("qwen35"), library=package / "libmm_torch.so")
    assert "libmm_cuda.so is of another version than this extension" in sentence


def test_a_device_that_is_not_there(demo_checkpoint: Callable[[str], Path], double: Path) -> None:
    sentence = refusal(demo_checkpoint("qwen35"), "cuda:7", double)
    assert sentence == (
        'device "cuda:7" cannot be used: there is no such GPU: the driver shows 2, the last is cuda:1; '
        'device="cpu" can'
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="this host has a GPU")
def test_this_very_host(demo_checkpoint: Callable[[str], Path]) -> None:
    """With the package's own library where it has one, else without."""
    package = Path(mm_libtorch_encoder.__file__).parent
    sentence = refusal(demo_checkpoint("qwen35"))
    assert sentence.startswith('device "cuda:0" ')
    if torch.version.cuda is None:
        assert "is for the CPU alone" in sentence
    elif not (package / device.CUDA_LIBRARY).is_file():
        assert "libmm_cuda.so, which is not here" in sentence
    else:
        assert "cannot be used: " in sentence and ("driver" in sentence or "GPU" in sentence)


def test_the_host_without_cuda_is_asked_nothing() -> None:
    """device="cpu" opens no CUDA library and starts no CUDA runtime."""
    program = """
        import sys
        from mm_libtorch_encoder import device
        device._library = None  # whoever asks for it fails
        device.prepare("cpu")
        device.prepare("cuda:x")  # no device: refused when the encoder opens
        print("libmm_cuda" in open("/proc/self/maps").read())
    """
    outcome = run(program)
    assert outcome.code == 0, outcome.err
    assert outcome.out.split() == ["False"]


def test_the_record_says_which_cuda_the_wheel_was_built_for() -> None:
    record = runtime.manifest()
    if record is None:
        pytest.skip("a source checkout has no record")
    package = Path(mm_libtorch_encoder.__file__).parent
    assert (record["cuda"] is not None) == (package / device.CUDA_LIBRARY).is_file()
