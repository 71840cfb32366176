"""Forks, other processes, and deaths at any moment."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import images
import pytest
import torch
from scripts import finish, run, start

from mm_libtorch_encoder import Encoder

CheckpointOf = Callable[[str], Path]
Open = Callable[..., Encoder]

OPENED = """
import os, sys, time
import images, torch
from mm_libtorch_encoder import CacheConfig, Encoder, EncoderClosed
cache = CacheConfig(memory_bytes=2**24, disk_path=sys.argv[2], disk_bytes=2**26, max_entry_bytes=2**20)
def opened():
    return Encoder(sys.argv[1], "demo", "cpu", dtype="float32", cache=cache)
encoder = opened()
good = images.png(90, 60, 1)
"""

FORKED = """
(before,) = encoder.generate(good)
child = os.fork()
if child == 0:
    try:
        encoder.generate(good)
    except EncoderClosed as error:
        assert "parent process" in str(error)
        # A tensor of the parent's stays readable, and nothing of the parent's is closed from here.
        same = bool(torch.equal(before.tensor, before.tensor.clone()))
        del before, encoder
        os._exit(0 if same else 3)
    os._exit(4)
print(os.waitpid(child, 0)[1])
(after,) = encoder.generate(good)
assert after.tensor.data_ptr() == before.tensor.data_ptr()
encoder.close()
"""

FORKED_OUT = """
child = os.fork()
if child == 0:
    sys.exit(0)  # an exit with everything that runs at one
print(os.waitpid(child, 0)[1])
encoder.generate(good)
encoder.close()
"""

# The child lives on, holding whatever the parent had open; the parent dies.
ORPHANED = """
encoder.generate(good)
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
os.kill(os.getpid(), 9)
"""

HOLDS = "print('open', flush=True); time.sleep(60)"

# Forks a writer for every line it reads, so that Torch is imported once for all rounds.
NURSERY = """
import os, sys
import images, torch
from mm_libtorch_encoder import CacheConfig, Encoder
cache = CacheConfig(memory_bytes=2**24, disk_path=sys.argv[2], disk_bytes=2**26, max_entry_bytes=2**20)
print("ready", flush=True)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        encoder = Encoder(sys.argv[1], "demo", "cpu", dtype="float32", cache=cache)
        print(os.getpid(), flush=True)
        seed = int(line)
        while True:
            encoder.generate([images.png(64 + 16 * (seed % 9), 96, seed)])
            seed += 1
    os.waitpid(child, 0)
    print("dead", flush=True)
"""


@pytest.mark.parametrize("body", [FORKED, FORKED_OUT])
def test_a_fork(demo_checkpoint: CheckpointOf, tmp_path: Path, body: str) -> None:
    outcome = run(OPENED + body, demo_checkpoint("glm53"), tmp_path)
    assert (outcome.code, outcome.out, outcome.err) == (0, "0\n", ""), outcome


def test_another_process_gets_a_sentence(
    demo_checkpoint: CheckpointOf, open_cached: Open, tmp_path: Path
) -> None:
    holder = start(OPENED + HOLDS, demo_checkpoint("glm53"), tmp_path)
    assert holder.stdout is not None and holder.stdout.readline() == "open\n"
    with pytest.raises(ValueError, match="used by an encoder of another process"):
        open_cached(tmp_path)
    holder.kill()
    finish(holder)
    open_cached(tmp_path).close()


def test_a_forked_child_does_not_hold_the_directory(
    demo_checkpoint: CheckpointOf, open_cached: Open, tmp_path: Path
) -> None:
    parent = start(OPENED + ORPHANED, demo_checkpoint("glm53"), tmp_path)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        assert parent.wait(60) == -signal.SIGKILL
        open_cached(tmp_path).close()
    finally:
        os.kill(child, signal.SIGKILL)


def test_exit_with_a_cache_open_and_writes_waiting(demo_checkpoint: CheckpointOf, tmp_path: Path) -> None:
    body = "encoder.generate([images.png(90, 60, seed) for seed in range(50)])"
    outcome = run(OPENED + body, demo_checkpoint("glm53"), tmp_path)
    assert (outcome.code, outcome.err) == (0, "")
    assert len(list(tmp_path.glob("*.mme"))) == 50


def killed(
    rounds: int,
    demo_checkpoint: CheckpointOf,
    open_cached: Open,
    plain: Encoder,
    disk: Path,
    figures: Callable[[str], None],
) -> None:
    """SIGKILL during writes, then a start that must serve only right results, in about the time of a clean one."""
    clean, dirty, served, torn = [], [], 0, 0
    dice = random.Random(1)
    nursery = start(NURSERY, demo_checkpoint("glm53"), disk, stdin=True)
    assert nursery.stdin is not None and nursery.stdout is not None
    assert nursery.stdout.readline() == "ready\n"
    for number in range(rounds):
        nursery.stdin.write(f"{20 * number}\n")
        nursery.stdin.flush()
        writer = int(nursery.stdout.readline())
        time.sleep(dice.uniform(0, 0.25))
        os.kill(writer, signal.SIGKILL)
        assert nursery.stdout.readline() == "dead\n"
        torn += len(list(disk.glob("*.unfinished")))
        begin = time.perf_counter()
        encoder = open_cached(disk)
        dirty.append(time.perf_counter() - begin)
        sources = [
            images.png(64 + 16 * (seed % 9), 96, seed) for seed in range(20 * number, 20 * number + 10)
        ]
        for one, other in zip(encoder.generate(sources), plain.generate(sources), strict=True):
            assert torch.equal(one.tensor, other.tensor)
        stats = encoder.cache_stats()
        assert stats["errors"] == 0
        served += stats["disk_hits"]
        encoder.close()
        begin = time.perf_counter()
        open_cached(disk).close()
        clean.append(time.perf_counter() - begin)
    nursery.stdin.close()
    assert nursery.wait(60) == 0
    slower = max(dirty) - sorted(clean)[len(clean) // 2]
    figures(
        f"cache: {rounds} kills during writes, {torn} in the middle of an entry; {served} entries served from disk, "
        f"all right; the slowest start after one took {1e3 * slower:.0f} ms more than a clean one"
    )
    assert served > 0
    assert slower < 1


def test_kills_during_writes(
    demo_checkpoint: CheckpointOf,
    open_cached: Open,
    shared_encoder: Callable[..., Encoder],
    tmp_path: Path,
    figures: Callable[[str], None],
) -> None:
    killed(10, demo_checkpoint, open_cached, shared_encoder("glm53"), tmp_path / "cache", figures)


@pytest.mark.slow
def test_two_hundred_kills_during_writes(
    demo_checkpoint: CheckpointOf,
    open_cached: Open,
    shared_encoder: Callable[..., Encoder],
    tmp_path: Path,
    figures: Callable[[str], None],
) -> None:
    killed(200, demo_checkpoint, open_cached, shared_encoder("glm53"), tmp_path / "cache", figures)
