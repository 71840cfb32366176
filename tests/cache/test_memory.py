"""Hits in memory: shared storage, counts, eviction, and what stays alive after what."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import images
import pytest
import torch

from mm_libtorch_encoder import Encoder, MediaError

Open = Callable[..., Encoder]
GOOD = images.png(90, 60, 1)


def embeddings(encoder: Encoder, data: bytes = GOOD) -> torch.Tensor:
    (result,) = encoder.generate(data)
    return result.tensor


def live(encoder: Encoder) -> int:
    gc.collect()
    return encoder.cache_stats()["live_cpu_bytes_process"]


def test_a_hit_has_the_same_bits_and_the_same_memory(
    open_cached: Open, shared_encoder: Callable[..., Encoder]
) -> None:
    encoder = open_cached()
    (first,) = encoder.generate(GOOD)
    (again,) = encoder.generate(GOOD)
    (plain,) = shared_encoder("glm53").generate(GOOD)
    assert torch.equal(first.tensor, plain.tensor)
    assert first.tensor.data_ptr() == again.tensor.data_ptr()
    assert first.metadata == again.metadata == plain.metadata
    stats = encoder.cache_stats()
    assert (stats["misses"], stats["memory_hits"]) == (1, 1)
    assert (stats["disk_hits"], stats["joins"], stats["bypasses"], stats["errors"]) == (0, 0, 0, 0)


def test_every_way_in_shares_one_entry(open_cached: Open) -> None:
    encoder = open_cached()
    first = encoder.encode_image(GOOD)
    assert set(first) == set(encoder.encode_image(GOOD))
    assert embeddings(encoder).data_ptr() == first["embeddings"].data_ptr()


def test_deepstack_is_kept_too(open_cached: Open, demo_checkpoint: Callable[..., object]) -> None:
    encoder = open_cached(checkpoint=demo_checkpoint("qwen3_vl"))
    first, again = encoder.encode_image(GOOD), encoder.encode_image(GOOD)
    assert "deepstack" in first
    for name, tensor in first.items():
        assert torch.equal(tensor, again[name])
    assert first["deepstack"].data_ptr() == again["deepstack"].data_ptr()
    assert encoder.cache_stats()["memory_hits"] == 1


def test_a_hit_runs_neither_preprocessing_nor_tower(open_cached: Open) -> None:
    encoder = open_cached()
    embeddings(encoder)
    before = encoder.stats()
    for _ in range(20):
        embeddings(encoder)
    assert encoder.stats() == before


def test_what_a_caller_does_to_a_tensor_stays_with_it(open_cached: Open) -> None:
    encoder = open_cached()
    first = embeddings(encoder)
    shape = first.shape
    first.note = "mine"  # type: ignore[attr-defined]
    first.t_()
    first.requires_grad_()
    again = embeddings(encoder)
    assert again.shape == shape and again.stride() == (shape[1], 1)
    assert not again.requires_grad and not hasattr(again, "note")


@pytest.mark.parametrize("entry", [2**20, 1000], ids=["kept", "bypass"])
def test_a_result_moved_to_shared_memory_leaves_the_others_alone(open_cached: Open, entry: int) -> None:
    """As torch.multiprocessing's queues do: the memory that others read may not be freed under them."""
    encoder = open_cached(max_entry_bytes=entry)
    results = encoder.generate([GOOD] * 3)
    (moved, view, other), shared = (result.tensor for result in results), results[1].tensor.data_ptr()
    values = view.numpy()
    expected = values.copy()
    assert moved.data_ptr() == shared
    moved.share_memory_()
    assert moved.is_shared() and moved.data_ptr() != shared
    assert view.data_ptr() == other.data_ptr() == shared
    assert not view.is_shared()
    assert (values == expected).all() and torch.equal(moved, view)
    if entry > 1000:
        again = embeddings(encoder)
        assert again.data_ptr() == shared and torch.equal(again, view)
        assert live(encoder) >= view.nbytes


def test_other_bytes_are_another_entry(open_cached: Open) -> None:
    encoder = open_cached()
    assert embeddings(encoder).data_ptr() != embeddings(encoder, images.png(90, 60, 2)).data_ptr()
    assert encoder.cache_stats()["misses"] == 2


def test_a_failure_is_not_kept(open_cached: Open) -> None:
    encoder = open_cached()
    for _ in range(2):
        with pytest.raises(MediaError):
            encoder.generate(b"no image")
    assert embeddings(encoder).shape[0] > 0
    assert encoder.cache_stats()["memory_bytes"] > 0


def test_expected_tokens_are_checked_on_hits(open_cached: Open) -> None:
    encoder = open_cached()
    tokens = embeddings(encoder).shape[0]
    assert encoder.generate(GOOD, expected_tokens=[tokens])[0].tensor.shape[0] == tokens
    with pytest.raises(MediaError, match=f"{tokens + 1} tokens were expected"):
        encoder.generate(GOOD, expected_tokens=[tokens + 1])


def test_a_large_result_is_returned_and_not_kept(open_cached: Open) -> None:
    encoder = open_cached(max_entry_bytes=1000)
    assert torch.equal(embeddings(encoder), embeddings(encoder))
    stats = encoder.cache_stats()
    assert (stats["bypasses"], stats["misses"], stats["memory_bytes"]) == (2, 2, 0)


