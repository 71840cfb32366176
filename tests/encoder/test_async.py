"""Calls of event loops: the same results, no thread for each, cancelled cleanly."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import images
import pytest
import torch
from load import PATIENCE, busy, joined, until

from mm_libtorch_encoder import Encoder, EncoderClosed, ImageResult, MediaError, QueueFull, _native

CheckpointOf = Callable[[str], Path]
GOOD = images.png(90, 60, 1)


@pytest.fixture
def encoder(demo_checkpoint: CheckpointOf) -> Iterator[Encoder]:
    with Encoder(demo_checkpoint("glm53"), "demo", "cpu", dtype="float32", queue_depth=16) as encoder:
        yield encoder


def run(work: Any) -> Any:
    """Like asyncio.run, but a hang fails."""

    async def limited() -> Any:
        return await asyncio.wait_for(work, PATIENCE)

    return asyncio.run(limited())


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


# Results


def test_the_bits_of_plain_calls(encoder: Encoder) -> None:
    sources = [images.png(40 + 37 * index % 300, 30 + 53 * index % 260, index) for index in range(12)]
    wanted = encoder.generate(sources)

    async def main() -> None:
        for result, same in zip(await encoder.generate_async(sources), wanted, strict=True):
            assert torch.equal(result.tensor, same.tensor) and result.metadata == same.metadata
        single = await asyncio.gather(*(encoder.generate_async(source) for source in sources))
        for (result,), same in zip(single, wanted, strict=True):
            assert torch.equal(result.tensor, same.tensor)
        outputs = await encoder.encode_image_async(sources[3])
        assert set(outputs) == {"embeddings", "grid_thws", "embedding_offsets"}
        assert torch.equal(outputs["embeddings"], wanted[3].tensor)
        assert await encoder.generate_async([]) == []

    run(main())


def test_errors(encoder: Encoder) -> None:
    async def main() -> None:
        with pytest.raises(MediaError) as caught:
            await encoder.generate_async([GOOD, b"bad"])
        assert caught.value.__notes__ == ["This is image 1 of 2, counted from 0."]
        outcomes = await encoder.generate_async([b"bad", GOOD], return_errors=True)
        assert [type(outcome) for outcome in outcomes] == [MediaError, ImageResult]
        with pytest.raises(MediaError):
            await encoder.encode_image_async(b"")
        with pytest.raises(MediaError, match="21 tokens were expected"):
            await encoder.generate_async(GOOD, expected_tokens=[21])
        with pytest.raises(TypeError):
            await encoder.generate_async(["text"])  # type: ignore[list-item]

    run(main())


def test_a_full_queue(encoder: Encoder) -> None:
    async def main() -> None:
        for timeout in (0, 0.05):
            waiting = asyncio.create_task(encoder.generate_async([GOOD] * 16))
            while encoder.stats().queued < 16:
                await asyncio.sleep(0.001)
            with pytest.raises(QueueFull):
                await encoder.generate_async(GOOD, timeout=timeout)
            assert encoder.stats().queued == 16, "the queue was to be full for longer than the timeout"
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        assert len(await encoder.generate_async([GOOD] * 3, timeout=PATIENCE)) == 3

    with busy(encoder):
        run(main())


def test_a_loop_for_each_call_and_loops_in_threads(encoder: Encoder) -> None:
    wanted = encoder.generate(GOOD)[0].tensor
    files = len(os.listdir("/proc/self/fd"))
    for _ in range(30):
        assert torch.equal(run(encoder.generate_async(GOOD))[0].tensor, wanted)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= files + 2
    problems: list[Any] = []

    async def many() -> None:
        for results in await asyncio.gather(*(encoder.generate_async(GOOD) for _ in range(30))):
            if not torch.equal(results[0].tensor, wanted):
                problems.append(results)

    callers = [threading.Thread(target=lambda: run(many())) for _ in range(4)]
    for caller in callers:
        caller.start()
    joined(callers)
    assert not problems


def test_no_thread_for_each_request_and_a_loop_that_goes_on(encoder: Encoder) -> None:
    async def main() -> int:
        most = threads() + 8  # Torch may yet start its own
        tasks = [asyncio.create_task(encoder.generate_async(GOOD)) for _ in range(500)]
        ticks = 0
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0.001)
            assert threads() <= most
            ticks += 1
        assert all(len(task.result()) == 1 for task in tasks)
        return ticks

    with busy(encoder):
        assert run(main()) > 20


# Life


def test_async_with(demo_checkpoint: CheckpointOf) -> None:
    async def main() -> Encoder:
        async with Encoder(demo_checkpoint("glm53"), "demo", "cpu") as encoder:
            await encoder.generate_async(GOOD)
        with pytest.raises(EncoderClosed):
            await encoder.generate_async(GOOD)
        await encoder.close_async()
        return encoder

    encoder = run(main())
    with pytest.raises(EncoderClosed):
        encoder.generate(GOOD)


def test_closing_while_tasks_wait(encoder: Encoder) -> None:
    """Those in the queue end well, those outside are told; the loop is not blocked meanwhile."""

    async def main() -> list[Any]:
        tasks = [asyncio.create_task(encoder.generate_async(GOOD)) for _ in range(40)]
        await asyncio.sleep(0)
        assert encoder.stats().waiting_for_room == 24
        closing = asyncio.create_task(encoder.close_async())
        ticks = 0
        while not closing.done():
            await asyncio.sleep(0.001)
            ticks += 1
        assert ticks > 5
        return await asyncio.gather(*tasks, return_exceptions=True)

    with busy(encoder):
        kinds = [type(outcome) for outcome in run(main())]
    assert kinds == [list] * 16 + [EncoderClosed] * 24


def test_a_loop_that_ends_before_its_answers(encoder: Encoder) -> None:
    gc.collect()
    with busy(encoder):
        loop = asyncio.new_event_loop()
        task = loop.create_task(encoder.generate_async([GOOD] * 5))
        loop.run_until_complete(asyncio.sleep(0.01))
        task.cancel()
        loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
        loop.close()
        del loop, task
        # A coroutine that is never finished: closed by the collector.
        loop = asyncio.new_event_loop()
        coroutine = encoder.generate_async([GOOD] * 5)
        loop.run_until_complete(asyncio.sleep(0))
        coroutine.close()
        loop.close()
    until(encoder, lambda stats: stats.queued == stats.running == 0)
    assert len(encoder.generate(GOOD)) == 1


def test_wait_for_cancels(encoder: Encoder) -> None:
    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(encoder.generate_async([GOOD] * 4), 0.02)

    with busy(encoder):
        run(main())
        now = encoder.stats()
        assert now.queued == now.preparing
    stats = until(encoder, lambda stats: stats.running == stats.queued == 0)
    assert (stats.completed, stats.abandoned) == (1, 4)


def test_a_thousand_tasks_half_cancelled(encoder: Encoder) -> None:
    """At random moments: the others get their own results, and nothing is left behind."""
    sources = [images.png(28 + 28 * (index % 9), 28 + 28 * (index // 9 % 9), index) for index in range(81)]
    wanted = encoder.generate(sources)
    gc.collect()
    before = _native.live_tensors()
    chance = random.Random(5)

    async def cancel(task: asyncio.Task[Any], delay: float) -> None:
        await asyncio.sleep(delay)
        task.cancel()

    async def main() -> tuple[int, int]:
        tasks = [asyncio.create_task(encoder.generate_async(sources[index % 81])) for index in range(1000)]
        await asyncio.gather(
            *(cancel(tasks[index], 2 * chance.random()) for index in chance.sample(range(1000), 500))
        )
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        done = 0
        for index, outcome in enumerate(outcomes):
            if isinstance(outcome, asyncio.CancelledError):
                continue
            assert not isinstance(outcome, BaseException), outcome
            assert torch.equal(outcome[0].tensor, wanted[index % 81].tensor), index
            done += 1
        return done, sum(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)

    done, cancelled = run(main())
    assert done >= 500 and done + cancelled == 1000
    stats = until(encoder, lambda stats: stats.queued == stats.running == stats.waiting_for_room == 0)
    assert (stats.queued_tokens, stats.queued_bytes) == (0, 0)
    assert stats.completed + stats.abandoned == 81 + 1000
    gc.collect()
    assert _native.live_tensors() == before


def test_loops_closed_with_calls_under_way_leave_nothing(encoder: Encoder) -> None:
    """Closed without cancelling their tasks, as after an exception out of run_until_complete."""

    def close_one_early() -> None:
        loop = asyncio.new_event_loop()
        tasks = [loop.create_task(encoder.generate_async([GOOD] * 3)) for _ in range(4)]
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    close_one_early()
    gc.collect()
    until(encoder, lambda stats: stats.queued == stats.running == stats.waiting_for_room == 0)
    before, tensors = descriptors(), _native.live_tensors()
    for _ in range(10):
        close_one_early()
    gc.collect()
    until(encoder, lambda stats: stats.queued == stats.running == stats.waiting_for_room == 0)
    assert (descriptors(), _native.live_tensors()) == (before, tensors)
