"""Closing: accepted work is finished, later calls are refused, nothing hangs."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import images
import pytest
import torch

from mm_libtorch_encoder import Encoder, EncoderClosed, ImageResult, _native

PATIENCE = 60  # seconds until a thread counts as hanging
GOOD = images.png(90, 60, 1)


@pytest.fixture
def encoder(demo_checkpoint: Callable[[str], Path]) -> Encoder:
    return Encoder(demo_checkpoint("glm53"), "demo", "cpu", dtype="float32")


def workers() -> set[str]:
    """Ids of the threads of encoders in this process: the workers, and the compute threads that Torch gives them."""
    ids = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            if (task / "comm").read_text().strip() == "mm-encoder":
                ids.add(task.name)
        except OSError:  # ended in between
            continue
    return ids


def ended(threads: set[str]) -> bool:
    """Whether all of them end: compute threads do so by themselves, a moment after their worker."""
    deadline = time.monotonic() + PATIENCE
    while threads & workers() and time.monotonic() < deadline:
        time.sleep(0.01)
    return not threads & workers()


def joined(thread: threading.Thread) -> None:
    thread.join(PATIENCE)
    assert not thread.is_alive(), "hangs"


def test_every_call_is_refused_afterwards(encoder: Encoder) -> None:
    encoder.generate(GOOD)
    encoder.close()
    for call in (
        lambda: encoder.generate(GOOD),
        lambda: encoder.generate([GOOD, GOOD]),
        lambda: encoder.encode_image(GOOD),
        lambda: encoder.encode_pixels(torch.zeros(64, 1176), [(1, 8, 8)]),
    ):
        with pytest.raises(EncoderClosed, match="closed"):
            call()
    outcomes = encoder.generate([GOOD, b"bad"], return_errors=True)
    assert all(isinstance(outcome, EncoderClosed) for outcome in outcomes)


def test_what_it_was_can_still_be_asked(encoder: Encoder) -> None:
    encoder.close()
    assert (encoder.family, encoder.device, encoder.dtype, encoder.model) == (
        "glm53",
        "cpu",
        torch.float32,
        "demo",
    )


def test_closing_again_and_again(encoder: Encoder) -> None:
    for _ in range(3):
        encoder.close()
    with encoder:
        pass


def test_the_context_closes_on_an_error(encoder: Encoder) -> None:
    with pytest.raises(KeyError), encoder:
        raise KeyError("mine")
    with pytest.raises(EncoderClosed):
        encoder.generate(GOOD)


def test_the_worker_ends(encoder: Encoder) -> None:
    encoder.generate(GOOD)
    before = workers()
    encoder.close()
    assert workers() < before


@pytest.mark.parametrize("way", ["last reference", "cycle"])
def test_collection_without_closing(demo_checkpoint: Callable[[str], Path], way: str) -> None:
    gc.collect()
    others, tensors = workers(), _native.live_tensors()
    encoder: Any = Encoder(demo_checkpoint("glm53"), "demo", "cpu")
    result = encoder.generate(GOOD)
    if way == "cycle":
        encoder.me = encoder
    begun = workers() - others
    assert begun
    del encoder
    gc.collect()
    assert _native.live_tensors() == tensors
    assert ended(begun)
    assert result[0].tensor.shape == (20, 96)


def test_closing_while_others_encode(encoder: Encoder) -> None:
    """Every image either gets its result or is refused; those refused are the last ones."""
    wanted = encoder.generate(GOOD)[0].tensor
    outcomes: dict[int, list[Any]] = {}
    begun = threading.Barrier(4 + 1)

    def work(number: int) -> None:
        begun.wait()
        outcomes[number] = encoder.generate([GOOD] * 400, return_errors=True)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    begun.wait()
    time.sleep(0.05)
    encoder.close()
    for thread in threads:
        joined(thread)
    assert len(outcomes) == 4
    for items in outcomes.values():
        kinds = [type(item) for item in items]
        assert set(kinds) <= {ImageResult, EncoderClosed}
        first = kinds.index(EncoderClosed) if EncoderClosed in kinds else len(kinds)
        assert EncoderClosed not in kinds[:first] and ImageResult not in kinds[first:]
        assert all(torch.equal(item.tensor, wanted) for item in items[:first])


def test_accepted_work_is_finished(encoder: Encoder) -> None:
    """One long image that the worker has begun: close() waits for it."""
    source = images.png(1500, 1200, 2)
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.extend(encoder.generate(source)))
    thread.start()
    # Until the tower runs: a published result or a busy worker cannot be seen from here, so by its tensors.
    idle = _native.live_tensors()
    limit = time.monotonic() + PATIENCE
    while _native.live_tensors() <= idle and thread.is_alive() and time.monotonic() < limit:
        time.sleep(0.001)
    encoder.close()
    joined(thread)
    assert results[0].tensor.shape == (2322, 96)


def test_closing_from_many_threads(encoder: Encoder) -> None:
    errors: list[BaseException] = []

    def close() -> None:
        try:
            encoder.close()
        except BaseException as error:
            errors.append(error)

    busy = threading.Thread(target=lambda: encoder.generate([GOOD] * 50, return_errors=True))
    busy.start()
    threads = [threading.Thread(target=close) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in [*threads, busy]:
        joined(thread)
    assert not errors


def test_every_close_waits_for_the_worker(demo_checkpoint: Callable[[str], Path]) -> None:
    gc.collect()
    before = _native.live_tensors()
    encoder = Encoder(demo_checkpoint("glm53"), "demo", "cpu")
    idle = _native.live_tensors()
    left: list[int] = []

    def close() -> None:
        encoder.close()
        left.append(_native.live_tensors())

    busy = threading.Thread(target=lambda: encoder.generate(images.png(1200, 1000, 2)))
    busy.start()
    limit = time.monotonic() + PATIENCE
    while _native.live_tensors() <= idle and time.monotonic() < limit:
        time.sleep(0.001)
    threads = [threading.Thread(target=close) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in [*threads, busy]:
        joined(thread)
    # The weights are freed; the one result may wait for its caller.
    assert len(left) == 3 and all(count - before <= 1 for count in left)


def test_dropping_the_name_while_a_thread_encodes(demo_checkpoint: Callable[[str], Path]) -> None:
    encoder = Encoder(demo_checkpoint("glm53"), "demo", "cpu")
    results: list[Any] = []
    call = encoder.generate
    thread = threading.Thread(target=lambda call: results.extend(call([GOOD] * 40)), args=(call,))
    thread.start()
    del encoder, call
    gc.collect()
    joined(thread)
    assert len(results) == 40


def test_one_encoder_closes_beside_another(demo_checkpoint: Callable[[str], Path]) -> None:
    with Encoder(demo_checkpoint("glm53"), "demo", "cpu") as kept:
        wanted = kept.generate(GOOD)[0].tensor
        with Encoder(demo_checkpoint("qwen35"), "demo", "cpu") as other:
            assert other.generate(GOOD)[0].tensor.shape[1] == 64
        assert torch.equal(kept.generate(GOOD)[0].tensor, wanted)
