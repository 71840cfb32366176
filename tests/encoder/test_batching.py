"""Several images in one run of the tower: each keeps its result, its memory and its failure."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoints
import goldens
import images
import pytest
import sounds
import torch
from load import busy, joined, until

from mm_libtorch_encoder import Encoder, ImageResult, MediaError

CheckpointOf = Callable[[str], Path]
FAMILIES = [path.stem for path in sorted(goldens.FOLDER.glob("*.json"))]
# Relative L2 distance of a batched result to the single one, as docs/serving.md states it.
BOUND = {"float32": 2e-6, "bfloat16": 1e-2}
SIZES = [(90, 60), (300, 200), (64, 500), (200, 200), (28, 28), (333, 100)]
SAMPLES = [2_000, 24_000, 1, 9_999, 48_001, 30_000]


def sources_of(family: str) -> list[bytes]:
    """Items of different lengths that the family reads."""
    if family == "muse_audio":
        return [sounds.Sound(samples, seed).data() for seed, samples in enumerate(SAMPLES)]
    return [images.png(width, height, seed) for seed, (width, height) in enumerate(SIZES)]


def long_source_of(family: str) -> bytes:
    """An item that keeps the tower busy for a good part of a second."""
    return sounds.Sound(2_400_000).data() if family == "muse_audio" else images.png(1200, 900)


def distance(ours: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((ours.double() - wanted.double()).norm() / wanted.double().norm())


def batched(encoder: Encoder, sources: list[bytes]) -> list[Any]:
    """The outcomes of `sources` that all waited while the tower was busy with one before them."""
    outcomes: list[Any] = []
    with hold(encoder):
        caller = threading.Thread(
            target=lambda: outcomes.extend(encoder.generate(sources, return_errors=True))
        )
        caller.start()
        until(encoder, lambda stats: stats.preparing == 0 and stats.queued + stats.failed >= len(sources))
    joined([caller])
    return outcomes


class hold:
    """Within, the tower is at a long item."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        source = long_source_of(encoder.family)
        self.caller = threading.Thread(target=lambda: encoder.generate(source))

    def __enter__(self) -> None:
        self.caller.start()
        until(self.encoder, lambda stats: stats.running == 1)

    def __exit__(self, *_: object) -> None:
        joined([self.caller])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_batched_results_are_within_the_bound(
    demo_checkpoint: CheckpointOf, shared_encoder: Callable[..., Encoder], family: str, dtype: str
) -> None:
    sources = sources_of(family)
    wanted = shared_encoder(family, dtype).generate(sources)
    name = goldens.family_of(family)
    with Encoder(demo_checkpoint(family), "demo", "cpu", name, dtype=dtype, max_batch_images=6) as encoder:
        results = encoder.generate(sources)
        forwards = encoder.stats().forwards
        if forwards == len(sources):  # the tower was faster than preprocessing
            results, forwards = batched(encoder, sources), encoder.stats().forwards - forwards - 1
    assert forwards < len(sources)
    for result, same in zip(results, wanted, strict=True):
        assert result.metadata == same.metadata
        assert distance(result.tensor, same.tensor) <= BOUND[dtype]


def test_batches_fill_up_to_their_bounds(demo_checkpoint: CheckpointOf) -> None:
    """20 tokens an image: 4 images by the first bound, 3 by the second."""
    for bounds, forwards in [
        ({"max_batch_images": 4}, 3),
        ({"max_batch_images": 9, "max_batch_tokens": 65}, 4),
    ]:
        with Encoder(demo_checkpoint("glm53"), "demo", "cpu", dtype="float32", **bounds) as encoder:
            outcomes: list[Any] = []
            with busy(encoder):
                caller = threading.Thread(
                    target=lambda out=outcomes, of=encoder: out.extend(
                        of.generate([images.png(90, 60, 1)] * 12)
                    )
                )
                caller.start()
                until(encoder, lambda stats: stats.queued == 12 and stats.preparing == 0)
            joined([caller])
            assert (len(outcomes), encoder.stats().forwards) == (12, 1 + forwards)


def test_nobody_waits_for_a_batch(demo_checkpoint: CheckpointOf) -> None:
    """One image alone runs at once, and so does one beyond the bound on tokens."""
    with Encoder(demo_checkpoint("glm53"), "demo", "cpu", max_batch_images=64, max_batch_tokens=1) as encoder:
        for _ in range(3):
            assert len(encoder.generate(images.png(90, 60, 1))) == 1
        assert len(encoder.generate([images.png(90, 60, 1)] * 4)) == 4
        assert encoder.stats().forwards == 7


