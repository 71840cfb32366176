"""Graphs on the double: what is captured and when, that a replay gives an eager forward's bits, and what is freed."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import images
import pytest
import torch
from graph_programs import SECONDS, START, check
from scripts import run

from mm_libtorch_encoder import Encoder, GraphConfig, _native, device

CheckpointOf = Callable[[str], Path]
FAMILIES = [family for family, *_ in _native.families()]


def test_what_comes_often_is_captured_and_then_one_launch(
    double: Path, demo_checkpoint: CheckpointOf
) -> None:
    program = """
    wanted = [eager(SMALL, seed) for seed in range(6)]
    encoder = opened(GraphConfig(min_hits=3))
    double.log()
    found, logs = [], []
    for seed in range(6):
        found.append(one(encoder, SMALL, seed))
        logs.append(double.log())
    assert counts(encoder) == (1, 3, 0, 0)
    assert encoder.stats().forwards == 6
    # Twice as without graphs; the third is captured behind its eager run.
    first, second, third, *replays = logs
    assert launches(first) == launches(second) and not [line for line in first + second if "graph" in line]
    begun, ended = (next(i for i, line in enumerate(third) if line.startswith(f"capture {what}"))
                    for what in ("begins", "ends"))
    before, inside, after = launches(third[:begun]), launches(third[begun:ended]), launches(third[ended:])
    assert before == launches(first) and not after
    # The capture launches the same, without the uploads and without what makes the tower's input of bytes.
    made = before.index("patches") + 1
    assert set(before[:made]) == {"upload", "patches"} and before[made:].count("upload") >= 3
    assert inside == [name for name in before[made:] if name != "upload"]
    streams = [{line.split()[-1] for line in part if line.startswith("launch")}
               for part in (third[:begun], third[begun:ended])]
    assert streams[1] == {"777"} and len(streams[0]) == 1 and streams[0] != streams[1]
    order(third, "enter pool 1", "capture begins", "capture ends", "graph 1", "leave pool 1", "mark")
    # From then on: pixels in, one launch, embeddings out, an event.
    for lines in replays:
        assert launches(lines) == [*before[:made], "copy", "copy"], lines
        order(lines, "replay graph 1", "mark")
        replayed = next(i for i, line in enumerate(lines) if line.startswith("replay"))
        assert launches(lines[:replayed]) == [*before[:made], "copy"]
        assert not [line for line in lines if line.startswith(("drain", "capture"))]
    # Other pixels give other embeddings, with an eager run's bits, and no later run changes an earlier result.
    assert all(torch.equal(a, b) for a, b in zip(found, wanted))
    assert len({tuple(tensor.flatten().tolist()) for tensor in found}) == 6
    encoder.close()
    """
    check(program, double, demo_checkpoint("qwen35"))


def test_small_large_small_in_any_order(double: Path, demo_checkpoint: CheckpointOf) -> None:
    program = """
    sizes = [SMALL, LARGE, SMALL, WIDE, LARGE, LARGE, SMALL, WIDE, SMALL, LARGE]
    wanted = [eager(size, seed) for seed, size in enumerate(sizes)]
    for hits in (1, 2):
        with opened(GraphConfig(min_hits=hits)) as encoder:
            found = [one(encoder, size, seed) for seed, size in enumerate(sizes)]
            assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
            assert counts(encoder) == (3, 10 - 3 * hits, 0, 0)
            assert all(tensor.is_contiguous() for tensor in found)
            assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in found)
    """
    check(program, double, demo_checkpoint("qwen35"))


def test_a_batch_is_known_by_its_grids_in_order(double: Path, demo_checkpoint: CheckpointOf) -> None:
    program = """
    from mm_libtorch_encoder import preprocess
    columns = 3 * 2 * 16 * 16
    def matrix(grids, seed):
        rows = sum(height * width for _, height, width in grids)
        return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    lists = [[(1, 4, 6)], [(1, 6, 4)], [(1, 4, 6), (1, 2, 2)], [(1, 2, 2), (1, 4, 6)]]
    with opened(GraphConfig(min_hits=1)) as encoder:
        for seed in range(3):
            for grids in lists:
                wanted = eager_encoder.encode_pixels(matrix(grids, seed), grids)["embeddings"]
                found = encoder.encode_pixels(matrix(grids, seed), grids)["embeddings"]
                assert torch.equal(found, wanted)
        assert counts(encoder) == (4, 8, 0, 0)
    """
    check(program, double, demo_checkpoint("qwen35"))


def test_the_least_recently_used_graph_goes_first(double: Path, demo_checkpoint: CheckpointOf) -> None:
    program = """
    encoder = opened(GraphConfig(min_hits=1, max_graphs=2))
    before = _native.live_tensors()
    one(encoder, SMALL), one(encoder, LARGE)
    both = _native.live_tensors()
    assert encoder.stats().graph_bytes > 2 * double.pool_bytes
    one(encoder, SMALL, 1)  # used again: LARGE is the older one now
    double.log()
    one(encoder, WIDE)
    lines = double.log()
    # Behind its last replay, before its memory.
    order(lines, "graph 3", "drain", "forget graph 2", "free pool 2", "mark")
    assert double.pools[-1] == "free pool 2" and double.pools.count("free pool 1") == 0
    assert counts(encoder) == (3, 1, 0, 1)
    one(encoder, SMALL, 2), one(encoder, WIDE, 2)
    assert counts(encoder) == (3, 3, 0, 1)
    assert torch.equal(one(encoder, LARGE, 3), eager(LARGE, 3))  # captured once more
    assert counts(encoder) == (4, 3, 0, 2)
    assert "free pool 1" in double.pools
    assert _native.live_tensors() <= both + 8, "a dropped graph left tensors behind"
    # What is left is freed by close(), on the worker's thread, before its stream is left.
    double.log()
    encoder.close()
    lines = double.log()
    freed = [line for line in lines if line.startswith("free pool")]
    assert sorted(freed) == ["free pool 3", "free pool 4"], lines
    assert lines.index(freed[-1]) < next(i for i, line in enumerate(lines) if line.startswith("leave stream"))
    assert encoder.stats().graph_bytes == 0
    assert _native.live_tensors() < before, "the graphs kept the weights alive"
    """
    check(program, double, demo_checkpoint("qwen35"))


def test_bytes_are_bounded(double: Path, demo_checkpoint: CheckpointOf) -> None:
    program = """
    encoder = opened(GraphConfig(min_hits=1, max_bytes=11 << 20))
    double.pool_bytes = 4 << 20
    for size in (SMALL, WIDE, SMALL, WIDE):
        assert torch.equal(one(encoder, size), eager(size))
    assert counts(encoder) == (2, 2, 0, 0)
    one(encoder, LARGE)
    assert counts(encoder) == (3, 2, 0, 1)
    assert 8 << 20 < encoder.stats().graph_bytes <= 11 << 20
    # One that is too large alone is never tried again, takes no other's place, and others are captured behind it.
    double.pool_bytes = 11 << 20
    for size in ((96, 64), (64, 96), (32, 64), (160, 64), (96, 64)):
        assert torch.equal(one(encoder, size), eager(size))
    assert counts(encoder) == (3, 2, 4, 1)
    assert "max_bytes" in encoder.stats().graph_failure
    double.pool_bytes = 1 << 20
    one(encoder, (192, 64))
    assert counts(encoder)[0] == 4
    encoder.close()
    """
    check(program, double, demo_checkpoint("qwen35"))


def test_large_forwards_are_left_alone(double: Path, demo_checkpoint: CheckpointOf) -> None:
    program = """
    tokens = len(eager(SMALL))
    with opened(GraphConfig(min_hits=1, max_tokens=tokens)) as encoder:
        for seed in range(3):
            one(encoder, SMALL, seed), one(encoder, LARGE, seed)
        assert counts(encoder) == (1, 2, 0, 0)
    """
    check(program, double, demo_checkpoint("qwen35"))


def test_every_replica_has_graphs_of_its_own(double: Path, demo_checkpoint: CheckpointOf) -> None:
    program = """
    import re
    wanted = {(size, seed): eager(size, seed) for size in (SMALL, LARGE) for seed in range(8)}
    double.log()
    encoder = opened(GraphConfig(min_hits=1 << 20), replicas_per_gpu=3)
    encoder.warmup([SMALL, LARGE])
    log = double.log()
    captured = [line.split()[-1] for line in log if line.startswith("capture begins")]
    assert len(captured) == 6 and len(set(captured)) == 3, captured
    # One at a time, whatever the threads: each capture is within its pool.
    shared = [line for line in log if re.match("enter pool|leave pool|capture", line)]
    for place in range(0, len(shared), 4):
        names = [line.split()[:2] for line in shared[place:place + 4]]
        assert names == [["enter", "pool"], ["capture", "begins"], ["capture", "ends"], ["leave", "pool"]]
    assert encoder.stats().graph_captures == 6 and encoder.stats().graph_replays == 0
    wrong = []
    def call(number):
        for turn in range(12):
            size, seed = (SMALL, LARGE)[(number + turn) % 2], (5 * number + turn) % 8
            if not torch.equal(one(encoder, size, seed), wanted[size, seed]):
                wrong.append((number, turn))
    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not wrong
    assert counts(encoder) == (6, 48, 0, 0)
    # A graph is replayed on the stream it was captured on.
    graphs = [line.split()[1] for line in log if line.startswith("graph ")]
    on = dict(zip(graphs, captured))
    replays = [line.split() for line in double.log() if line.startswith("replay")]
    assert len(replays) == 48 and all(on[words[2]] == words[-1] for words in replays)
    double.log()
    encoder.close()
    assert sorted(line for line in double.log() if line.startswith("free pool")) == [
        f"free pool {number}" for number in range(1, 7)]
    """
    check(program, double, demo_checkpoint("qwen35"))


def test_other_kernels_are_another_forward(double: Path, demo_checkpoint: CheckpointOf) -> None:
    program = """
    every = [name for name, on, _ in _native.cuda_kernels() if on]
    with opened(GraphConfig(min_hits=1)) as encoder:
        one(encoder, LARGE), one(encoder, LARGE)
        fused = eager(LARGE, 1)
        _native.set_cuda_kernels([])
        plain = eager(LARGE, 1)
        assert not torch.equal(plain, fused)
        assert torch.equal(one(encoder, LARGE, 1), plain) and torch.equal(one(encoder, LARGE, 1), plain)
        _native.set_cuda_kernels(every)
        assert torch.equal(one(encoder, LARGE, 1), fused)
        assert counts(encoder) == (2, 3, 0, 0)
    """
    check(program, double, demo_checkpoint("qwen35"))


def test_the_exit_frees_them_and_a_fork_leaves_them_alone(
    double: Path, demo_checkpoint: CheckpointOf
) -> None:
    program = """
    encoder = opened(GraphConfig(min_hits=1))
    one(encoder, SMALL), one(encoder, SMALL, 1)
    child = os.fork()
    if child == 0:
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch.equal(one(encoder, SMALL, 2), eager(SMALL, 2))
    """
    outcome = run(BEFORE + START + program + AFTER, double, demo_checkpoint("qwen35"), timeout=SECONDS)
    assert outcome.code == 0, outcome.out + outcome.err
    assert outcome.out.split("\n")[:-1] == ["['enter', 'leave', 'free']"], outcome.out


# Runs behind the package's own handler, which is registered later.
BEFORE = """
    import atexit, os
    pools, parent = [], os.getpid()
    def tell():
        if os.getpid() == parent:
            print([line.split()[0] for line in pools])
    atexit.register(tell)
