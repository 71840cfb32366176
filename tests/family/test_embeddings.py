"""Embeddings against transformers' towers on the same bytes: tiny towers and towers of published width.

In reduced precision none is exact: ours may be as far from the float32 result as transformers' is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import checkpoints
import images
import numpy as np
import pytest
from goldens import cosine, relative

from mm_libtorch_encoder import Encoder, _native

upstream = pytest.importorskip("reference.qwen_glm", reason="needs transformers and torchvision")

SIZES = [
    (640, 427), (1, 1), (30, 1700), (1100, 23), (256, 256),
    (83, 57), (512, 300), (224, 224), (448, 448), (333, 777),
]  # fmt: skip
FLOAT32_BOUND = 1e-5
# Relative L2 to the float32 result and least cosine to it; then ours in units of transformers' own error.
NARROW_BOUND = {"bfloat16": (1.2e-2, 0.9999), "float16": (2e-3, 0.999998)}
NO_WORSE = 1.05

Figures = Callable[[str], None]
both_widths = pytest.mark.parametrize("checkpoint", ["tiny", "published width"], indirect=True)
wide_is_slow = pytest.mark.parametrize(
    "checkpoint", ["tiny", pytest.param("published width", marks=pytest.mark.slow)], indirect=True
)


@pytest.fixture(scope="module", params=["qwen35", "glm53"])
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def checkpoint(
    request: pytest.FixtureRequest,
    family: str,
    demo_checkpoint: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Path]:
    if request.param == "tiny":
        yield demo_checkpoint(family)
        return
    yield checkpoints.published_width(family, tmp_path_factory.mktemp("wide") / family, seed=1)
    upstream.tower.cache_clear()


@pytest.fixture(scope="module")
def sources() -> list[bytes]:
    return [images.png(width, height, seed) for seed, (width, height) in enumerate(SIZES)]


@pytest.fixture(scope="module")
def inputs(checkpoint: Path, sources: list[bytes]) -> list[tuple]:
    return [upstream.preprocess(checkpoint, data) for data in sources]


@pytest.fixture(scope="module")
def exact(checkpoint: Path, inputs: list[tuple]) -> list[np.ndarray]:
    """transformers in float32."""
    return reference(checkpoint, inputs, "float32")


def reference(checkpoint: Path, inputs: list[tuple], dtype: str) -> list[np.ndarray]:
    outputs = [upstream.forward(checkpoint, *each, dtype)["embeddings"] for each in inputs]
    return [output.float().numpy() for output in outputs]


def ours(checkpoint: Path, family: str, sources: list[bytes], dtype: str) -> list[np.ndarray]:
    with Encoder(checkpoint, "test", "cpu", family, dtype=dtype) as encoder:
        return [result.tensor.float().numpy() for result in encoder.generate(sources)]


@both_widths
def test_float32(
    family: str, checkpoint: Path, sources: list[bytes], exact: list[np.ndarray], figures: Figures
) -> None:
    errors = [
        relative(*pair) for pair in zip(ours(checkpoint, family, sources, "float32"), exact, strict=True)
    ]
    figures(f"{family} {width(exact)} float32: relative L2 at most {max(errors):.2e} of {len(errors)} images")
    assert max(errors) <= FLOAT32_BOUND


@both_widths
def test_bfloat16(
    family: str,
    checkpoint: Path,
    sources: list[bytes],
    inputs: list[tuple],
    exact: list[np.ndarray],
    figures: Figures,
) -> None:
    check_reduced(family, checkpoint, "bfloat16", sources, inputs, exact, figures)


@wide_is_slow
def test_float16(
    family: str,
    checkpoint: Path,
    sources: list[bytes],
    inputs: list[tuple],
    exact: list[np.ndarray],
    figures: Figures,
) -> None:
    check_reduced(family, checkpoint, "float16", sources, inputs, exact, figures)


def check_reduced(
    family: str,
    checkpoint: Path,
    dtype: str,
    sources: list[bytes],
    inputs: list[tuple],
    exact: list[np.ndarray],
    figures: Figures,
) -> None:
    got = ours(checkpoint, family, sources, dtype)
    theirs = reference(checkpoint, inputs, dtype)
    errors = [relative(*pair) for pair in zip(got, exact, strict=True)]
    their_errors = [relative(*pair) for pair in zip(theirs, exact, strict=True)]
    angle = min(cosine(*pair) for pair in zip(got, exact, strict=True))
    ratios = [mine / other for mine, other in zip(errors, their_errors, strict=True)]
    whole = relative(np.concatenate(got), np.concatenate(exact)) / relative(
        np.concatenate(theirs), np.concatenate(exact)
    )
    figures(
        f"{family} {width(exact)} {dtype}: relative L2 to float32 at most {max(errors):.2e}, transformers "
        f"{max(their_errors):.2e}, least cosine {angle:.6f}; error over transformers' {whole:.3f} in all, "
        f"{min(ratios):.3f} to {max(ratios):.3f} by image"
    )
    bound, least = NARROW_BOUND[dtype]
    assert max(errors) <= bound
    assert angle >= least
    assert whole <= NO_WORSE


@wide_is_slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_fused_operators_equal_plain_ones(
    family: str, checkpoint: Path, dtype: str, sources: list[bytes], figures: Figures
) -> None:
    """The plain forms are ATen's own operators, one after the other."""
    fused = ours(checkpoint, family, sources, dtype)
    _native.set_plain_ops(True)
    try:
        plain = ours(checkpoint, family, sources, dtype)
    finally:
        _native.set_plain_ops(False)
    errors = [relative(*pair) for pair in zip(fused, plain, strict=True)]
    figures(f"{family} {width(fused)} {dtype}: fused against plain operators {max(errors):.2e}")
    assert max(errors) <= {"float32": 5e-6, "bfloat16": 1.5e-2, "float16": 2e-3}[dtype]
    # In float16 linears have one form only, and the others may agree to the bit.
    assert max(errors) > 0 or dtype == "float16", "the plain operators do not seem to have run"


def width(outputs: list[np.ndarray]) -> str:
    return f"width {outputs[0].shape[1]}"