def test_each_result_owns_its_memory(demo_checkpoint: CheckpointOf) -> None:
    with Encoder(demo_checkpoint("glm53"), "demo", "cpu", dtype="float32", max_batch_images=8) as encoder:
        results = batched(encoder, [images.png(90, 60, seed) for seed in range(8)])
        assert encoder.stats().forwards < 9
    for result in results:
        tensor = result.tensor
        assert tensor.is_contiguous() and tensor.storage_offset() == 0
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
        assert result.metadata.strides == tensor.stride()


def test_levels_of_deepstack_stay_with_their_image(
    demo_checkpoint: CheckpointOf, shared_encoder: Callable[..., Encoder]
) -> None:
    sources = [images.png(width, height, seed) for seed, (width, height) in enumerate(SIZES)]
    alone = [shared_encoder("qwen3_vl").encode_image(source) for source in sources]
    results: dict[int, dict[str, torch.Tensor]] = {}
    with Encoder(demo_checkpoint("qwen3_vl"), "demo", "cpu", dtype="float32", max_batch_images=6) as encoder:

        def work(index: int) -> None:
            results[index] = encoder.encode_image(sources[index])

        with hold(encoder):
            callers = [threading.Thread(target=work, args=(index,)) for index in range(len(sources))]
            for caller in callers:
                caller.start()
            until(encoder, lambda stats: stats.queued == len(sources) and stats.preparing == 0)
        joined(callers)
        assert encoder.stats().forwards == 2
    for index, single in enumerate(alone):
        assert single["deepstack"].dim() == 3
        for name in ("embeddings", "deepstack"):
            assert results[index][name].shape == single[name].shape
            assert distance(results[index][name], single[name]) <= BOUND["float32"]


def test_a_bad_image_fails_alone(demo_checkpoint: CheckpointOf) -> None:
    good = images.png(90, 60, 1)
    sources = [good, b"bad", images.png(300, 300)[:5000], good, good]
    with Encoder(demo_checkpoint("glm53"), "demo", "cpu", dtype="float32", max_batch_images=8) as encoder:
        outcomes = batched(encoder, sources)
    assert [type(outcome) for outcome in outcomes] == [
        ImageResult, MediaError, MediaError, ImageResult, ImageResult,
    ]  # fmt: skip


def test_values_that_are_not_numbers_do_not_spread(demo_checkpoint: CheckpointOf) -> None:
    """Attention stays within an image: NaN of a neighbour in the same run does not reach it."""
    outputs: dict[str, torch.Tensor] = {}
    with Encoder(demo_checkpoint("glm53"), "demo", "cpu", dtype="float32", max_batch_images=8) as encoder:

        def work(name: str, value: float) -> None:
            outputs[name] = encoder.encode_pixels(torch.full((64, 1176), value), [(1, 8, 8)])["embeddings"]

        wanted = encoder.encode_pixels(torch.full((64, 1176), 0.5), [(1, 8, 8)])["embeddings"]
        with busy(encoder):
            callers = [
                threading.Thread(target=work, args=item)
                for item in {"a": 0.5, "b": float("nan"), "c": 0.5}.items()
            ]
            for caller in callers:
                caller.start()
            until(encoder, lambda stats: stats.queued == 3)
        joined(callers)
        assert encoder.stats().forwards == 3
    assert bool(outputs["b"].isnan().any())
    for name in "ac":
        assert distance(outputs[name], wanted) <= BOUND["float32"]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_bound_at_published_width(tmp_path: Path, dtype: str) -> None:
    pytest.importorskip("reference.qwen_glm", reason="needs transformers and torchvision")
    folder = checkpoints.published_width("qwen35", tmp_path / "wide", depth=2)
    sources = [images.png(224, 224, seed) for seed in range(8)]
    with Encoder(folder, "wide", "cpu", dtype=dtype) as encoder:
        wanted = encoder.generate(sources)
    with Encoder(folder, "wide", "cpu", dtype=dtype, max_batch_images=8) as encoder:
        results = batched(encoder, sources)
        assert encoder.stats().forwards < 9
    for result, same in zip(results, wanted, strict=True):
        assert distance(result.tensor, same.tensor) <= BOUND[dtype]
