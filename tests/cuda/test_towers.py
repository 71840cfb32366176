"""Towers on device "cuda:0" without a GPU: every family takes the CUDA path, on the double's host or meta device."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from scripts import run

from mm_libtorch_encoder import _native

FAMILIES = [family for family, *_ in _native.families()]
# Of the largest embedding. Half precision: kernels round once where plain operators round at each step.
BOUND = {"float32": 1e-5, "bfloat16": 3e-2, "float16": 4e-3}
KERNELS = {
    "norm", "add_norm", "rotary", "gated", "positions", "activation", "linear_gelu", "flash_attention", "patches"
}  # fmt: skip
MOST_LAUNCHES = 9
SECONDS = 600

COMPARE = """
    import json, sys
    from pathlib import Path
    import torch
    import images, sounds
    from cuda_double import Double
    from mm_libtorch_encoder import Encoder, _native
    import mm_libtorch_encoder.encoder

    library, *folders = sys.argv[1:]
    pictures = [images.png(100, 60, 2), images.png(70, 75, 3)]
    heard = [sounds.Sound(samples).data() for samples in (70_000, 5_000)]
    DTYPES = ("float32", "bfloat16", "float16")

    def tensors(folder, device, dtype):
        with Encoder(folder, "demo", device, Path(folder).name, dtype=dtype) as encoder:
            sources = pictures if encoder.modality == "image" else heard
            if device != "cpu":
                double.log()
            (first,) = encoder.generate(sources[:1])
            launches = double.launches() if device != "cpu" else []
            return [first.tensor, *(result.tensor for result in encoder.generate(sources[1:]))], launches

    wanted = {(folder, dtype): tensors(folder, "cpu", dtype)[0] for folder in folders for dtype in DTYPES}
    double = Double(library)
    report = {}
    every = None
    for folder in folders:
        for dtype in DTYPES:
            for path in ("fused", "plain"):
                if every is not None:
                    _native.set_cuda_kernels(every if path == "fused" else [])
                found, launches = tensors(folder, "cuda:0", dtype)
                # Checked by the first encoder that opens: all are in use.
                every = every or [name for name, on, reason in _native.cuda_kernels() if on and not reason]
                errors = [float((a.double() - b.double()).abs().max() / b.double().abs().max())
                          for a, b in zip(found, wanted[folder, dtype])]
                same = [a.dtype == b.dtype for a, b in zip(found, wanted[folder, dtype])]
                report[f"{folder} {dtype} {path}"] = {"error": max(errors), "launches": launches, "dtypes": all(same)}
    folder = folders[-1]
    for off in every:
        _native.set_cuda_kernels([name for name in every if name != off])
        found, launches = tensors(folder, "cuda:0", "float32")
        error = float((found[0].double() - wanted[folder, "float32"][0].double()).abs().max())
        report[f"without {off}"] = {"error": error, "launches": launches, "dtypes": True}
    report["kernels"] = every
    print(json.dumps(report))
"""

META = """
    import sys
    from pathlib import Path
    import images, sounds
    from cuda_double import Double
    from mm_libtorch_encoder import Encoder, _native
    import mm_libtorch_encoder.encoder

    library, *folders = sys.argv[1:]
    pictures = [images.png(96, 64, 1), images.png(100, 60, 2)]
    heard = [sounds.Sound(samples).data() for samples in (70_000, 5_000)]

    def sources(encoder):
        return pictures if encoder.modality == "image" else heard

    wanted = {}
    for folder in folders:
        with Encoder(folder, "demo", "cpu", Path(folder).name) as encoder:
            wanted[folder] = [result.tensor.shape for result in encoder.generate(sources(encoder))]
    double = Double(library, meta=True)
    for folder in folders:
        for dtype in ("float32", "bfloat16"):
            for fused in (True, False):
                try:
                    with Encoder(folder, "demo", "cuda:0", Path(folder).name, dtype=dtype) as encoder:
                        # The check at opening finds no values on "meta", and has switched all off.
                        _native.set_cuda_kernels([name for name, *_ in _native.cuda_kernels()] if fused else [])
                        found = [result.tensor for result in encoder.generate(sources(encoder))]
                    good = [tensor.shape for tensor in found] == wanted[folder]
                    good = good and {tensor.device.type for tensor in found} == {"meta"}
                    print(folder, dtype, fused, "good" if good else "wrong shapes or device")
                except Exception as error:
                    print(folder, dtype, fused, str(error).replace(chr(10), " "))
