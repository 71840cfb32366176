"""Many callers at once, and the GIL free while native code works."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import images
import pytest
import torch

from mm_libtorch_encoder import Encoder, MediaError, _native

PATIENCE = 120


@pytest.mark.parametrize("family", ["qwen35", "glm53"])
def test_eight_callers(shared_encoder: Callable[..., Encoder], family: str) -> None:
    encoder = shared_encoder(family)
    sources = [images.png(40 + 37 * index % 300, 30 + 53 * index % 260, index) for index in range(30)]
    wanted = [encoder.generate(source)[0] for source in sources]
    problems: list[str] = []

    def work(number: int) -> None:
        order = sorted(range(30), key=lambda index: (index * (2 * number + 1)) % 31)
        for start in range(0, 30, 5):
            picked = order[start : start + 5]
            items = [b"bad", *(sources[index] for index in picked)]
            bad, *good = encoder.generate(items, return_errors=True)
            if not isinstance(bad, MediaError):
                problems.append(f"caller {number}: {bad!r}")
            for index, result in zip(picked, good, strict=True):
                same = torch.equal(result.tensor, wanted[index].tensor)
                if not same or result.metadata != wanted[index].metadata:
                    problems.append(f"caller {number}, image {index}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "hangs"
    assert not problems


def pauses_of_another_thread(work: Callable[[], Any]) -> tuple[float, float, int]:
    """Seconds that `work` took, the longest pause of a thread that only counts, and its steps meanwhile."""
    stop = threading.Event()
    stamps: list[float] = []

    def count() -> None:
        while not stop.is_set():
            stamps.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    while len(stamps) < 3:
        time.sleep(0.001)
    begin = time.perf_counter()
    work()
    end = time.perf_counter()
    stop.set()
    thread.join()
    within = [begin, *(stamp for stamp in stamps if begin <= stamp <= end), end]
    longest = max(later - earlier for earlier, later in itertools.pairwise(within))
    return end - begin, longest, len(within) - 2


def check_pauses(work: Callable[[], Any]) -> None:
    """If the GIL were held, the other thread would pause for most of the work, not for a fifth of it."""
    for _ in range(3):  # another process may take the core for a while
        took, longest, steps = pauses_of_another_thread(work)
        assert took > 0.05, "too short to tell anything"
        if longest < took / 5:
            return
    raise AssertionError(f"another thread paused for {longest:.3f} s of {took:.3f} s ({steps} steps)")


def test_a_held_gil_would_be_seen() -> None:
    big = list(range(20_000_000))
    with pytest.raises(AssertionError, match="another thread paused"):
        check_pauses(lambda: [sorted(big) for _ in range(2)])


def test_the_gil_is_free_in_the_tower(shared_encoder: Callable[..., Encoder]) -> None:
    encoder = shared_encoder("glm53")
    source = images.png(1400, 1400)
    check_pauses(lambda: encoder.generate(source))


def test_the_gil_is_free_while_preparing(demo_checkpoint: Callable[[str], Path]) -> None:
    processor = _native.Processor(demo_checkpoint("qwen35"), "", "qwen35")
    source = images.png(5500, 4500, grain_only=True)
    check_pauses(lambda: processor.pixel_values(source))


def test_the_gil_is_free_while_loading(demo_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    import checkpoints

    folder = checkpoints.copied(demo_checkpoint("qwen35"), tmp_path / "wide")
    widths = {"hidden_size": 1152, "num_heads": 16, "intermediate_size": 8192, "out_hidden_size": 64}
    checkpoints.edit(folder, "config.json", lambda config: config["vision_config"].update(widths))
    shapes = pytest.importorskip("reference.qwen_glm").shapes(
        __import__("json").loads((folder / "config.json").read_text())
    )
    checkpoints.edit_tensors(
        folder,
        lambda tensors: tensors.update(
            {
                f"model.visual.{name}": torch.zeros(shape, dtype=torch.bfloat16)
                for name, shape in shapes.items()
            }
        ),
    )
    check_pauses(lambda: Encoder(folder, "wide", "cpu", dtype="float32").close())


def test_progress_is_told_in_order(demo_checkpoint: Callable[[str], Path]) -> None:
    told: list[tuple[int, int]] = []
    with Encoder(demo_checkpoint("qwen35"), "demo", "cpu", progress=lambda *at: told.append(at)):
        pass
    assert told == sorted(told) and len({total for _, total in told}) == 1
    assert told[-1][0] == told[-1][1] > 0


def test_a_progress_display_that_fails_is_no_matter(demo_checkpoint: Callable[[str], Path]) -> None:
    def broken(done: int, total: int) -> None:
        raise RuntimeError("no display")

    with Encoder(demo_checkpoint("qwen35"), "demo", "cpu", progress=broken) as encoder:
        assert encoder.generate(images.png(8, 8))
