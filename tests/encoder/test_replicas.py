"""Replicas: several threads run one copy of the weights, and no bit depends on them."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path

import checkpoints
import images
import pytest
import torch
from load import busy, joined, until
from scripts import resident, run

from mm_libtorch_encoder import Encoder, _native

CheckpointOf = Callable[[str], Path]
GOOD = images.png(90, 60, 1)


def test_they_run_at_the_same_time(demo_checkpoint: CheckpointOf) -> None:
    with Encoder(demo_checkpoint("glm53"), "demo", "cpu", dtype="float32", replicas_per_gpu=3) as encoder:
        assert encoder.replicas_per_gpu == 3
        with busy(encoder, 3):
            assert encoder.stats().running == 3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("replicas", [2, 5])
def test_the_bits_of_one_caller_and_one_replica(
    demo_checkpoint: CheckpointOf, shared_encoder: Callable[..., Encoder], dtype: str, replicas: int
) -> None:
    """By default no result depends on who else encodes, on which replica, or on how many there are."""
    sources = [images.png(40 + 37 * index % 300, 30 + 53 * index % 260, index) for index in range(20)]
    wanted = [shared_encoder("glm53", dtype).generate(source)[0].tensor for source in sources]
    problems: list[tuple[int, int]] = []
    with Encoder(demo_checkpoint("glm53"), "demo", "cpu", dtype=dtype, replicas_per_gpu=replicas) as encoder:

        def work(number: int) -> None:
            order = [(index * (2 * number + 1)) % 20 for index in range(20)]
            for index, result in zip(
                order, encoder.generate([sources[index] for index in order]), strict=True
            ):
                if not torch.equal(result.tensor, wanted[index]):
                    problems.append((number, index))

        callers = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for caller in callers:
            caller.start()
        joined(callers)
    assert not problems


def test_one_copy_of_the_weights(tmp_path: Path, demo_checkpoint: CheckpointOf) -> None:
    """A tower of 60 MB and more: four replicas take at most 1.05 times the memory of one."""
    folder = checkpoints.copied(demo_checkpoint("qwen35"), tmp_path / "large")
    rows, columns = 1 << 16, 64
    config = {"out_hidden_size": rows}
    checkpoints.edit(folder, "config.json", lambda file: file["vision_config"].update(config))

    def widen(tensors: dict[str, torch.Tensor]) -> None:
        last = "model.visual.merger.linear_fc2."
        inputs = tensors[last + "weight"].shape[1]
        tensors[last + "weight"] = torch.zeros(rows, inputs, dtype=torch.bfloat16)
        tensors[last + "bias"] = torch.zeros(rows, dtype=torch.bfloat16)
        assert inputs >= columns

    checkpoints.edit_tensors(folder, widen)

    def taken(replicas: int) -> tuple[int, int]:
        gc.collect()
        memory, tensors = resident(), _native.live_tensors()
        with Encoder(folder, "large", "cpu", dtype="float32", replicas_per_gpu=replicas):
            return resident() - memory, _native.live_tensors() - tensors

    taken(1)  # whatever a first opening leaves is left
    one, four = taken(1), taken(4)
    assert one[0] > rows * columns * 4
    assert four[0] <= 1.05 * one[0]
    assert four[1] == one[1]


def test_work_goes_on_while_one_is_at_a_long_item(demo_checkpoint: CheckpointOf) -> None:
    with (
        Encoder(demo_checkpoint("glm53"), "demo", "cpu", dtype="float32", replicas_per_gpu=2) as encoder,
        busy(encoder),
    ):
        assert len(encoder.generate([GOOD] * 5)) == 5
        assert encoder.stats().running == 1, "the long item was to be the longer one"


@pytest.mark.parametrize("replicas", [1, 4])
def test_warmup(demo_checkpoint: CheckpointOf, replicas: int) -> None:
    with Encoder(
        demo_checkpoint("glm53"), "demo", "cpu", dtype="float32", replicas_per_gpu=replicas, queue_depth=1
    ) as encoder:
        encoder.warmup([(300, 200), (28, 28)])
        stats = encoder.stats()
        assert (stats.forwards, stats.completed, stats.running) == (2 * replicas, 0, 0)
        assert stats.stages["forward"].count == 0
        encoder.warmup(iter([]))
        for wrong in [(0, 5), (5, -1), (1.0, 2), (2**32, 1), ("1", "2"), (True, 1)]:
            with pytest.raises(ValueError, match="size"):
                encoder.warmup([wrong])  # type: ignore[list-item]
        with pytest.raises(ValueError, match="pixels"):
            encoder.warmup([(100_000, 100_000)])
        with pytest.raises(ValueError, match="sizes"):
            encoder.warmup([(28, 28)] * 1000)


def test_a_thread_that_does_not_start_is_an_error_that_leaves_nothing(demo_checkpoint: CheckpointOf) -> None:
    """No room for the stacks of 32 threads: the opening fails, and then works with fewer."""
    program = """
        import gc, resource, sys
        from pathlib import Path
        import images
        from mm_libtorch_encoder import DeviceOutOfMemory, Encoder, _native
        Encoder(sys.argv[1], "demo", "cpu").close()
        gc.collect()
        def threads(): return len(list(Path("/proc/self/task").iterdir()))
        before, tensors = threads(), _native.live_tensors()
        page = resource.getpagesize()
        used = int(open("/proc/self/statm").read().split()[0]) * page
        # Rust's threads have stacks of 2 MiB.
        resource.setrlimit(resource.RLIMIT_AS, (used + (24 << 20), resource.RLIM_INFINITY))
        try:
            Encoder(sys.argv[1], "demo", "cpu", replicas_per_gpu=32)
        except DeviceOutOfMemory as error:
            print(error)
        assert (threads(), _native.live_tensors()) == (before, tensors)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        with Encoder(sys.argv[1], "demo", "cpu", replicas_per_gpu=32) as encoder:
            print(len(encoder.generate([images.png(90, 60, 1)] * 3)))
    """
    outcome = run(program, demo_checkpoint("glm53"), OMP_NUM_THREADS="1", MALLOC_ARENA_MAX="1")
    assert (outcome.code, outcome.err) == (0, "")
    sentence, works = outcome.out.splitlines()
    assert "thread could not be started" in sentence
    assert works == "3"


def test_compute_threads_are_shared_out(demo_checkpoint: CheckpointOf) -> None:
    """Four replicas at work have no more compute threads among them than one replica has."""
    program = """
        import sys
        from pathlib import Path
        import load, torch
        from mm_libtorch_encoder import Encoder
        torch.set_num_threads(4)
        def workers():
            tasks = Path("/proc/self/task").iterdir()
            return sum((task / "comm").read_text().strip() == "mm-encoder" for task in tasks)
        for replicas in (1, 4):
            with Encoder(sys.argv[1], "demo", "cpu", dtype="float32", replicas_per_gpu=replicas) as encoder:
                with load.busy(encoder, replicas):
                    pass
                print(workers())
    """
    outcome = run(program, demo_checkpoint("glm53"))
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.split() == ["4", "4"]


def test_statistics_of_a_closed_encoder(demo_checkpoint: CheckpointOf) -> None:
    encoder = Encoder(demo_checkpoint("glm53"), "demo", "cpu", dtype="float32")
    encoder.generate([GOOD] * 4)
    encoder.close()
    stats = until(encoder, lambda stats: stats.running == 0)
    assert (stats.completed, stats.forwards) == (4, 4)
