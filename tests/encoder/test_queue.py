"""The bounded queue: what waits, what is refused, what is skipped; every request has one outcome of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import images
import pytest
import torch
from load import busy, joined, until

from mm_libtorch_encoder import Encoder, EncoderClosed, ImageResult, MediaError, QueueFull

CheckpointOf = Callable[[str], Path]
GOOD = images.png(90, 60, 1)  # 20 tokens of glm53


@pytest.fixture
def small(demo_checkpoint: CheckpointOf) -> Iterator[Encoder]:
    """A queue of 8 images."""
    with Encoder(demo_checkpoint("glm53"), "demo", "cpu", dtype="float32", queue_depth=8) as encoder:
        yield encoder


# Numbers


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("replicas_per_gpu", 32),
        ("queue_depth", 65_536),
        ("queue_tokens", 2**30),
        ("queue_bytes", 2**46),
        ("max_batch_images", 1024),
        ("max_batch_tokens", 2**30),
    ],
)
def test_numbers_are_checked_before_anything_else(tmp_path: Path, name: str, most: int) -> None:
    """Before the checkpoint is looked for, so before anything is allocated."""
    for wrong in (0, -1, True, 1.0, "1", None, 2**63, 2**80):
        with pytest.raises(ValueError, match=f"{name} must be a positive integer"):
            Encoder(tmp_path / "none", "demo", "cpu", **{name: wrong})
    with pytest.raises(ValueError, match=f"{name} is {most + 1}: it must be from 1 to {most}$"):
        Encoder(tmp_path / "none", "demo", "cpu", **{name: most + 1})


@pytest.mark.parametrize("wrong", [-1, -0.001, float("nan"), float("inf"), 1e10])
def test_timeouts_that_do_not_exist(small: Encoder, wrong: float) -> None:
    for call in (
        lambda: small.generate(GOOD, timeout=wrong),
        lambda: small.encode_image(GOOD, timeout=wrong),
        lambda: asyncio.run(small.generate_async(GOOD, timeout=wrong)),
    ):
        with pytest.raises(ValueError, match="timeout"):
            call()


@pytest.mark.parametrize("wrong", ["1", True, [1], object()])
def test_what_is_no_timeout(small: Encoder, wrong: Any) -> None:
    with pytest.raises(TypeError, match="timeout must be a number of seconds"):
        small.generate(GOOD, timeout=wrong)


# Fullness


def test_a_full_queue_refuses_at_once_when_told_so(small: Encoder) -> None:
    with busy(small):
        outcomes = small.generate([GOOD] * 12, timeout=0, return_errors=True)
    kinds = [type(outcome) for outcome in outcomes]
    assert kinds == [ImageResult] * 8 + [QueueFull] * 4
    assert str(outcomes[8]).startswith("the queue is full: 8 of 8 images, 160 of 262144 tokens, ")
    stats = small.stats()
    assert (stats.refused, stats.completed, stats.waiting_for_room, stats.queued) == (4, 9, 0, 0)


def test_a_full_queue_refuses_after_the_time(small: Encoder) -> None:
    with busy(small):
        waiting = threading.Thread(target=lambda: small.generate([GOOD] * 8))
        waiting.start()
        until(small, lambda stats: stats.queued == 8)
        begin = time.monotonic()
        with pytest.raises(QueueFull):
            small.generate(GOOD, timeout=0.1)
        assert time.monotonic() - begin >= 0.1
        still = small.stats()
        joined([waiting])
    assert (still.queued, still.running) == (8, 1), "the queue was to be full for longer than the timeout"


def test_a_full_queue_is_waited_for(small: Encoder) -> None:
    with busy(small):
        outcomes = small.generate([GOOD] * 40)
    assert len(outcomes) == 40


def test_a_deadline_ends_with_the_wait_for_room(small: Encoder) -> None:
    """A request that found room is encoded, however long that takes."""
    with busy(small):
        assert small.generate(GOOD, timeout=0.01)[0].metadata.length == 20


@pytest.mark.parametrize(
    "bound", [{"queue_tokens": 65}, {"queue_bytes": 3 * (80 * 1176 * 4 + len(GOOD)) + 5}]
)
def test_tokens_and_bytes_count_too(demo_checkpoint: CheckpointOf, bound: dict[str, int]) -> None:
    """Room for three images of 20 tokens and 80 patches, not for four."""
    with Encoder(demo_checkpoint("glm53"), "demo", "cpu", dtype="float32", **bound) as encoder:
        with busy(encoder):
            outcomes = encoder.generate([GOOD] * 5, timeout=0, return_errors=True)
        assert [type(outcome) for outcome in outcomes] == [ImageResult] * 3 + [QueueFull] * 2


def test_what_is_larger_than_the_queue_is_encoded_alone(demo_checkpoint: CheckpointOf) -> None:
    with Encoder(demo_checkpoint("glm53"), "demo", "cpu", queue_tokens=1, queue_bytes=1) as encoder:
        assert [result.metadata.length for result in encoder.generate([GOOD] * 5)] == [20] * 5


# Many at once


@pytest.mark.parametrize("timeout", [None, 0.05])
def test_two_hundred_requests_into_a_queue_of_eight(
    small: Encoder, shared_encoder: Callable[..., Encoder], timeout: float | None
) -> None:
    """Each gets its own result, or QueueFull where it would not wait; none is lost, none is crossed."""
    sources = [images.png(28 + 28 * (index % 20), 28 + 28 * (index // 20), index) for index in range(200)]
    wanted = shared_encoder("glm53").generate(sources)
    outcomes: dict[int, Any] = {}
    begin = threading.Barrier(200)

    def work(number: int) -> None:
        begin.wait()
        (outcomes[number],) = small.generate([sources[number]], timeout=timeout, return_errors=True)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(200)]
    for thread in threads:
        thread.start()
    joined(threads)
    assert sorted(outcomes) == list(range(200))
    refused = [number for number, outcome in outcomes.items() if isinstance(outcome, QueueFull)]
    assert refused == [] or timeout is not None
    for number in set(outcomes) - set(refused):
        assert torch.equal(outcomes[number].tensor, wanted[number].tensor), number
        assert outcomes[number].metadata == wanted[number].metadata
    stats = small.stats()
    assert (stats.completed, stats.refused) == (200 - len(refused), len(refused))
    assert (stats.queued, stats.running, stats.waiting_for_room, stats.preparing) == (0, 0, 0, 0)


def test_order_is_kept_though_images_are_prepared_out_of_order(small: Encoder) -> None:
    """A large image first: the small ones behind it are ready earlier."""
    sources = [images.png(1500, 1100, 1), *(images.png(60 + 28 * index, 60, index) for index in range(12))]
    results = small.generate(sources)
    for source, result in zip(sources, results, strict=True):
        assert torch.equal(result.tensor, small.generate(source)[0].tensor)


def test_failures_stay_with_their_items_under_load(small: Encoder) -> None:
    sources = [GOOD if index % 3 else b"bad" for index in range(60)]
    outcomes = small.generate(sources, return_errors=True)
    kinds = [ImageResult if index % 3 else MediaError for index in range(60)]
    assert [type(outcome) for outcome in outcomes] == kinds
    cut = images.png(300, 300)[:5000]  # the header is fine, so it fails in preprocessing
    outcomes = small.generate([cut, GOOD] * 20, return_errors=True)
    assert [type(outcome) for outcome in outcomes] == [MediaError, ImageResult] * 20
    stats = small.stats()
    assert (stats.completed, stats.failed) == (60, 40)


# Abandoned work and closing


def test_abandoned_work_is_skipped(small: Encoder) -> None:
    """Neither decoded nor run: the tower runs the long item and nothing else."""

    async def main() -> None:
        task = asyncio.create_task(small.generate_async([GOOD] * 20))
        while small.stats().queued < 8:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        stats = small.stats()
        assert (stats.queued - stats.preparing, stats.waiting_for_room) == (0, 0)

    with busy(small):
        asyncio.run(main())
    stats = until(small, lambda stats: stats.queued == stats.running == 0)
    assert (stats.forwards, stats.completed, stats.abandoned) == (1, 1, 20)


def test_closing_refuses_those_that_wait_for_room(demo_checkpoint: CheckpointOf) -> None:
    encoder = Encoder(demo_checkpoint("glm53"), "demo", "cpu", dtype="float32", queue_depth=4)
    outcomes: list[Any] = []
    with busy(encoder):
        caller = threading.Thread(
            target=lambda: outcomes.extend(encoder.generate([GOOD] * 10, return_errors=True))
        )
        caller.start()
        until(encoder, lambda stats: stats.waiting_for_room == 6)
        encoder.close()
        joined([caller])
    assert [type(outcome) for outcome in outcomes] == [ImageResult] * 4 + [EncoderClosed] * 6
