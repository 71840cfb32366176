"""The fused CPU kernels give the same bits with every instruction set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from scripts import run

LEVELS = ("base", "avx2", "avx512")

PROGRAM = """
    import hashlib, sys
    import images
    from mm_libtorch_encoder import Encoder, _native

    print("level", _native.kernel_level())
    sizes = [(640, 427), (1, 1), (30, 1700), (333, 215)]
    sources = [images.png(*size, seed, grain_only=True) for seed, size in enumerate(sizes)]
    for folder in sys.argv[1:]:
        for dtype in ("float32", "bfloat16", "float16"):
            with Encoder(folder, "demo", "cpu", dtype=dtype) as encoder:
                for size, result in zip(sizes, encoder.generate(sources)):
                    bits = result.tensor.contiguous().view(dtype=__import__("torch").uint8).numpy().tobytes()
                    print(encoder.family, dtype, *size, hashlib.sha256(bits).hexdigest())
"""


def test_every_instruction_set_gives_the_same_bits(demo_checkpoint: Callable[[str], Path]) -> None:
    folders = [demo_checkpoint(family) for family in ("qwen35", "glm53")]
    results: dict[str, list[str]] = {}
    for level in LEVELS:
        outcome = run(PROGRAM, *folders, MM_KERNELS=level)
        assert outcome.code == 0, outcome.err
        first, *lines = outcome.out.splitlines()
        results[first.removeprefix("level ")] = lines
    assert "base" in results, "MM_KERNELS=base was not obeyed"
    if len(results) == 1:
        pytest.skip("this CPU runs the base kernels alone")
    assert len(results["base"]) == 24
    for level, lines in results.items():
        assert lines == results["base"], level
