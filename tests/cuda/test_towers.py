"""Towers on device "cuda:0" without a GPU: every family takes the CUDA path, on the double's host or meta device."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scripts import run

from mm_libtorch_encoder import _native

FAMILIES = [family for family, *_ in _native.families()]
# Of the largest embedding. Half precision: kernels round once where plain operators round at each step.
BOUND = {"float32": 1e-5, "bfloat16": 3e-2, "float16": 4e-3}

COMPARE = """
    import json, sys
    import torch
    import images
    from cuda_double import Double
    from mm_libtorch_encoder import Encoder, _native
    import mm_libtorch_encoder.encoder

    library, folder, dtype = sys.argv[1:]
    sources = [images.png(128, 96, 1), images.png(200, 60, 2), images.png(70, 75, 3)]

    def tensors(device):
        with Encoder(folder, "demo", device, dtype=dtype) as encoder:
            return [result.tensor for result in encoder.generate(sources)]

    wanted = tensors("cpu")
    double = Double(library)
    report = {}
    for name, parts in (("fused", None), ("plain", [])):
        if parts is not None:
            _native.set_cuda_kernels(parts)
        double.log()
        found = tensors("cuda:0")
        assert [tensor.dtype for tensor in found] == [tensor.dtype for tensor in wanted]
        errors = [float((a - b).abs().max() / b.abs().max()) for a, b in zip(map(torch.Tensor.double, found),
                                                                             map(torch.Tensor.double, wanted))]
        report[name] = {"error": max(errors), "launches": double.launches()}
    print(json.dumps(report))
"""

META = """
    import json, sys
    import images
    from cuda_double import Double
    from mm_libtorch_encoder import Encoder, _native
    import mm_libtorch_encoder.encoder

    library, folder, fused = sys.argv[1:]
    sources = [images.png(128, 96, 1), images.png(200, 60, 2)]
    with Encoder(folder, "demo", "cpu") as encoder:
        wanted = [list(result.tensor.shape) for result in encoder.generate(sources)]
    double = Double(library, meta=True)
    for dtype in ("float32", "bfloat16"):
        with Encoder(folder, "demo", "cuda:0", dtype=dtype) as encoder:
            if fused == "0":
                _native.set_cuda_kernels([])
            found = [result.tensor for result in encoder.generate(sources)]
        assert [list(tensor.shape) for tensor in found] == wanted
        assert {tensor.device.type for tensor in found} == {"meta"}
    print("good")
"""


def report(double: Path, folder: Path, dtype: str) -> dict[str, Any]:
    outcome = run(COMPARE, double, folder, dtype)
    assert outcome.code == 0, outcome.err
    found: dict[str, Any] = json.loads(outcome.out.splitlines()[-1])
    return found


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_tower_gives_the_cpus_embeddings(
    double: Path, demo_checkpoint: Callable[[str], Path], family: str, dtype: str
) -> None:
    found = report(double, demo_checkpoint(family), dtype)
    for path in ("fused", "plain"):
        assert found[path]["error"] < BOUND[dtype], path
    own = {"norm", "rotary", "gated", "positions", "activation", "linear_gelu", "flash_attention"}
    assert own & set(found["fused"]["launches"])
    assert not own & set(found["plain"]["launches"])


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_mixes_host_and_device(
    double: Path, demo_checkpoint: Callable[[str], Path], family: str, fused: bool
) -> None:
    """On "meta", a tensor that was left on the host fails in the first operator that meets it."""
    outcome = run(META, double, demo_checkpoint(family), int(fused))
    assert outcome.code == 0, outcome.err
    assert outcome.out.splitlines()[-1] == "good"
