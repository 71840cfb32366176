"""The disk tier: hits after a restart, keys, hostile contents, and whose directory it is."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoints
import images
import pytest
import sounds
import torch

from mm_libtorch_encoder import Encoder

Open = Callable[..., Encoder]
GOOD = images.png(90, 60, 1)
SOURCES = [images.png(60 + 10 * seed, 80, seed) for seed in range(6)]


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def entries(disk: Path) -> list[Path]:
    return sorted(disk.glob("*.mme"))


def tensors(encoder: Encoder, sources: list[bytes]) -> list[torch.Tensor]:
    return [result.tensor.clone() for result in encoder.generate(sources)]


def filled(open_cached: Open, disk: Path, **options: Any) -> list[torch.Tensor]:
    """Fills `disk` with the entries of SOURCES and gives what they are."""
    encoder = open_cached(disk, **options)
    made = tensors(encoder, SOURCES)
    encoder.close()
    assert len(entries(disk)) == len(SOURCES)
    return made


def same(got: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return len(got) == len(expected) and all(map(torch.equal, got, expected))


def test_a_restart_serves_what_was_kept(open_cached: Open, disk: Path) -> None:
    expected = filled(open_cached, disk)
    encoder = open_cached(disk)
    assert same(tensors(encoder, SOURCES), expected)
    assert same(tensors(encoder, SOURCES), expected)
    stats = encoder.cache_stats()
    assert (stats["disk_hits"], stats["memory_hits"], stats["misses"]) == (6, 6, 0)
    assert (stats["errors"], stats["bypasses"]) == (0, 0)
    assert stats["disk_bytes"] == sum(path.stat().st_size for path in entries(disk))


@pytest.mark.parametrize("family", ["qwen3_vl", "kimi_k25"])
def test_all_outputs_come_back(
    open_cached: Open, disk: Path, demo_checkpoint: Callable[[str], Path], family: str
) -> None:
    first = open_cached(disk, checkpoint=demo_checkpoint(family))
    expected = first.encode_image(GOOD)
    first.close()
    encoder = open_cached(disk, checkpoint=demo_checkpoint(family))
    got = encoder.encode_image(GOOD)
    assert got.keys() == expected.keys()
    assert all(torch.equal(got[name], expected[name]) for name in got)
    assert encoder.cache_stats()["disk_hits"] == 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_each_dtype_comes_back(open_cached: Open, disk: Path, dtype: str) -> None:
    expected = filled(open_cached, disk, dtype=dtype)
    encoder = open_cached(disk, dtype=dtype)
    assert same(tensors(encoder, SOURCES), expected)
    assert encoder.cache_stats()["disk_hits"] == 6


def test_sound_comes_back(open_cached: Open, demo_checkpoint: Callable[[str], Path], disk: Path) -> None:
    source = sounds.wav(sounds.noise(5000))
    options = {"checkpoint": demo_checkpoint("muse_audio"), "family": "muse_audio"}
    encoder = open_cached(disk, **options)
    (first,) = encoder.generate(source)
    encoder.close()
    encoder = open_cached(disk, **options)
    (again,) = encoder.generate(source)
    stats = encoder.cache_stats()
    assert (stats["disk_hits"], stats["misses"], stats["errors"]) == (1, 0, 0)
    assert torch.equal(first.tensor, again.tensor) and first.metadata == again.metadata
    assert again.metadata.grid_thws == ()


def test_an_entry_evicted_from_memory_is_served_from_disk(open_cached: Open, disk: Path) -> None:
    assert sum(tensor.nbytes for tensor in filled(open_cached, disk)) > 30_000
    encoder = open_cached(disk, memory_bytes=20_000, max_entry_bytes=20_000)
    for _ in range(3):
        tensors(encoder, SOURCES)
    stats = encoder.cache_stats()
    assert stats["disk_hits"] > 6 and stats["misses"] == 0
    assert stats["memory_bytes"] <= 20_000


def test_the_directory_keeps_its_budget(open_cached: Open, disk: Path) -> None:
    size = max(path.stat().st_size for path in (filled(open_cached, disk), entries(disk))[1])
    encoder = open_cached(disk, disk_bytes=3 * size, max_entry_bytes=8192)
    assert sum(path.stat().st_size for path in entries(disk)) <= 3 * size
    tensors(encoder, [images.png(90, 60, seed) for seed in range(30)])
    encoder.close()
    assert 0 < sum(path.stat().st_size for path in entries(disk)) <= 3 * size


# Keys


def test_another_place_of_checkpoint_and_cache_is_the_same_key(
    open_cached: Open, disk: Path, demo_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    expected = filled(open_cached, disk)
    moved = checkpoints.copied(demo_checkpoint("glm53"), tmp_path / "moved")
    for path in moved.iterdir():
        os.utime(path, (1, 1))
    encoder = open_cached(disk.rename(tmp_path / "elsewhere"), checkpoint=moved)
    assert same(tensors(encoder, SOURCES), expected)
    assert encoder.cache_stats()["disk_hits"] == 6


def _one_weight(folder: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        largest = max(tensors, key=lambda name: tensors[name].numel())
        flat = tensors[largest].view(-1)
        flat[flat.numel() * 5 // 11] += 1

    checkpoints.edit_tensors(folder, change)


def _processor(folder: Path) -> None:
    name = "preprocessor_config.json"
    if not (folder / name).exists():
        name = "processor_config.json"
    checkpoints.edit(folder, name, lambda value: value.update(unrelated=1))


@pytest.mark.parametrize(
    "change",
    [_one_weight, _processor, lambda folder: checkpoints.edit(folder, "config.json", _marked)],
    ids=["one weight", "processor", "config"],
)
def test_another_checkpoint_is_another_key(
    open_cached: Open,
    disk: Path,
    demo_checkpoint: Callable[[str], Path],
    tmp_path: Path,
    change: Callable[[Path], None],
) -> None:
    filled(open_cached, disk)
    changed = checkpoints.copied(demo_checkpoint("glm53"), tmp_path / "changed")
    change(changed)
    encoder = open_cached(disk, checkpoint=changed)
    tensors(encoder, SOURCES)
    stats = encoder.cache_stats()
    assert (stats["disk_hits"], stats["misses"], stats["errors"]) == (0, 6, 0)


def _marked(value: dict[str, Any]) -> None:
    value["unrelated"] = 1


@pytest.mark.parametrize(
    "options", [{"dtype": "bfloat16"}, {"decode_policy": "vllm"}, {"backend": "pillow"}, {"model": "other"}]
)
def test_another_choice_is_another_key(open_cached: Open, disk: Path, options: dict[str, Any]) -> None:
    filled(open_cached, disk)
    encoder = open_cached(disk, **options)
    tensors(encoder, SOURCES)
    assert encoder.cache_stats()["disk_hits"] == 0
    assert encoder.cache_stats()["misses"] == 6


# Hostile contents


def damaged(open_cached: Open, disk: Path, expected: list[torch.Tensor], faults: int) -> None:
    """Serves SOURCES right although `faults` of the files are bad, and right again from new ones."""
    encoder = open_cached(disk)
    assert same(tensors(encoder, SOURCES), expected)
    stats = encoder.cache_stats()
    assert (stats["errors"], stats["misses"], stats["disk_hits"]) == (faults, faults, 6 - faults)
    encoder.close()
    again = open_cached(disk)
    assert same(tensors(again, SOURCES), expected)
    assert again.cache_stats()["disk_hits"] == 6
    again.close()


def test_every_flipped_bit_is_seen(open_cached: Open, disk: Path) -> None:
    """One bit of each entry at a time: all over key and header, and spread over the rest."""
    expected = filled(open_cached, disk)
    files = entries(disk)
    originals = [path.read_bytes() for path in files]
    key_and_header = [*range(0, 60, 3), *range(4096, 4096 + 200, 4)]
    elsewhere = [61, 999, 4095, 5000, 8191, 8192, 8193, 9001, -1, -500, 10000, 8200]
    places = key_and_header + elsewhere
    for start in range(0, len(places), len(files)):
        for index, (path, original) in enumerate(zip(files, originals, strict=True)):
            place = places[(start + index) % len(places)] % len(original)
            content = bytearray(original)
            content[place] ^= 1 << (start + place) % 8
            path.write_bytes(content)
        damaged(open_cached, disk, expected, len(files))


@pytest.mark.parametrize("left", [0, 1, 31, 4095, 4096, 4100, 8191, 8192, 8193, -1])
def test_a_truncated_entry(open_cached: Open, disk: Path, left: int) -> None:
    expected = filled(open_cached, disk)
    for path in entries(disk)[:2]:
        os.truncate(path, left if left >= 0 else path.stat().st_size + left)
    damaged(open_cached, disk, expected, 2)


def test_entries_grown_swapped_foreign_and_of_an_older_format(open_cached: Open, disk: Path) -> None:
    expected = filled(open_cached, disk)
    grown, one, other, foreign, older, link = entries(disk)
    with grown.open("ab") as file:
        file.write(b"\0")
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    foreign.write_bytes(b"not an entry" * 10000)
    older.write_bytes(older.read_bytes().replace(b"mmcache1", b"mmcache0"))
    target = disk.parent / "target"
    link.rename(target)
    link.symlink_to(target)
    damaged(open_cached, disk, expected, 6)


def test_pipes_and_folders_in_place_of_entries(open_cached: Open, disk: Path) -> None:
    expected = filled(open_cached, disk)
    pipe, folder, huge, *_ = entries(disk)
    for path in (pipe, folder, huge):
        path.unlink()
    os.mkfifo(pipe)
    folder.mkdir()
    with huge.open("wb") as file:
        file.truncate(2**40)
    encoder = open_cached(disk)
    assert same(tensors(encoder, SOURCES), expected)
    assert encoder.cache_stats()["misses"] == 3


def test_an_entry_under_another_key_is_not_served(open_cached: Open, disk: Path) -> None:
    """Another's whole entry behind this one's key, as a file has it that is written over while it is read."""
    expected = filled(open_cached, disk)
    small, large = sorted(entries(disk), key=lambda path: path.stat().st_size)[:: len(SOURCES) - 1]
    body = large.read_bytes()[4096:]
    small.write_bytes(small.read_bytes()[:4096] + body)
    damaged(open_cached, disk, expected, 1)


def test_strange_files_are_left_alone(open_cached: Open, disk: Path) -> None:
    disk.mkdir()
    strange = ["readme.txt", "0123.mme", "XYZ0123456789abc.mme", "0123456789ABCDEF.mme", "foyer-storage-0"]
    for name in strange:
        (disk / name).write_bytes(b"mine")
    (disk / "0123456789abcdef.unfinished").write_bytes(b"left by a killed process")
    filled_names = {path.name for path in (filled_entries(open_cached, disk))}
    assert set(strange) <= filled_names
    assert "0123456789abcdef.unfinished" not in filled_names


def filled_entries(open_cached: Open, disk: Path) -> list[Path]:
    encoder = open_cached(disk)
    tensors(encoder, SOURCES)
    encoder.close()
    return list(disk.iterdir())


# Whose directory


def test_a_second_encoder_gets_a_sentence(open_cached: Open, disk: Path, tmp_path: Path) -> None:
    first = open_cached(disk)
    (tmp_path / "link").symlink_to(disk)
    for path in (disk, tmp_path / "link"):
        with pytest.raises(ValueError, match="used by another encoder of this process"):
            open_cached(path)
    assert tensors(first, SOURCES[:1])
    first.close()
    second = open_cached(disk)
    assert second.cache_stats()["errors"] == 0


def test_a_directory_is_free_after_a_failed_start(open_cached: Open, disk: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        open_cached(disk, checkpoint=tmp_path / "none")
    open_cached(disk).close()


def test_start_is_quick_with_many_entries(
    open_cached: Open, disk: Path, figures: Callable[[str], None]
) -> None:
    filled(open_cached, disk)
    open_cached(disk).close()
    content = entries(disk)[0].read_bytes()
    start = time.perf_counter()
    open_cached(disk, disk_bytes=2**40).close()
    clean = time.perf_counter() - start
    for number in range(5000):
        (disk / f"{number:016x}.mme").write_bytes(content[:100])
    start = time.perf_counter()
    encoder = open_cached(disk, disk_bytes=2**40)
    taken = time.perf_counter() - start
    figures(f"cache: opening with 5,000 entries takes {1e3 * (taken - clean):.0f} ms longer than with 6")
    assert taken - clean < 1
    encoder.close()


def test_stats_are_plain_numbers(open_cached: Open, disk: Path) -> None:
    stats = open_cached(disk).cache_stats()
    assert json.loads(json.dumps(stats)) == stats
    shutil.rmtree(disk)