"""
AFTER = """
    pools = double.pools
"""

EVERY = """
    import sounds
    from pathlib import Path
    folders = [folder, *rest]
    for folder in folders:
        family = Path(folder).name
        for dtype in ("float32", "bfloat16"):
            plain = Encoder(folder, "demo", "cuda:0", family, dtype=dtype)
            encoder = Encoder(folder, "demo", "cuda:0", family, dtype=dtype, cuda_graphs=GraphConfig(min_hits=1))
            if encoder.modality == "audio":
                inputs = [sounds.Sound(length).data() for length in (70_000, 5_000)]
                runs = [(each.encode_audio, data) for data in inputs for each in (plain, encoder, encoder)]
            else:
                inputs = [images.png(100, 60, 2), images.png(70, 75, 3)]
                runs = [(each.encode_image, data) for data in inputs for each in (plain, encoder, encoder)]
            found = [call(data) for call, data in runs]
            for place in range(0, len(found), 3):
                wanted, first, second = found[place:place + 3]
                for name, tensor in wanted.items():
                    assert torch.equal(first[name], tensor) and torch.equal(second[name], tensor), (family, name)
            stats = encoder.stats()
            assert (stats.graph_captures, stats.graph_replays) == (2, 2), (family, dtype, stats.graph_failure)
            if family.startswith("kimi"):
                # Frames of a clip: times and averages are tables of their own.
                grids = [(3, 4, 6), (1, 2, 4), (2, 4, 4)]
                rows = sum(frames * height * width for frames, height, width in grids)
                columns = 3 * 14 * 14
                for seed in range(3):
                    pixels = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
                    wanted, found = (each.encode_pixels(pixels, grids)["embeddings"] for each in (plain, encoder))
                    assert torch.equal(found, wanted), (family, seed)
                stats = encoder.stats()
                assert (stats.graph_captures, stats.graph_replays) == (3, 4), stats.graph_failure
            plain.close(), encoder.close()
            print(family, dtype)