@pytest.mark.parametrize("beside", [0, 1023, 1024])
def test_an_entry_that_fills_the_memory_keeps_its_budget(open_cached: Open, beside: int) -> None:
    """An entry takes 1 KiB beside its tensors."""
    one = open_cached()
    size = embeddings(one).nbytes
    one.close()
    encoder = open_cached(memory_bytes=size + beside, max_entry_bytes=size)
    embeddings(encoder)
    stats = encoder.cache_stats()
    assert stats["memory_bytes"] == (size + 1024 if beside == 1024 else 0)
    assert stats["bypasses"] == (beside < 1024)


def test_eviction_keeps_the_budget_and_leaves_views_alone(open_cached: Open) -> None:
    one = open_cached()
    size = embeddings(one).nbytes
    one.close()
    budget = 5 * (size + 1024)
    encoder = open_cached(memory_bytes=budget, max_entry_bytes=size)
    kept = [embeddings(encoder, images.png(90, 60, seed)) for seed in range(20)]
    copies = [tensor.clone() for tensor in kept]
    assert 0 < encoder.cache_stats()["memory_bytes"] <= budget
    for seed in range(20, 60):
        embeddings(encoder, images.png(90, 60, seed))
        assert encoder.cache_stats()["memory_bytes"] <= budget
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(kept, copies, strict=True))
    # The last ones are still there, the first ones are not.
    hits = encoder.cache_stats()["memory_hits"]
    embeddings(encoder, images.png(90, 60, 59))
    assert encoder.cache_stats()["memory_hits"] == hits + 1
    misses = encoder.cache_stats()["misses"]
    embeddings(encoder, images.png(90, 60, 0))
    assert encoder.cache_stats()["misses"] == misses + 1


def test_the_least_recently_used_goes_first(open_cached: Open) -> None:
    one = open_cached()
    size = embeddings(one).nbytes
    one.close()
    encoder = open_cached(memory_bytes=4 * (size + 1024), max_entry_bytes=size)
    a, b = images.png(90, 60, 1), images.png(90, 60, 2)
    for seed in range(40):
        pointer = embeddings(encoder, a).data_ptr()
        embeddings(encoder, images.png(90, 60, 100 + seed))
        assert embeddings(encoder, a).data_ptr() == pointer, "in use, and yet evicted"
    embeddings(encoder, b)
    assert encoder.cache_stats()["misses"] == 42


def test_a_view_outlives_eviction_close_and_encoder(open_cached: Open) -> None:
    encoder = open_cached()
    before = live(encoder)
    tensor = embeddings(encoder)
    row = tensor[1]
    copy = row.clone()
    assert live(encoder) == before + tensor.nbytes
    encoder.close()
    assert encoder.cache_stats()["memory_bytes"] == 0
    del tensor
    gc.collect()
    assert torch.equal(row, copy)
    other = open_cached()
    assert live(other) == before + row.untyped_storage().nbytes()
    del row
    assert live(other) == before


def test_live_bytes_come_back_after_many_images(open_cached: Open) -> None:
    watcher = open_cached()
    before = live(watcher)
    encoder = open_cached()
    for seed in range(100):
        encoder.generate([images.png(60 + seed % 7 * 20, 60, seed)] * 3)
    assert live(watcher) > before
    encoder.close()
    assert live(watcher) == before


def test_one_computation_for_a_picture_in_one_call(open_cached: Open) -> None:
    encoder = open_cached()
    results = encoder.generate([GOOD] * 8)
    assert len({result.tensor.data_ptr() for result in results}) == 1
    stats = encoder.cache_stats()
    assert stats["misses"] == 1
    assert stats["joins"] + stats["memory_hits"] == 7


def test_one_computation_for_a_picture_from_many_threads(open_cached: Open) -> None:
    encoder = open_cached()
    rounds, threads = 20, 8
    pointers: list[set[int]] = [set() for _ in range(rounds)]
    kept: list[torch.Tensor] = []
    barrier = threading.Barrier(threads)

    def work() -> None:
        for number in range(rounds):
            barrier.wait()
            tensor = embeddings(encoder, images.png(200, 150, number))
            pointers[number].add(tensor.data_ptr())
            kept.append(tensor)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    assert [len(found) for found in pointers] == [1] * rounds
    stats = encoder.cache_stats()
    assert stats["misses"] == rounds
    assert stats["joins"] + stats["memory_hits"] == rounds * (threads - 1)


def test_all_who_joined_a_failure_get_its_error(open_cached: Open) -> None:
    encoder = open_cached()
    cut = images.png(400, 300, 5)[:-2000]  # a good header: it fails in the pool, behind the joining
    outcomes = encoder.generate([cut] * 6 + [GOOD], return_errors=True)
    assert [type(outcome) for outcome in outcomes[:6]] == [MediaError] * 6
    assert torch.equal(outcomes[6].tensor, embeddings(encoder))
    assert encoder.cache_stats()["joins"] > 0


def test_without_a_cache_nothing_is_counted(shared_encoder: Callable[..., Encoder]) -> None:
    stats = shared_encoder("glm53").cache_stats()
    del stats["live_cpu_bytes_process"]
    assert set(stats.values()) == {0}
