"""A process that serves for long: its memory stays where it was, whatever it was sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import images
import pytest
import scripts

#: Memory in use at the second reading at most, as a share of the first one: a leak would show here.
IN_USE = 1.02
#: The same of resident memory, which moves with the threads that happen to give memory back to the C library's arenas.
RESIDENT = 1.05

Demo = Callable[[str], Path]

#: Eight callers and a cache that evicts; every eleventh picture is cut off. No batches: LibTorch keeps prepared matrix
#: products by their shapes, of which batches have hundreds, and needs thousands of images to have seen them all.
PROGRAM = """
import ctypes, gc, json, sys, threading
from pathlib import Path
import scripts, torch
from mm_libtorch_encoder import CacheConfig, Encoder, MediaError

class Counts(ctypes.Structure):
    "mallinfo2 of the C library, of all its arenas."
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks "
                "uordblks fordblks keepcost".split()]

library = ctypes.CDLL(None)
library.mallinfo2.restype = Counts

def memory():
    "Bytes of what the allocator handed out and was not given back, and of what is resident."
    gc.collect()
    library.malloc_trim(0)
    counts = library.mallinfo2()
    return counts.uordblks + counts.hblkhd, scripts.resident()

torch.set_num_threads(1)
items = [path.read_bytes() for path in sorted(Path(sys.argv[2]).iterdir())]
first, last = int(sys.argv[3]), int(sys.argv[4])
lock, served, failed, seen = threading.Lock(), 0, 0, []

def serve(encoder, numbers):
    global served, failed
    for number in numbers:
        data = items[number % len(items)]
        # A tail behind the picture makes it another source, and thus another entry of the cache; half have none.
        data = data[: len(data) // 2] if number % 11 == 3 else data + b"%d" % number * (number % 2)
        try:
            [result] = encoder.generate(data)
            assert result.tensor.isfinite().all()
            with lock: served += 1
        except MediaError:
            with lock: failed += 1

cache = CacheConfig(memory_bytes=4 << 20, max_entry_bytes=1 << 20)
with Encoder(sys.argv[1], "demo", "cpu", dtype="float32", queue_depth=16, cache=cache) as encoder:
    done = 0
    for until in (first, last):
        callers = [
            threading.Thread(target=serve, args=(encoder, range(done + caller, until, 8))) for caller in range(8)
        ]
        for caller in callers: caller.start()
        for caller in callers: caller.join()
        done = until
        seen.append(memory())
    counts = encoder.cache_stats()
print(json.dumps([seen, served, failed, counts["memory_hits"], counts["misses"]]))
"""


def check(checkpoint: Path, folder: Path, first: int, last: int) -> None:
    sizes = [(64, 48), (640, 480), (480, 640), (333, 517), (224, 224), (90, 60), (500, 40)]
    for number, (width, height) in enumerate(sizes):
        form, options = [("JPEG", {}), ("PNG", {}), ("JPEG", {"progressive": True}), ("WEBP", {})][number % 4]
        data = images.encode(images.picture(width, height, number), form, **options)
        (folder / str(number)).write_bytes(data)
    done = scripts.run(PROGRAM, checkpoint, folder, str(first), str(last), timeout=1800)
    assert done.code == 0, done.err
    seen, served, failed, hits, misses = json.loads(done.out)
    assert served + failed == last
    assert failed == len([number for number in range(last) if number % 11 == 3])
    assert hits > 0 and misses > 0
    (used, resident), (used_at_last, resident_at_last) = seen
    shares = f"{used_at_last / used:.4f} in use, {resident_at_last / resident:.4f} resident"
    print(f"after {first} and {last} images {used >> 20} and {resident >> 20} MiB: {shares}")
    assert used_at_last <= used * IN_USE
    assert resident_at_last <= resident * RESIDENT


def test_after_300_and_900_images(demo_checkpoint: Demo, tmp_path: Path) -> None:
    check(demo_checkpoint("qwen35"), tmp_path, 300, 900)


@pytest.mark.slow
def test_after_1000_and_10000_images(demo_checkpoint: Demo, tmp_path: Path) -> None:
    check(demo_checkpoint("qwen35"), tmp_path, 1_000, 10_000)
