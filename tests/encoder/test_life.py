"""Ends of processes with replicas, waiting callers and event loops: each defined, none hangs."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from scripts import FORKED, Outcome, finish, run, start

CheckpointOf = Callable[[str], Path]

OPENED = (
    FORKED
    + """
import asyncio, gc, os, signal, sys, threading, time
import images, load
from mm_libtorch_encoder import Encoder, EncoderClosed, _native
encoder = Encoder(sys.argv[1], "demo", "cpu", dtype="float32", replicas_per_gpu=3, queue_depth=8, max_batch_images=2)
good = images.png(90, 60, 1)
"""
)


def opened(checkpoint_of: CheckpointOf, body: str) -> Outcome:
    """Runs `body`: `encoder` has three replicas, a queue of 8 and batches of 2; `good` is an image of 20 tokens."""
    return run(OPENED + body, checkpoint_of("glm53"))


def silent(outcome: Outcome, code: int = 0) -> str:
    assert (outcome.code, outcome.err) == (code, ""), outcome
    return outcome.out


# Exit


def test_exit_with_tasks_under_way(demo_checkpoint: CheckpointOf) -> None:
    """asyncio.run cancels them; the queue is emptied and the worker ends."""
    body = """
async def main():
    tasks = [asyncio.create_task(encoder.generate_async([good] * 5)) for _ in range(50)]
    await asyncio.sleep(0.05)
asyncio.run(main())
print("end")
"""
    assert silent(opened(demo_checkpoint, body)) == "end\n"


def test_exit_with_a_loop_that_was_left_alone(demo_checkpoint: CheckpointOf) -> None:
    body = """
loop = asyncio.new_event_loop()
task = loop.create_task(encoder.generate_async([good] * 50))
loop.run_until_complete(asyncio.sleep(0.02))
task.cancel()
loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
import builtins; builtins.kept = (loop, encoder)
"""
    silent(opened(demo_checkpoint, body))


@pytest.mark.parametrize("daemon", [True, False])
def test_exit_while_callers_wait_for_room(demo_checkpoint: CheckpointOf, daemon: bool) -> None:
    """At the exit those who wait for room are refused, so that it does not take all their images' time."""
    body = f"""
def work():
    try: encoder.generate([good] * 3000)
    except EncoderClosed: os.write(1, b"closed\\n")  # at once or not at all
thread = threading.Thread(target=work, daemon={daemon})
thread.start()
load.until(encoder, lambda stats: stats.waiting_for_room > 0)
{"" if daemon else "encoder.close()"}
"""
    outcome = opened(demo_checkpoint, body)
    # A daemon thread may be stopped before it prints.
    assert silent(outcome) in (("closed\n", "") if daemon else ("closed\n",))


def test_exit_at_once_while_replicas_are_busy(demo_checkpoint: CheckpointOf) -> None:
    body = """
threading.Thread(target=lambda: encoder.generate([good] * 3000)).start()
load.until(encoder, lambda stats: stats.running > 1)
os._exit(9)
"""
    silent(opened(demo_checkpoint, body), 9)


def test_a_terminated_process_that_drains(demo_checkpoint: CheckpointOf) -> None:
    """What servers do on SIGTERM: an exception in the main thread, and the exit handler closes."""
    body = """
def leave(*_): raise SystemExit(3)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
encoder.generate([good] * 100000)
"""
    process = start(OPENED + body, demo_checkpoint("glm53"))
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    outcome = finish(process, 60)
    assert (outcome.code, outcome.err) == (3, "")


def test_ctrl_c_in_an_event_loop(demo_checkpoint: CheckpointOf) -> None:
    body = """
async def main():
    print("ready", flush=True)
    await encoder.generate_async([good] * 100000)
try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("stopped", flush=True)
load.until(encoder, lambda stats: stats.running == stats.queued == stats.waiting_for_room == 0)
print(len(encoder.generate(good)))
"""
    process = start(OPENED + body, demo_checkpoint("glm53"))
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(0.7)
    process.send_signal(signal.SIGINT)
    outcome = finish(process, 60)
    assert silent(outcome) == "stopped\n1\n"


def test_ctrl_c_in_warmup(demo_checkpoint: CheckpointOf) -> None:
    body = """
print("ready", flush=True)
try:
    encoder.warmup([(2000, 2000)] * 200)
except KeyboardInterrupt:
    print("stopped", flush=True)
print(len(encoder.generate(good)))
"""
    process = start(OPENED + body, demo_checkpoint("glm53"))
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(0.7)
    process.send_signal(signal.SIGINT)
    outcome = finish(process, 100)
    assert silent(outcome) == "stopped\n1\n"


# Collection


def test_collection_while_the_queue_is_full(demo_checkpoint: CheckpointOf) -> None:
    """An encoder whose last reference goes while its queue is full finishes it, and other threads go on."""
    body = """
async def main():
    global encoder
    native = encoder._native
    before = _native.live_tensors()
    tasks = [asyncio.ensure_future(encoder.generate_async(good)) for _ in range(30)]
    await asyncio.sleep(0.01)
    del encoder
    results = await asyncio.gather(*tasks)
    print(len(results))
    del native
asyncio.run(main())
gc.collect()
print(_native.live_tensors())
"""
    assert silent(opened(demo_checkpoint, body)) == "30\n0\n"


# Fork


def test_a_forked_child_is_told_at_once(demo_checkpoint: CheckpointOf) -> None:
    body = """
def child():
    async def both():
        await encoder.generate_async(good)
    calls = [lambda: encoder.generate(good), lambda: asyncio.run(both()), lambda: encoder.warmup([(28, 28)]),
             encoder.stats, encoder.close, lambda: asyncio.run(encoder.close_async())]
    for call in calls:
        try: call()
        except EncoderClosed as error: print("parent" in str(error))
        else: print("no error")
encoder.generate(good)
print(forked(child), len(encoder.generate(good)))
"""
    assert silent(opened(demo_checkpoint, body)) == "True\n" * 6 + "0 1\n"


def test_forking_in_an_event_loop_with_requests_under_way(demo_checkpoint: CheckpointOf) -> None:
    """The child drops the parent's requests without touching what the parent's threads hold."""
    body = """
async def main():
    codes = set()
    for _ in range(10):
        tasks = [asyncio.create_task(encoder.generate_async([good] * 3)) for _ in range(10)]
        await asyncio.sleep(0.01)
        def child():
            global encoder
            for task in tasks: task._coro.close()
            del encoder
            gc.collect()
            os._exit(0)
        codes.add(forked(child, 30))
        await asyncio.gather(*tasks)
    print(codes)
asyncio.run(main())
"""
    assert silent(opened(demo_checkpoint, body)) == "{0}\n"


def test_a_forked_child_opens_its_own(demo_checkpoint: CheckpointOf) -> None:
    body = """
wanted = encoder.generate(good)[0].tensor
def child():
    async def main():
        async with Encoder(sys.argv[1], "demo", "cpu", dtype="float32", replicas_per_gpu=2) as own:
            results = await asyncio.gather(*(own.generate_async(good) for _ in range(10)))
            assert all((result[0].tensor == wanted).all() for result in results)
    asyncio.run(main())
print(forked(child), len(encoder.generate(good)))
"""
    assert silent(opened(demo_checkpoint, body)) == "0 1\n"
