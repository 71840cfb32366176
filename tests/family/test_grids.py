"""Grids and token counts against transformers' own functions, and the planner against the encoder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import images
import pytest

from mm_libtorch_encoder import Encoder, MediaError, _native

pytest.importorskip("transformers", reason="needs transformers")

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen35", "glm53")
SIZES = 20_000
LONGEST = 11_000  # squared still below the decoders' limit on pixels
families = pytest.mark.parametrize("family", FAMILIES)


def qwen2(height: int, width: int) -> tuple[int, int]:
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

    return smart_resize(height, width, factor=28, min_pixels=3136, max_pixels=12845056)


def qwen3(height: int, width: int) -> tuple[int, int]:
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

    return smart_resize(height, width, factor=32, min_pixels=65536, max_pixels=16777216)


def glm53(height: int, width: int) -> tuple[int, int]:
    from transformers.models.glm5_next.image_processing_glm5_next import smart_resize

    return smart_resize(2, height, width, temporal_factor=2, factor=28, min_pixels=16, max_pixels=8000)


CANVAS = {
    "qwen2_vl": (qwen2, 14),
    "qwen2_5_vl": (qwen2, 14),
    "qwen3_vl": (qwen3, 16),
    "qwen35": (qwen3, 16),
    "glm53": (glm53, 14),
}


@families
def test_random_sizes(family: str, demo_checkpoint: Callable[[str], Path]) -> None:
    canvas, patch = CANVAS[family]
    processor = _native.Processor(demo_checkpoint(family), "", family)
    refused = 0
    corners = [
        (1, 1),
        (1, 60_000),
        (60_000, 1),
        (11_585, 11_585),
        (2010, 10),
        (2000, 10),
        (10, 2000),
        (1999, 10),
    ]
    for width, height in corners + images.sizes(SIZES, 77, LONGEST):
        try:
            to_height, to_width = canvas(height, width)
        except ValueError:
            refused += 1
            with pytest.raises(MediaError, match="aspect ratio"):
                processor.plan(width, height)
            continue
        wanted = (1, to_height // patch, to_width // patch)
        assert processor.plan(width, height) == (wanted, wanted[1] * wanted[2] // 4), f"{width}x{height}"
    assert (refused > 0) == (family != "glm53")


@families
def test_the_encoder_gives_what_was_planned(
    family: str, demo_checkpoint: Callable[[str], Path], shared_encoder: Callable[..., Encoder]
) -> None:
    """A sweep of small and thin sizes, where rounding bites."""
    processor = _native.Processor(demo_checkpoint(family), "", family)
    encoder = shared_encoder(family)
    sizes = [(5, 900), (900, 5), (1, 57), (57, 1), (31, 32), (33, 32), (5, 144), (12, 2188)]
    sizes += [size for size in images.sizes(60, 5, 500) if max(size) <= 200 * min(size)]
    sources = [images.png(width, height, index) for index, (width, height) in enumerate(sizes)]
    for size, source, result in zip(sizes, sources, encoder.generate(sources), strict=True):
        grid, tokens = processor.plan(*size)
        assert processor.plan_bytes(source) == (grid, tokens)
        assert result.metadata.grid_thws == (grid,), size
        assert result.tensor.shape[0] == result.metadata.length == tokens, size
        assert result.metadata.embedding_offsets == (0, tokens)
