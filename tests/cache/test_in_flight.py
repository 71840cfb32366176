"""The same picture many times at once: one computation, whoever gives up, times out or closes meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import images
import pytest
import torch
from load import busy, joined, until

from mm_libtorch_encoder import Encoder, EncoderClosed, QueueFull

Open = Callable[..., Encoder]
GOOD = images.png(90, 60, 1)


def fillers(count: int) -> list[bytes]:
    return [images.png(90, 60, 100 + seed) for seed in range(count)]


async def waiting(encoder: Encoder, wanted: Callable[[Any], bool]) -> None:
    for _ in range(2000):
        if wanted(encoder.cache_stats()):
            return
        await asyncio.sleep(0.005)
    raise AssertionError(encoder.cache_stats())


@pytest.mark.parametrize("leaver", [0, 1, 2])
def test_one_who_gives_up_takes_nothing_from_the_others(open_cached: Open, leaver: int) -> None:
    encoder = open_cached()

    async def run() -> list[Any]:
        tasks = [asyncio.create_task(encoder.generate_async(GOOD)) for _ in range(3)]
        await waiting(encoder, lambda stats: stats["joins"] == 2)
        tasks[leaver].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    with busy(encoder):
        outcomes = asyncio.run(run())
    assert isinstance(outcomes.pop(leaver), asyncio.CancelledError)
    first, second = (outcome[0].tensor for outcome in outcomes)
    assert first.data_ptr() == second.data_ptr()
    assert encoder.stats().abandoned == 0


def test_nobody_left_means_no_computation_and_a_new_one_later(open_cached: Open) -> None:
    encoder = open_cached()
    with busy(encoder):
        completed = encoder.stats().completed

        async def run() -> None:
            tasks = [asyncio.create_task(encoder.generate_async(GOOD)) for _ in range(3)]
            await waiting(encoder, lambda stats: stats["joins"] == 2)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run(run())
        assert encoder.stats().abandoned == 1
    assert encoder.generate(GOOD)[0].metadata.length == 20
    stats = encoder.stats()
    assert stats.abandoned == 1
    assert stats.completed == completed + 2  # what kept it busy, and the new one


def test_a_deadline_ends_the_wait_of_its_own_request_alone(open_cached: Open) -> None:
    encoder = open_cached(queue_depth=2)
    with busy(encoder):
        crowd = threading.Thread(target=lambda: encoder.generate(fillers(2)))
        crowd.start()
        until(encoder, lambda stats: stats.queued == 2)
        kept: list[Any] = []
        patient = threading.Thread(target=lambda: kept.append(encoder.generate(GOOD)))
        patient.start()
        until(encoder, lambda stats: stats.waiting_for_room == 1)
        with pytest.raises(QueueFull):
            encoder.generate(GOOD, timeout=0)
        assert encoder.stats().waiting_for_room == 1
    joined([crowd, patient])
    assert kept[0][0].metadata.length == 20


def test_a_first_request_that_times_out_leaves_the_computation_to_the_second(open_cached: Open) -> None:
    encoder = open_cached(queue_depth=2)
    with busy(encoder):
        crowd = threading.Thread(target=lambda: encoder.generate(fillers(2)))
        crowd.start()
        until(encoder, lambda stats: stats.queued == 2)
        outcomes: list[Any] = []
        hasty = threading.Thread(
            target=lambda: outcomes.extend(encoder.generate(GOOD, timeout=0.3, return_errors=True))
        )
        hasty.start()
        until(encoder, lambda stats: stats.waiting_for_room == 1)
        kept: list[Any] = []
        patient = threading.Thread(target=lambda: kept.append(encoder.generate(GOOD)))
        patient.start()
        joined([hasty])
        assert encoder.cache_stats()["joins"] == 1
        assert [type(outcome) for outcome in outcomes] == [QueueFull]
    joined([crowd, patient])
    assert kept[0][0].metadata.length == 20


def test_close_while_many_wait_for_one(open_cached: Open) -> None:
    encoder = open_cached()
    outcomes: list[Any] = []

    def work() -> None:
        outcomes.extend(encoder.generate([GOOD] * 3, return_errors=True))

    with busy(encoder):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        until(encoder, lambda stats: stats.queued == 1)
        closing = threading.Thread(target=encoder.close)
        closing.start()
        joined([*threads, closing])
    assert len(outcomes) == 12
    served = [outcome.tensor for outcome in outcomes if not isinstance(outcome, EncoderClosed)]
    assert served, "the queue had let it in"
    assert all(torch.equal(tensor, served[0]) for tensor in served)


def test_batches_are_kept_one_by_one(open_cached: Open) -> None:
    encoder = open_cached(max_batch_images=8)
    sources = fillers(16)
    first = encoder.generate(sources)
    again = encoder.generate(sources)
    for one, other in zip(first, again, strict=True):
        assert one.tensor.data_ptr() == other.tensor.data_ptr()
    assert len({result.tensor.untyped_storage().data_ptr() for result in first}) == 16
