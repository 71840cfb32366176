"""Every family against what its upstream computed: tests/goldens, by tests/support/make_goldens.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import goldens
import numpy as np
import parity
import pytest

from mm_libtorch_encoder import Encoder, _native

FAMILIES = sorted(file.stem for file in goldens.FOLDER.glob("*.json"))
pytestmark = pytest.mark.parametrize("family", FAMILIES)


def backend_of(name: str) -> dict[str, str]:
    return {} if name == "default" else {"backend": name}


def test_the_checkpoint_is_the_recorded_one(family: str, demo_checkpoint: Callable[[str], Path]) -> None:
    assert goldens.folder_digest(demo_checkpoint(family)) == goldens.load(family)["checkpoint"]["sha256"], (
        "make_checkpoint writes other bytes than when the golden was recorded: if meant, record again"
    )


def test_pixel_values_and_grids_are_equal_bit_for_bit(
    family: str, demo_checkpoint: Callable[[str], Path]
) -> None:
    for case in goldens.load(family)["cases"]:
        spec = goldens.spec(case["item"])
        for backend, wanted in case["pixel_values"].items():
            processor = _native.Processor(
                demo_checkpoint(family), "", goldens.family_of(family), **backend_of(backend)
            )
            pixels, grid = processor.pixel_values(spec.data(), "float32")
            assert [list(grid)] == case["grid_thws"], f"{spec} {backend}"
            if spec.exact:
                assert goldens.exact(pixels) == wanted, f"{spec} {backend}"
            else:
                near = goldens.relative(goldens.spaced(pixels), goldens.samples(wanted))
                assert list(pixels.shape) == wanted["shape"] and near <= 1e-6, f"{spec} {backend}: {near:.1e}"


def embeddings(encoder: Encoder, cases: list[dict[str, Any]]) -> list[np.ndarray]:
    results = encoder.generate(goldens.spec(case["item"]).data() for case in cases)
    for case, result in zip(cases, results, strict=True):
        if encoder.modality == "image":
            assert [list(grid) for grid in result.metadata.grid_thws] == case["grid_thws"]
        assert list(result.tensor.shape) == case["embeddings"]["float32"]["shape"]
    return [result.tensor.float().numpy() for result in results]


def test_float32_embeddings(family: str, shared_encoder: Callable[..., Encoder]) -> None:
    cases = goldens.load(family)["cases"]
    for case, values in zip(cases, embeddings(shared_encoder(family), cases), strict=True):
        wanted = case["embeddings"]["float32"]
        assert goldens.relative(goldens.spaced(values), goldens.samples(wanted)) <= 1e-5, case["item"]
        assert np.linalg.norm(values.astype(np.float64)) == pytest.approx(wanted["norm"], rel=1e-5)


def test_further_outputs(family: str, shared_encoder: Callable[..., Encoder]) -> None:
    """Deepstack's levels, where the tower has any, in float32; its bfloat16 has a test of its own."""
    cases = goldens.load(family)["cases"]
    names = {name for case in cases for name in case.get("further", {})}
    for case in cases:
        outputs = parity.encoded(shared_encoder(family), goldens.spec(case["item"]).data())
        assert outputs.keys() == names | {"embeddings", "grid_thws", "embedding_offsets"}
        for name in names:
            wanted = case["further"][name]["float32"]
            assert list(outputs[name].shape) == wanted["shape"], case["item"]
            got = goldens.spaced(outputs[name].numpy())
            assert goldens.relative(got, goldens.samples(wanted)) <= 1e-5, case["item"]


def test_bfloat16_embeddings(family: str, shared_encoder: Callable[..., Encoder]) -> None:
    """No further from upstream's float32 than upstream's own bfloat16 is."""
    cases = goldens.load(family)["cases"]
    got = [goldens.spaced(values) for values in embeddings(shared_encoder(family, "bfloat16"), cases)]
    exact, upstream = (
        np.concatenate([goldens.samples(case["embeddings"][dtype]) for case in cases])
        for dtype in ("float32", "bfloat16")
    )
    ours, theirs = goldens.relative(np.concatenate(got), exact), goldens.relative(upstream, exact)
    assert ours <= 1.2e-2
    assert ours <= 1.05 * theirs, f"ours {ours:.3e}, upstream's {theirs:.3e}"
    assert goldens.cosine(np.concatenate(got), exact) >= 0.9999