"""


@pytest.fixture(scope="module")
def folders(demo_checkpoint: Callable[[str], Path]) -> dict[str, Path]:
    """Checkpoints by family; the last one is that whose kernels are switched off one by one."""
    return {family: demo_checkpoint(family) for family in sorted(FAMILIES, key=lambda name: name == "qwen35")}


@pytest.fixture(scope="module")
def report(double: Path, folders: dict[str, Path]) -> dict[str, Any]:
    outcome = run(COMPARE, double, *folders.values(), timeout=SECONDS)
    assert outcome.code == 0, outcome.err
    found: dict[str, Any] = json.loads(outcome.out.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def on_meta(double: Path, folders: dict[str, Path]) -> list[str]:
    outcome = run(META, double, *folders.values(), timeout=SECONDS)
    assert outcome.code == 0, outcome.err
    return outcome.out.splitlines()


@pytest.mark.parametrize("path", ["fused", "plain"])
@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_tower_gives_the_cpus_embeddings(
    report: dict[str, Any], folders: dict[str, Path], family: str, dtype: str, path: str
) -> None:
    found = report[f"{folders[family]} {dtype} {path}"]
    assert found["dtypes"]
    assert found["error"] < BOUND[dtype]
    used = KERNELS & set(found["launches"])
    assert bool(used) == (path == "fused"), used


def test_the_check_at_opening_finds_every_kernel_right(report: dict[str, Any]) -> None:
    assert len(report["kernels"]) == 9


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_mixes_host_and_device(
    on_meta: list[str], folders: dict[str, Path], family: str, dtype: str, fused: bool
) -> None:
    """On "meta", a tensor that was left on the host fails in the first operator that meets it."""
    start = f"{folders[family]} {dtype} {fused} "
    assert [line.removeprefix(start) for line in on_meta if line.startswith(start)] == ["good"]


def blocks(launches: list[str]) -> list[list[str]]:
    """What is launched from one attention up to the next: a whole block, wherever it is cut."""
    places = [index for index, name in enumerate(launches) if "attention" in name]
    assert len(places) >= 2
    return [launches[first:last] for first, last in pairwise(places)]


# The other towers have no transformer blocks.
@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ("inkling", "muse_audio")])
def test_a_block_takes_few_launches(report: dict[str, Any], folders: dict[str, Path], family: str) -> None:
    found = blocks(report[f"{folders[family]} float32 fused"]["launches"])
    # Each kind of segments of a forward is copied once, before the first block that attends within them.
    assert sum(block.count("upload") for block in found) <= 1
    counts = [len(block) - block.count("upload") for block in found]
    fewest = found[counts.index(min(counts))]
    assert min(counts) <= MOST_LAUNCHES, fewest
    assert not {"add", "aten::contiguous", "aten::to"} & set(fewest)
    if family != "qwen3_vl":  # behind some of its blocks a level of deepstack branches off
        assert max(counts) <= MOST_LAUNCHES, found[counts.index(max(counts))]


def test_the_very_launches_of_a_block(report: dict[str, Any], folders: dict[str, Path]) -> None:
    first, *_ = blocks(report[f"{folders['qwen35']} float32 fused"]["launches"])
    expected = ["efficient_attention", "aten::linear", "add_norm", "linear_gelu", "aten::linear", "add_norm"]
    assert first == [*expected, "aten::linear", "rotary"]


@pytest.mark.parametrize("kernel", ["add_norm", "rotary", "linear_gelu", "attention", "positions"])
def test_each_kernel_is_switched_off_alone(report: dict[str, Any], kernel: str) -> None:
    found = report[f"without {kernel}"]
    names = {"attention": "efficient_attention"}
    used = {"add_norm", "rotary", "linear_gelu", "efficient_attention", "positions"} & set(found["launches"])
    assert used == {"add_norm", "rotary", "linear_gelu", "efficient_attention", "positions"} - {
        names.get(kernel, kernel)
    }
    assert found["error"] < 1e-3
