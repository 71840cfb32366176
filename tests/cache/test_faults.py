"""A disk that fails while the encoder runs: every result stays right, and what failed is counted."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import images
import pytest
import torch
from scripts import run

from mm_libtorch_encoder import Encoder

Open = Callable[..., Encoder]
SOURCES = [images.png(60 + 10 * seed, 80, seed) for seed in range(8)]


def tensors(encoder: Encoder, sources: list[bytes]) -> list[torch.Tensor]:
    return [result.tensor.clone() for result in encoder.generate(sources)]


def right(encoder: Encoder, plain: Encoder, sources: list[bytes]) -> bool:
    return all(map(torch.equal, tensors(encoder, sources), tensors(plain, sources)))


def wait_for_errors(encoder: Encoder, most: float = 10) -> int:
    end = time.monotonic() + most
    while not encoder.cache_stats()["errors"] and time.monotonic() < end:
        time.sleep(0.01)
    return encoder.cache_stats()["errors"]


@pytest.fixture
def plain(shared_encoder: Callable[..., Encoder]) -> Encoder:
    return shared_encoder("glm53")


def test_a_directory_removed_while_running(open_cached: Open, plain: Encoder, tmp_path: Path) -> None:
    disk = tmp_path / "cache"
    encoder = open_cached(disk, memory_bytes=30_000, max_entry_bytes=30_000)
    assert right(encoder, plain, SOURCES[:4])
    shutil.rmtree(disk)
    for _ in range(3):
        assert right(encoder, plain, SOURCES)
    assert wait_for_errors(encoder) > 0
    encoder.close()
    assert not disk.exists()


def test_a_directory_replaced_by_a_file(open_cached: Open, plain: Encoder, tmp_path: Path) -> None:
    disk = tmp_path / "cache"
    encoder = open_cached(disk, memory_bytes=30_000, max_entry_bytes=30_000)
    assert right(encoder, plain, SOURCES[:4])
    disk.rename(tmp_path / "away")
    disk.write_bytes(b"")
    assert right(encoder, plain, SOURCES)
    assert wait_for_errors(encoder) > 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_permission_lost_while_running(open_cached: Open, plain: Encoder, tmp_path: Path) -> None:
    disk = tmp_path / "cache"
    encoder = open_cached(disk, memory_bytes=30_000, max_entry_bytes=30_000)
    assert right(encoder, plain, SOURCES[:4])
    disk.chmod(0)
    try:
        assert right(encoder, plain, SOURCES)
        assert wait_for_errors(encoder) > 0
    finally:
        disk.chmod(0o700)


@pytest.mark.parametrize("path", ["/proc/no/cache", "/proc/self/cmdline"])
def test_a_place_that_cannot_be_written(open_cached: Open, path: str) -> None:
    with pytest.raises(ValueError, match=r"disk_path .* cannot be"):
        open_cached(Path(path))


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mounts small file systems; only root may."""
    points: list[Path] = []

    def mount(name: str, options: str) -> Path:
        point = tmp_path / name
        point.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "none", str(point)]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("only root may mount a small file system")
        points.append(point)
        return point

    yield mount
    for point in points:
        subprocess.run(["umount", "-l", str(point)], check=True)


def test_a_full_disk(open_cached: Open, plain: Encoder, mounted: Callable[..., Path]) -> None:
    disk = mounted("small", "size=64k")
    encoder = open_cached(disk, memory_bytes=30_000, max_entry_bytes=30_000)
    for _ in range(3):
        assert right(encoder, plain, SOURCES)
    assert wait_for_errors(encoder) > 0
    encoder.close()
    assert not list(disk.glob("*.unfinished"))
    again = open_cached(disk)
    assert right(again, plain, SOURCES)


def test_a_read_only_disk(open_cached: Open, plain: Encoder, mounted: Callable[..., Path]) -> None:
    disk = mounted("frozen", "size=8m")
    encoder = open_cached(disk)
    assert right(encoder, plain, SOURCES[:4])
    encoder.close()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with pytest.raises(ValueError, match="cannot be written"):
        open_cached(disk)


LIMITED = """
import resource, sys, time
import images, torch
from mm_libtorch_encoder import CacheConfig, Encoder
cache = CacheConfig(memory_bytes=2**20, disk_path=sys.argv[2], disk_bytes=2**24, max_entry_bytes=2**20)
plain = Encoder(sys.argv[1], "demo", "cpu", dtype="float32")
encoder = Encoder(sys.argv[1], "demo", "cpu", dtype="float32", cache=cache)
resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))
sources = [images.png(90, 60, seed) for seed in range(8)]
for one, other in zip(encoder.generate(sources), plain.generate(sources), strict=True):
    assert torch.equal(one.tensor, other.tensor)
encoder.close()
assert encoder.cache_stats()["errors"] == 8, encoder.cache_stats()
print("fine")
"""


def test_files_may_not_grow(demo_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    outcome = run(LIMITED, demo_checkpoint("glm53"), tmp_path / "cache")
    assert (outcome.code, outcome.out) == (0, "fine\n"), outcome
    assert not list((tmp_path / "cache").glob("*.m*")) and not list((tmp_path / "cache").glob("*.u*"))
