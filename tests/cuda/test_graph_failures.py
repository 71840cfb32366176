"""Graphs on the double where something fails: a capture, a replay, memory, or garbage collected at a wrong place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from graph_programs import START, check
from scripts import run

CheckpointOf = Callable[[str], Path]


@pytest.mark.parametrize("what", ["begin", "end", "replay", "pool", "leave", "empty", "tower"])
def test_where_a_graph_fails_the_forward_is_eager(
    double: Path, demo_checkpoint: CheckpointOf, what: str
) -> None:
    program = """
    what, = rest
    encoder = opened(GraphConfig(min_hits=2))
    before = _native.live_tensors()
    one(encoder, SMALL)
    kept = device.Pool
    if what == "replay":
        one(encoder, SMALL)
        double.fail_at("replay")
    elif what == "pool":
        def refuse(index):
            raise RuntimeError("no pools here\\nat all")
        device.Pool = refuse
        encoder.close()
        encoder = opened(GraphConfig(min_hits=2))
        one(encoder, SMALL)
    elif what == "leave":
        double.pool_bytes = "many"
    elif what == "empty":
        double.pool_bytes = 0
    elif what == "tower":
        double.fail_at("norm in a capture")
    else:
        double.fail_at(what)
    double.log()
    for seed in range(4):
        assert torch.equal(one(encoder, SMALL, seed), eager(SMALL, seed)), seed
    captured = int(what == "replay")
    assert counts(encoder) == (captured, 0, 1, captured)
    assert encoder.stats().failed == 0
    reason = encoder.stats().graph_failure
    words = {"pool": "no pools here", "leave": "memory pool", "empty": "elsewhere", "tower": "as the test asked"}
    assert words.get(what, f"{what} failed, as the test asked") in reason and "\\n" not in reason, reason
    # Whatever failed, the pool was left, and then freed.
    steps = [line.split()[0] for line in double.pools]
    assert steps == ([] if what == "pool" else ["enter", "leave", "free"]), double.pools
    assert encoder.stats().graph_bytes == 0 and _native.live_tensors() == before
    # Others are captured as before.
    double.pool_bytes = 1
    if what != "pool":
        for seed in range(3):
            assert torch.equal(one(encoder, LARGE, seed), eager(LARGE, seed))
        assert counts(encoder) == (captured + 1, 1, 1, captured)
    encoder.close()
    """
    check(program, double, demo_checkpoint("glm53"), what)


def test_outputs_of_a_failed_capture_go_before_their_memory(
    double: Path, demo_checkpoint: CheckpointOf
) -> None:
    program = """
    from functools import partial
    from cuda_double import Pool
    alive = []
    class Watched(Pool):
        def __del__(self):
            alive.append(_native.live_tensors())
            super().__del__()
    device.Pool = partial(Watched, double)
    with opened(GraphConfig(min_hits=1)) as encoder:
        # At the first fault nothing was captured that could be left.
        for side, what in ((64, "begin"), (96, "end"), (128, "empty")):
            double.pool_bytes = int(what != "empty")
            double.fail_at(what)
            encoder.warmup([(side, 64)])
        assert encoder.stats().graph_failures == 3
    assert len(alive) == 3 and len(set(alive)) == 1, alive
    """
    check(program, double, demo_checkpoint("qwen35"))


def test_captures_that_never_succeed_are_given_up(double: Path, demo_checkpoint: CheckpointOf) -> None:
    program = """
    with opened(GraphConfig(min_hits=1)) as encoder:
        for side in (32, 64, 96, 128, 160, 192):
            double.fail_at("end")
            assert torch.equal(one(encoder, (side, 64)), eager((side, 64)))
        assert counts(encoder) == (0, 0, 3, 0)
    """
    check(program, double, demo_checkpoint("qwen35"))


def test_memory_of_graphs_is_freed_where_it_is_missing(double: Path, demo_checkpoint: CheckpointOf) -> None:
    program = """
    from mm_libtorch_encoder import DeviceOutOfMemory
    encoder = opened(GraphConfig(min_hits=2))
    for seed in range(2):
        one(encoder, SMALL, seed), one(encoder, WIDE, seed)
    assert counts(encoder) == (2, 0, 0, 0)
    double.run_out_of_memory(1)
    assert torch.equal(one(encoder, LARGE), eager(LARGE))
    assert counts(encoder) == (2, 0, 0, 2) and encoder.stats().graph_bytes == 0
    # With none left it is the request's own error.
    double.run_out_of_memory(1)
    try:
        one(encoder, LARGE)
        raise SystemExit("it had memory")
    except DeviceOutOfMemory:
        pass
    for seed in range(3):
        assert torch.equal(one(encoder, SMALL, seed), eager(SMALL, seed))
    assert counts(encoder) == (3, 1, 0, 2)
    encoder.close()
    """
    check(program, double, demo_checkpoint("glm53"))


def test_memory_of_graphs_is_freed_where_pixels_find_none(
    double: Path, demo_checkpoint: CheckpointOf
) -> None:
    program = """
    from mm_libtorch_encoder import DeviceOutOfMemory
    encoder = opened(GraphConfig(min_hits=2))
    one(encoder, SMALL), one(encoder, SMALL)
    double.run_out_of_memory(1, at="patches")
    found = one(encoder, LARGE)
    assert torch.equal(found, eager(LARGE))
    assert counts(encoder) == (1, 0, 0, 1) and encoder.stats().graph_bytes == 0
    double.run_out_of_memory(1, at="patches")
    try:
        one(encoder, LARGE)
        raise SystemExit("it had memory")
    except DeviceOutOfMemory:
        pass
    assert counts(encoder) == (1, 0, 0, 1)
    encoder.close()
    """
    check(program, double, demo_checkpoint("qwen35"))


@pytest.mark.parametrize("what", ["another", "another, closed", "its own", "its own, closed"])
def test_garbage_is_collected_on_a_thread_that_captures(
    double: Path, demo_checkpoint: CheckpointOf, what: str
) -> None:
    """An encoder that ends there is not waited for: not by itself, and not by one that holds up the captures of all."""
    program = """
    import gc, time, weakref
    from cuda_double import Pool
    what, = rest
    inside, go = threading.Event(), threading.Event()
    class Collecting(Pool):
        def __init__(self, index):
            super().__init__(double, index)
            inside.set()
            assert go.wait(60)
            gc.collect()
    class Service:
        "Garbage that only a collection finds."
        def __init__(self):
            self.encoder, self.itself = opened(GraphConfig(min_hits=1)), self
        def __del__(self):
            if "closed" in what:
                self.encoder.close()
    def workers():
        names = [Path(f"/proc/self/task/{task}/comm") for task in os.listdir("/proc/self/task")]
        return sum(name.read_text().strip() == "mm-encoder" for name in names if name.exists())
    device.Pool = Collecting
    gc.disable()
    before = workers()
    service = Service()
    gone = weakref.ref(service)
    if what.startswith("another"):
        go.set()
        one(service.encoder, SMALL)  # its thread has a graph to free before it ends
        go.clear(), inside.clear()
        encoder = opened(GraphConfig(min_hits=1))
        caller = threading.Thread(target=one, args=(encoder, SMALL))
        caller.start()
    else:
        mailbox = _native.Mailbox()
        requests = service.encoder._native.submit([images.png(*SMALL, 0)], None, mailbox, 1)
    assert inside.wait(60)
    del service
    go.set()
    if what.startswith("another"):
        caller.join(60)
        assert not caller.is_alive(), "it waits for ever"
        encoder.close()
    end = time.monotonic() + 60
    while (gone() is not None or workers() > before) and time.monotonic() < end:
        time.sleep(0.01)
    assert gone() is None and workers() == before, (gone(), workers(), before)
    frees = [line for line in double.pools if line.startswith("free")]
    assert len(frees) == (2 if what.startswith("another") else 1), double.pools
    """
    imports = "\n    import os\n    from pathlib import Path\n"
    outcome = run(START + imports + program, double, demo_checkpoint("qwen35"), what, timeout=120)
    assert outcome.code == 0, outcome.out + outcome.err
    assert not outcome.err, outcome.err
