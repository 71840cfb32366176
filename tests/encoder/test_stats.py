"""Statistics: what was counted is what happened, and histograms say what they hold."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
from collections.abc import Callable
from pathlib import Path

import images
import pytest

from mm_libtorch_encoder import Encoder, EncoderStats, Histogram

STAGES = ["wait", "decode", "resize", "queue", "forward", "transfer"]


def test_an_encoder_that_did_nothing(demo_checkpoint: Callable[[str], Path]) -> None:
    with Encoder(demo_checkpoint("glm53"), "demo", "cpu") as encoder:
        stats = encoder.stats()
    counts = dataclasses.asdict(stats)
    stages = counts.pop("stages")
    assert counts.pop("graph_failure") == ""
    assert set(counts.values()) == {0}
    assert list(stages) == STAGES
    for histogram in stats.stages.values():
        assert (histogram.count, histogram.total, histogram.mean, histogram.quantile(0.5)) == (0, 0, 0, 0)


def test_every_stage_of_every_image_is_timed(demo_checkpoint: Callable[[str], Path]) -> None:
    with Encoder(demo_checkpoint("glm53"), "demo", "cpu", dtype="float32") as encoder:
        encoder.generate([images.png(300, 200, seed) for seed in range(7)] + [b"bad"], return_errors=True)
        stats = encoder.stats()
    assert (stats.completed, stats.failed, stats.forwards) == (7, 1, 7)
    assert {histogram.count for histogram in stats.stages.values()} == {7}
    for name in ("decode", "resize", "forward"):
        histogram = stats.stages[name]
        assert 1e-5 < histogram.mean < 60
        assert histogram.quantile(0) <= histogram.quantile(0.5) <= histogram.quantile(1)
        assert histogram.quantile(1) >= histogram.mean
    assert pickle.loads(pickle.dumps(stats)) == stats
    assert json.loads(json.dumps(dataclasses.asdict(stats)))["completed"] == 7


def test_buckets_double() -> None:
    bounds = tuple(1e-6 * 2**power for power in range(27))
    histogram = Histogram(bounds, (0, 3, *[0] * 24, 1, 1), 170.0)
    assert histogram.count == 5 and histogram.mean == 34
    assert histogram.quantile(0.6) == bounds[1]
    assert histogram.quantile(0.8) == bounds[26]
    assert math.isinf(histogram.quantile(1))
    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="share"):
            histogram.quantile(wrong)


def test_bounds_are_those_of_the_native_side(demo_checkpoint: Callable[[str], Path]) -> None:
    with Encoder(demo_checkpoint("glm53"), "demo", "cpu") as encoder:
        stages = encoder.stats().stages
    for histogram in stages.values():
        assert histogram.bounds == pytest.approx([1e-6 * 2**power for power in range(27)])
        assert len(histogram.buckets) == 28


def test_they_cannot_be_changed(demo_checkpoint: Callable[[str], Path]) -> None:
    with Encoder(demo_checkpoint("glm53"), "demo", "cpu") as encoder:
        stats: EncoderStats = encoder.stats()
    with pytest.raises(dataclasses.FrozenInstanceError):
        stats.completed = 5  # type: ignore[misc]
