"""The cache: hits in memory and from disk beside hashing, a plain read and the same work without a cache.

    python benches/cache.py [--mib 4] [--repeats 300] [--cpu-time]

A small tower with embeddings of published width gives about `--mib` MiB for one image. `--cpu-time` takes the
processor seconds of hits in memory instead of wall time, for a machine that does other work.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from checkpoints import published_width
from images import jpeg, png
from measure import heading, table

from mm_libtorch_encoder import CacheConfig, Encoder, preprocess

MIB = 2**20
# Embeddings as wide as published ones from a tower that costs next to nothing: it is not what is measured.
NARROW = {"depth": 1, "hidden_size": 128, "num_heads": 2, "intermediate_size": 256}


def seconds(run: Callable[[], object], repeats: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Median of single runs."""
    times = []
    for _ in range(repeats):
        start = clock()
        run()
        times.append(clock() - start)
    return statistics.median(times)


def opened(folder: Path, cache: CacheConfig) -> Encoder:
    return Encoder(folder, "bench", "cpu", dtype="bfloat16", cache=cache)


def small_sources(count: int) -> list[bytes]:
    """Images whose files are padded to 10 kB: what follows a PNG's end is not read."""
    return [png(64, 64, seed).ljust(10_000, b"\0") for seed in range(count)]


def hits_a_second(
    encoder: Encoder, sources: list[bytes], threads: int, cpu_time: bool, duration: float = 2.0
) -> float:
    for source in sources:
        encoder.generate(source)
    counts = [0] * threads
    end = time.perf_counter() + duration

    def work(index: int) -> None:
        done = 0
        while time.perf_counter() < end:
            for source in sources:
                encoder.generate(source)
            done += len(sources)
        counts[index] = done

    before = encoder.cache_stats()["memory_hits"]
    clock = time.process_time if cpu_time else time.perf_counter
    start = clock()
    workers = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    taken = clock() - start
    assert encoder.cache_stats()["memory_hits"] - before == sum(counts)
    return sum(counts) / taken


def dropped(path: Path) -> None:
    """Takes a file out of the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(path: Path) -> bytearray:
    """The bytes of a file in new memory."""
    content = bytearray(path.stat().st_size)
    with path.open("rb", buffering=0) as file:
        file.readinto(content)
    return content


def disk_rows(folder: Path, source: bytes, pixels: int, repeats: int, cpu_time: bool) -> list[list[str]]:
    """Hits from disk beside plain reads of the same files into new memory, each result kept."""
    count = 16
    sources = [source, *(jpeg(pixels, pixels, seed) for seed in range(1, count))]
    rows = []
    with tempfile.TemporaryDirectory(dir=os.environ.get("MM_BENCH_DIR")) as disk:
        cache = CacheConfig(2048 * MIB, disk, 2048 * MIB, 64 * MIB)
        with opened(folder, cache) as encoder:
            encoder.generate(sources)
        files = sorted(Path(disk).glob("*.mme"))
        size = sum(path.stat().st_size for path in files)
        for name, cold in (("in the page cache", False), ("page cache dropped", True)):
            # A disk takes wall time; a copy out of the page cache takes the processor's.
            clock = time.process_time if cpu_time and not cold else time.perf_counter
            ours, plain = [], []
            for _ in range(max(3, repeats // 100)):
                for path in files:
                    dropped(path) if cold else read(path)
                with opened(folder, cache) as encoder:
                    encoder.generate(png(64, 64))  # threads and memory of the first request
                    start = clock()
                    kept = [encoder.generate(one) for one in sources]
                    ours.append(clock() - start)
                    assert encoder.cache_stats()["disk_hits"] == count + (
                        encoder.cache_stats()["misses"] == 0
                    )
                    del kept
                hashing = sum(
                    seconds(lambda one=one: preprocess.content_hash(one), 3, clock) for one in sources
                )
                ours[-1] -= hashing
                for path in files:
                    dropped(path) if cold else read(path)
                start = clock()
                contents = [read(path) for path in files]
                plain.append(clock() - start)
                del contents
            best, floor = statistics.median(ours), statistics.median(plain)
            rates = [f"{size / taken / 1e9:.2f} GB/s" for taken in (best, floor)]
            rows.append(
                [
                    f"hit on disk, {name}, beyond hashing",
                    rates[0],
                    f"plain read: {rates[1]}",
                    f"{floor / best:.0%}",
                ]
            )
    return rows


def opening_row(folder: Path) -> list[str]:
    """What hashing the weights adds to opening an encoder."""
    size = (folder / "model.safetensors").stat().st_size
    with tempfile.TemporaryDirectory() as disk:
        kept = CacheConfig(64 * MIB, disk, 128 * MIB, MIB)
        memory = CacheConfig(64 * MIB, max_entry_bytes=MIB)
        with_disk, without = (seconds(lambda c=c: opened(folder, c).close(), 5) for c in (kept, memory))
    ours = f"{1e3 * with_disk:.0f} ms"
    return [
        f"opening, tower of {size / MIB:.0f} MiB, with a directory",
        ours,
        f"without: {1e3 * without:.0f} ms",
        "",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=float, default=4)
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--cpu-time", action="store_true")
    args = parser.parse_args()
    clock = time.thread_time if args.cpu_time else time.perf_counter
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = published_width("qwen35", Path(name) / "checkpoint", **NARROW)
        # 32 pixels a token, 4096 bfloat16 columns: 8 KiB a token.
        side = 32 * max(2, round((args.mib * MIB / 8192) ** 0.5))
        source = jpeg(side, side)
        with opened(folder, CacheConfig(1024 * MIB, max_entry_bytes=256 * MIB)) as encoder:
            (first,) = encoder.generate(source)
            size = first.tensor.nbytes
            for name_, one in (("10 kB", bytes(10_000)), ("1 MB", bytes(1_000_000))):
                hashed = seconds(lambda one=one: preprocess.content_hash(one), args.repeats, clock)
                rows.append([f"hashing {name_}", f"{len(one) / hashed / 1e9:.2f} GB/s", "aim: 3 GB/s", ""])
            padded = png(64, 64, 7).ljust(10_000, b"\0")
            encoder.generate(padded)
            for label, one in (
                (f"hit, {size / MIB:.1f} MiB embedding, {len(source) // 1000} kB source", source),
                ("hit, 10 kB source", padded),
            ):
                (again,) = encoder.generate(one)
                whole = seconds(lambda one=one: encoder.generate(one), args.repeats, clock)
                hashed = seconds(lambda one=one: preprocess.content_hash(one), args.repeats, clock)
                rows.append(
                    [
                        f"{label}, beyond hashing",
                        f"{1e6 * (whole - hashed):.1f} us",
                        f"with hashing {1e6 * whole:.1f} us",
                        "",
                    ]
                )
            (again,) = encoder.generate(source)
            assert again.tensor.data_ptr() == first.tensor.data_ptr()
            sources = small_sources(50)
            for threads in (1, 2):
                rate = hits_a_second(encoder, sources, threads, args.cpu_time)
                rows.append([f"hits, {threads} threads, 10 kB sources", f"{rate:,.0f} a second", "", ""])
        rows += disk_rows(folder, source, side, args.repeats, args.cpu_time)
        rows.append(opening_row(folder))
    print(heading("Cache, processor time" if args.cpu_time else "Cache"))
    print(table(["what", "ours", "beside", "share"], rows))


if __name__ == "__main__":
    main()
