"""The fused CPU kernels give the same bits with every instruction set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from scripts import run

LEVELS = ("base", "avx2", "avx512")

PROGRAM = """
    import hashlib, sys
    from pathlib import Path

    import images, sounds
    from mm_libtorch_encoder import Encoder, _native

    print("level", _native.kernel_level())
    sizes = [(640, 427), (1, 1), (30, 1700), (333, 215)]
    sources = [images.png(*size, seed, grain_only=True) for seed, size in enumerate(sizes)]
    lengths = [(1, 1), (1_920, 2), (1_921, 3), (70_001, 4)]
    heard = [sounds.Sound(*length).data() for length in lengths]
    for folder in sys.argv[1:]:
        for dtype in ("float32", "bfloat16", "float16"):
            with Encoder(folder, "demo", "cpu", Path(folder).name, dtype=dtype) as encoder:
                of_images = encoder.modality == "image"
                results = encoder.generate(sources if of_images else heard)
                for size, result in zip(sizes if of_images else lengths, results):
                    bits = result.tensor.contiguous().view(dtype=__import__("torch").uint8).numpy().tobytes()
                    print(encoder.family, dtype, *size, hashlib.sha256(bits).hexdigest())
"""


def test_every_instruction_set_gives_the_same_bits(demo_checkpoint: Callable[[str], Path]) -> None:
    folders = [demo_checkpoint(family) for family in ("qwen35", "glm53", "muse_audio")]
    results: dict[str, list[str]] = {}
    for level in LEVELS:
        outcome = run(PROGRAM, *folders, MM_KERNELS=level)
        assert outcome.code == 0, outcome.err
        first, *lines = outcome.out.splitlines()
        results[first.removeprefix("level ")] = lines
    assert "base" in results, "MM_KERNELS=base was not obeyed"
    if len(results) == 1:
        pytest.skip("this CPU runs the base kernels alone")
    assert len(results["base"]) == 36
    for level, lines in results.items():
        assert lines == results["base"], level