"""


def test_every_tower_is_captured_with_the_bits_of_its_eager_run(
    double: Path, demo_checkpoint: CheckpointOf, tmp_path: Path
) -> None:
    folders = []
    for family in FAMILIES:
        folders.append(tmp_path / family)
        folders[-1].symlink_to(demo_checkpoint(family))
    outcome = run(START + EVERY, double, *folders, timeout=SECONDS)
    assert outcome.code == 0, outcome.out + outcome.err
    assert len(outcome.out.splitlines()) == 2 * len(FAMILIES)


def test_a_pool_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked of Torch, in which order; and that this Torch has it."""
    calls: list[tuple[object, ...]] = []

    def told(*call: object) -> Callable[..., None]:
        return lambda *arguments: calls.append((*call, *arguments))

    def snapshot(pool: object, include_traces: bool = True) -> list[dict[str, int]]:
        calls.append(("snapshot", pool, include_traces))
        return [{"total_size": 2 << 20, "allocated_size": 1}, {"total_size": 20 << 20}]

    signature(torch.cuda.memory_snapshot).bind((0, 1), include_traces=False)
    for what in ("beginAllocateCurrentThreadToPool", "endAllocateToPool", "releasePool"):
        assert hasattr(torch._C, f"_cuda_{what}")
        monkeypatch.setattr(torch._C, f"_cuda_{what}", told(what))
    monkeypatch.setattr(torch.cuda, "memory_snapshot", snapshot)
    monkeypatch.setattr(torch.cuda, "empty_cache", told("empty_cache"))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 7))
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")
    monkeypatch.setattr(device.Pool, "_idle_bytes", 0)
    begin, end, release = (
        ("beginAllocateCurrentThreadToPool", 1, (0, 7)), ("endAllocateToPool", 1, (0, 7)), ("releasePool", 1, (0, 7)),
    )  # fmt: skip
    pool = device.Pool(1)
    assert calls == [begin]
    assert pool.leave() == 22 << 20
    assert calls == [begin, end, ("snapshot", (0, 7), False)]
    # Once released, and never emptied while little of it lies idle.
    calls.clear()
    del pool
    assert calls == [release]
    # One that was not left is left first.
    calls.clear()
    pool = device.Pool(1)
    del pool
    assert calls == [begin, end, ("snapshot", (0, 7), False), release]
    # What lies idle is bounded.
    monkeypatch.setattr(device, "_MOST_IDLE_BYTES", 4 * (22 << 20))
    for _ in range(6):
        pool = device.Pool(1)
        pool.leave()
        del pool
    assert calls.count(("empty_cache",)) == 1
    calls.clear()
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "cudaMallocAsync")
    with pytest.raises(RuntimeError, match="native allocator, and this process has 'cudaMallocAsync'"):
        device.Pool(0)
    assert not calls


