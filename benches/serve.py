"""An encoder under load on the CPU: overlap, batching, replicas, the cost of a request, the GIL.

    python benches/serve.py [--only overlap batching replicas requests gil] [--photos 64] [--pictures 256] [--depth 4]

Every row that compares runs both sides in turn on the same machine; none is a test.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from checkpoints import edit, published_width
from images import jpeg, png
from measure import heading, interleaved, milliseconds, table
from scripts import resident

from mm_libtorch_encoder import Encoder, _native

CORES = max(1, torch.get_num_threads())


def tiny(folder: Path) -> Path:
    """A demonstration checkpoint: its tower costs next to nothing beside a photograph."""
    path = folder / "tiny"
    if not path.exists():
        _native.make_checkpoint("qwen35", path, 0)
    return path


def small_canvas(folder: Path) -> Path:
    """A demonstration checkpoint that makes 256 tokens of a photograph, so that the tower is not all there is."""
    path = folder / "canvas"
    _native.make_checkpoint("glm53", path, 0)
    edit(path, "processor_config.json", lambda config: config["image_processor"].update(max_image_tokens=256))
    return path


def overlap(folder: Path, args: argparse.Namespace) -> str:
    """One call with many photographs: wall time beside what it could be at best."""
    photos = [jpeg(4000, 3000, seed) for seed in range(4)] * (args.photos // 4)
    rows = []
    with Encoder(small_canvas(folder), "tiny", "cpu", dtype="bfloat16") as encoder:
        encoder.generate(photos[:4])
        before = encoder.stats()
        start = time.perf_counter()
        encoder.generate(photos)
        wall = time.perf_counter() - start
        after = encoder.stats()
    total = {name: histogram.total - before.stages[name].total for name, histogram in after.stages.items()}
    preparing = (total["decode"] + total["resize"]) / CORES
    best = max(preparing, total["forward"])
    rows.append(
        [
            f"{len(photos)} JPEGs of 12 MP",
            *map(milliseconds, (wall, preparing, total["forward"])),
            f"{wall / best:.2f}",
        ]
    )
    return "One call, preprocessing beside the tower:\n\n" + table(
        ["input", "wall", f"preprocessing / {CORES} cores", "tower", "wall / the larger"], rows
    )


def from_callers(encoder: Encoder, sources: list[bytes], callers: int) -> None:
    """All sources, one a call, from as many threads."""
    left = iter(sources)
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                source = next(left, None)
            if source is None:
                return
            encoder.generate(source)

    threads = [threading.Thread(target=work) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def batching(folder: Path, args: argparse.Namespace) -> str:
    """Small pictures from many callers, one and many in a forward."""
    checkpoint = published_width("qwen35", folder / "wide", depth=args.depth)
    sources = [png(224, 224, seed) for seed in range(args.pictures)]
    sizes = (1, 8, 32)
    encoders = {
        size: Encoder(checkpoint, "wide", "cpu", dtype="bfloat16", max_batch_images=size) for size in sizes
    }
    seconds = interleaved(
        {str(size): lambda size=size: from_callers(encoders[size], sources, 32) for size in sizes},
        args.repeats,
    )
    single = [result.tensor.double() for result in encoders[1].generate(sources[:32])]
    many = [result.tensor.double() for result in encoders[32].generate(sources[:32])]
    farthest = max(float((a - b).norm() / a.norm()) for a, b in zip(many, single, strict=True))
    rows = [
        [str(size), f"{len(sources) / seconds[str(size)]:.1f}", f"{seconds['1'] / seconds[str(size)]:.2f}"]
        for size in sizes
    ]
    for encoder in encoders.values():
        encoder.close()
    title = f"{len(sources)} pictures of 224 px from 32 callers, Qwen3.5 width, {args.depth} blocks, bfloat16"
    return (
        f"{title}; the farthest result of a batch is {farthest:.1e} (relative L2) from the single one:\n\n"
        + table(["max_batch_images", "pictures/s", "x one at a time"], rows)
    )


def replicas(folder: Path, args: argparse.Namespace) -> str:
    """Memory and throughput by the number of replicas."""
    checkpoint = published_width("qwen35", folder / "memory", depth=args.depth)
    sources = [png(224, 224, seed) for seed in range(args.pictures // 4)]
    rows = []
    base = 0
    for count in (1, 2, 4):
        gc.collect()
        memory = resident()
        with Encoder(checkpoint, "wide", "cpu", dtype="bfloat16", replicas_per_gpu=count) as encoder:
            weights = resident() - memory
            base = base or weights
            encoder.warmup([(224, 224)])
            start = time.perf_counter()
            from_callers(encoder, sources, 8)
            wall = time.perf_counter() - start
        rows.append(
            [str(count), f"{weights / 2**20:.0f} MiB", f"{weights / base:.2f}", f"{len(sources) / wall:.1f}"]
        )
    return "Replicas on one copy of the weights, sharing the compute threads:\n\n" + table(
        ["replicas", "resident after opening", "x one", "pictures/s"], rows
    )


def requests(folder: Path, args: argparse.Namespace) -> str:
    """What a request costs the thread that makes it, with a queue that has room."""
    source = png(64, 64)
    count = 2000
    taken: list[tuple[float, float]] = []
    with Encoder(
        tiny(folder), "tiny", "cpu", dtype="float32", queue_depth=8 * count, queue_tokens=1 << 30
    ) as encoder:
        for _ in range(max(5, args.repeats)):
            start = time.perf_counter()
            pending = encoder._native.submit([source] * count, None, _native.Mailbox(), 0)
            submitted = time.perf_counter()
            pending.cancel()
            taken.append((submitted - start, time.perf_counter() - submitted))
        start = time.perf_counter()
        for _ in range(count):
            encoder.stats()
        stats = (time.perf_counter() - start) / count
    submit, cancel = (statistics.median(column) / count for column in zip(*taken, strict=True))
    rows = [["submit: header read, queued", f"{submit * 1e6:.1f} us"], ["cancel", f"{cancel * 1e6:.1f} us"]]
    return f"One of {count} requests in one call:\n\n" + table(
        ["what", "each"], [*rows, ["stats()", f"{stats * 1e6:.1f} us"]]
    )


def gil(folder: Path, args: argparse.Namespace) -> str:
    """Speed of a Python thread that only counts: beside an encode on one compute thread, and beside another process
    that keeps a core as busy, so that what the machine lacks in free cores is lacking on both sides."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    pixels = torch.zeros(100 * 100, 1536)

    def speed(seconds: float = 0.5) -> float:
        steps = 0
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            steps += 1
        return steps / seconds

    apart, beside = [], []
    with Encoder(tiny(folder), "tiny", "cpu", dtype="float32") as encoder:
        for _ in range(max(5, args.repeats)):
            other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            time.sleep(0.2)
            apart.append(speed())
            other.kill()
            other.wait()
            stop = threading.Event()

            def encode(stop: threading.Event = stop) -> None:
                while not stop.is_set():
                    encoder.encode_pixels(pixels, [(1, 100, 100)])

            worker = threading.Thread(target=encode)
            worker.start()
            time.sleep(0.2)
            beside.append(speed())
            stop.set()
            worker.join()
    torch.set_num_threads(threads)
    a, b = statistics.median(apart), statistics.median(beside)
    row = [f"{a / 1e6:.2f} M/s", f"{b / 1e6:.2f} M/s", f"{b / a:.2f}"]
    return "A Python thread that counts:\n\n" + table(
        ["beside a busy process", "beside an encode", "share"], [row]
    )


PARTS = {"overlap": overlap, "batching": batching, "replicas": replicas, "requests": requests, "gil": gil}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--photos", type=int, default=64)
    parser.add_argument("--pictures", type=int, default=256)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    print(heading(f"Serving, {CORES} threads"))
    with tempfile.TemporaryDirectory() as folder:
        for name in args.only:
            print(PARTS[name](Path(folder), args), flush=True)


if __name__ == "__main__":
    main()