def test_the_cpu_captures_nothing(demo_checkpoint: CheckpointOf) -> None:
    config = GraphConfig(min_hits=1)
    with Encoder(demo_checkpoint("qwen35"), "demo", "cpu", cuda_graphs=config) as encoder:
        for _ in range(3):
            encoder.generate(images.png(64, 64, 1))
        encoder.warmup([(64, 64)])
        stats = encoder.stats()
    assert stats.forwards == 4
    assert stats.graph_captures == stats.graph_replays == stats.graph_failures == stats.graph_bytes == 0


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"min_hits": 0}, ValueError, "min_hits is 0: it must be at least 1"),
        ({"min_hits": True}, TypeError, "min_hits must be an integer, not bool"),
        ({"max_graphs": 257}, ValueError, "max_graphs is 257: it must be from 1 to 256"),
        ({"max_tokens": 1.5}, TypeError, "max_tokens must be an integer, not float"),
        ({"max_tokens": 2**20 + 1}, ValueError, "max_tokens is 1048577"),
        ({"max_bytes": -1}, ValueError, "max_bytes is -1"),
        ({"max_bytes": 2**80}, ValueError, "max_bytes is"),
    ],
)
def test_settings_that_cannot_work(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        GraphConfig(**arguments)


def test_only_its_own_settings(demo_checkpoint: CheckpointOf) -> None:
    with pytest.raises(TypeError, match="cuda_graphs must be a GraphConfig or None, not bool"):
        Encoder(demo_checkpoint("qwen35"), "demo", "cpu", cuda_graphs=True)  # type: ignore[arg-type]
    assert GraphConfig(2) == GraphConfig(min_hits=2)
