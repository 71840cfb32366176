"""Resizing, and encoded bytes to a tower's input, beside Pillow, torchvision, transformers, SGLang's extension and
the published wheel.

    python benches/pixels.py [--threads 1 2] [--repeats 9] [--cpu-time]

A process of its own for each number of threads; within it all take turns on the same input. A ratio is the peer's
median over ours: above 1 we are faster. `--cpu-time` compares processor seconds of the whole process instead of wall
time, for a machine that does other work. Peers that are not installed are named as absent: see `peers.py`.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import images
import numpy as np
import peers
import PIL.Image
from measure import heading, interleaved, load, milliseconds, table
from peers import Absent, Published, optional

from mm_libtorch_encoder import preprocess
from mm_libtorch_encoder.preprocess import Canvas, Normalization, Recipe

#: (width, height) of source and target; the first two are the project's targets.
RESIZES = [
    ((2688, 1512), (1344, 768)),
    ((4032, 3024), (1344, 1008)),
    ((1512, 2688), (768, 1344)),
    ((1920, 1080), (1920, 1088)),
    ((640, 480), (644, 476)),
    ((224, 224), (448, 448)),
    ((3000, 1000), (900, 600)),
]
PHOTOS = [(224, 224), (640, 480), (1920, 1080), (4032, 3024)]
PATCH, MERGE, FRAMES = 16, 2, 2
MIN_PIXELS, MAX_PIXELS = 65_536, 16_777_216
HALF = (0.5, 0.5, 0.5)
#: Pictures of a batch.
IMAGES = 32

Run = Callable[[], object]


def resize_runs(image: Any, size: tuple[int, int], threads: int) -> dict[str, Run]:
    width, height = size
    picture = PIL.Image.fromarray(image)
    runs: dict[str, Run] = {
        "ours, pillow": lambda: preprocess.resize(image, width, height, bands=threads),
        "Pillow": lambda: picture.resize(size, PIL.Image.Resampling.BICUBIC),
        "ours, torchvision": lambda: preprocess.resize(
            image, width, height, "bicubic", "torchvision", bands=threads
        ),
        "ours, float32": lambda: preprocess.resize(
            image, width, height, "bicubic", "aten-float32", bands=threads
        ),
    }
    if functional := optional("torchvision.transforms.v2.functional"):
        torch = import_module("torch")
        planes = torch.from_numpy(image).permute(2, 0, 1)
        values = planes[None].float()
        runs["torchvision"] = lambda: functional.resize(
            planes, [height, width], interpolation="bicubic", antialias=True
        )
        runs["Torch float32"] = lambda: torch.nn.functional.interpolate(
            values, size=(height, width), mode="bicubic", antialias=True
        )
    if extension := peer(peers.sglang):
        runs["SGLang"] = lambda: extension.common.resize_rgb(image, width, height, "pil_bicubic")
    return runs


absent: list[str] = []


@cache
def peer(find: Callable[[], Any]) -> Any:
    """What `find` gives, or None where it is absent; the reason is printed at the end."""
    try:
        return find()
    except Absent as reason:
        absent.append(str(reason))
        return None


PEERS = {
    "Pillow": "ours, pillow",
    "SGLang": "ours, pillow",
    "torchvision": "ours, torchvision",
    "Torch float32": "ours, float32",
    "transformers, torchvision": "ours, float32",
    "transformers, Pillow": "ours, float32",
    "SGLang float32": "ours, float32",
    "SGLang float32 to bfloat16": "ours, bfloat16",
    "published wheel, bfloat16": "ours, bfloat16",
}


def lines(first: list[str], seconds: dict[str, float], names: list[str]) -> list[str]:
    """One row: a time each, and behind a peer's time the ratio to ours."""
    cells = []
    for name in names:
        if name not in seconds:
            cells.append("")
            continue
        ratio = f" ({seconds[name] / seconds[PEERS[name]]:.1f}x)" if name in PEERS else ""
        cells.append(milliseconds(seconds[name]) + ratio)
    return first + cells


def tabulate(first: list[str], measured: list[tuple[list[str], dict[str, float]]]) -> str:
    names = list(dict.fromkeys(name for _, seconds in measured for name in seconds))
    return table(first + names, [lines(labels, seconds, names) for labels, seconds in measured])


def resizes(threads: int, repeats: int, clock: Callable[[], float]) -> str:
    measured = []
    for source, target in RESIZES:
        seconds = interleaved(resize_runs(images.scene(*source), target, threads), repeats, clock)
        measured.append(([f"{source[0]}x{source[1]} to {target[0]}x{target[1]}"], seconds))
    return "uint8 RGB, bicubic:\n\n" + tabulate(["resize"], measured)


def bytes_runs(data: bytes, threads: int, published: Published | None) -> dict[str, Run]:
    normalization = Normalization.named("torchvision", 1 / 255, HALF, HALF)

    def ours(dtype: str) -> Run:
        recipe = Recipe(
            normalization, PATCH, frames=FRAMES, merge=MERGE, dtype=dtype, arithmetic="torchvision"
        )

        def run() -> object:
            image = preprocess.decode(data)
            size = preprocess.smart_resize(*image.shape[:2], PATCH * MERGE, MIN_PIXELS, MAX_PIXELS)
            return preprocess.prepare(image, recipe, Canvas.full(*size), bands=threads)

        return run

    height, width = preprocess.smart_resize(
        *preprocess.decode(data).shape[:2], PATCH * MERGE, MIN_PIXELS, MAX_PIXELS
    )
    written = np.zeros(height * width * 3 * FRAMES, np.uint16)
    runs: dict[str, Run] = {
        "decode": lambda: preprocess.decode(data),
        "write": lambda: written.fill(1),
        "ours, bfloat16": ours("bfloat16"),
        "ours, float32": ours("float32"),
    }
    options = {"patch_size": PATCH, "merge_size": MERGE, "temporal_patch_size": FRAMES}
    size = {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS}
    for name, module, kind in [
        ("transformers, torchvision", "image_processing_qwen2_vl", "Qwen2VLImageProcessor"),
        ("transformers, Pillow", "image_processing_pil_qwen2_vl", "Qwen2VLImageProcessorPil"),
    ]:
        if home := optional(f"transformers.models.qwen2_vl.{module}"):
            processor = getattr(home, kind)(size=size, image_mean=HALF, image_std=HALF, **options)
            runs[name] = lambda processor=processor: processor(
                images=[PIL.Image.open(io.BytesIO(data))], return_tensors="pt"
            )
    torch = optional("torch")
    if torch and (sglang := peer(peers.sglang)):
        constants = {
            "min_pixels": MIN_PIXELS,
            "max_pixels": MAX_PIXELS,
            "image_mean": HALF,
            "image_std": HALF,
        }
        names = {"family": "qwen_vl", "feature_shm": False, "image_token_id": 1, "resample": "aten_u8"}
        spec = json.dumps(options | constants | names)
        runs["SGLang float32"] = lambda: sglang.qwen_vl.preprocess(data, spec)
        runs["SGLang float32 to bfloat16"] = lambda: torch.from_numpy(
            sglang.qwen_vl.preprocess(data, spec)[0]
        ).to(torch.bfloat16)
    if published:
        runs["published wheel, bfloat16"] = published.run(data)
    return runs


def photographs() -> list[tuple[str, bytes]]:
    """Encoded pictures of low and of high detail: the former is the latter, enlarged from an eighth."""
    found = []
    for size in PHOTOS:
        sharp = PIL.Image.fromarray(images.scene(*size))
        smooth = PIL.Image.fromarray(images.scene(size[0] // 8, size[1] // 8)).resize(size)
        name = f"{size[0]}x{size[1]}"
        found.append((f"{name} JPEG, low detail", images.encode(smooth, "JPEG", quality=85)))
        found.append((f"{name} JPEG, high detail", images.encode(sharp, "JPEG", quality=85)))
        if size == (1920, 1080):
            found.append((f"{name} PNG, low detail", images.encode(smooth)))
            found.append((f"{name} WebP, low detail", images.encode(smooth, "WEBP", quality=85)))
    return found


def whole_way(threads: int, repeats: int, cpu_time: bool, clock: Callable[[], float]) -> str:
    published = peer(lambda: Published(threads, cpu_time))
    measured = []
    for name, data in photographs():
        seconds = interleaved(bytes_runs(data, threads, published), repeats, clock)
        floor = seconds["ours, bfloat16"] / (seconds["decode"] + seconds["write"])
        measured.append(([name, f"{len(data) / 1e3:.0f} kB", f"{floor:.2f}"], seconds))
    if published:
        published.close()
    return (
        "Encoded bytes to Qwen3.5's patch matrix. `decode` is our decoder alone, `write` one pass over the memory of\n"
        "the bfloat16 matrix, and the floor is ours in bfloat16 over their sum. The published wheel also hashes.\n\n"
        + tabulate(["picture", "bytes", "floor"], measured)
    )


def batches(repeats: int) -> str:
    """One and two threads of the pool: wall time, and what all threads together took of the processor."""
    picture = images.scene(1920, 1080)
    data = images.encode(PIL.Image.fromarray(picture), "JPEG", quality=85)
    recipe = Recipe(
        Normalization.named("torchvision", 1 / 255, HALF, HALF), PATCH, frames=FRAMES, merge=MERGE
    )
    work: dict[str, Run] = {
        "resize": lambda: preprocess.resize_batch([picture] * IMAGES, [(960, 544)] * IMAGES),
        "prepare": lambda: preprocess.prepare_batch(
            [picture] * IMAGES, recipe, [Canvas.full(544, 960)] * IMAGES
        ),
        "decode": lambda: preprocess.decode_batch([data] * IMAGES),
        "decode and prepare, 8 a call": lambda: [
            preprocess.prepare_batch(preprocess.decode_batch([data] * 8), recipe, [Canvas.full(544, 960)] * 8)
            for _ in range(IMAGES // 8)
        ],
    }

    def on(threads: int, run: Run, clock: Callable[[], float]) -> Run:
        def timed() -> float:
            preprocess.set_threads(threads)
            run()  # threads start, and their memory comes from the system, outside of what is timed
            start = clock()
            run()
            return clock() - start

        return timed

    rows = []
    for name, run in work.items():
        wall, spent = (
            interleaved({"one": on(1, run, clock), "two": on(2, run, clock)}, repeats)
            for clock in (time.perf_counter, time.process_time)
        )
        times = [milliseconds(each[key]) for each in (wall, spent) for key in ("one", "two")]
        ratios = [f"{wall['one'] / wall['two']:.2f}", f"{2 * spent['one'] / spent['two']:.2f}"]
        rows.append([name, *times, *ratios])
    return (
        f"{IMAGES} pictures of 1920x1080, {load()}. The last column is what two threads would gain on two idle cores,\n"
        "from the processor time:\n\n"
        + table(
            ["batch", "1 thread", "2 threads", "processor, 1", "processor, 2", "ratio", "on idle cores"], rows
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.in_process:
        for threads in args.threads:
            command = [sys.executable, __file__, "--in-process", "--threads", str(threads)]
            command += ["--repeats", str(args.repeats), *(["--cpu-time"] if args.cpu_time else [])]
            limits = {f"{name}_NUM_THREADS": str(threads) for name in ("OMP", "MKL", "OPENBLAS", "RAYON")}
            subprocess.run(command, check=True, env=os.environ | limits)
        return
    threads = args.threads[0]
    preprocess.set_threads(threads)
    if torch := optional("torch"):
        torch.set_num_threads(threads)
    clock = time.process_time if args.cpu_time else time.perf_counter
    unit = "processor time" if args.cpu_time else "wall time"
    print(heading(f"Pixels, {threads} thread{'s' if threads > 1 else ''}, {unit}"))
    print(resizes(threads, args.repeats, clock))
    print(whole_way(threads, args.repeats, args.cpu_time, clock))
    if threads > 1:
        print(batches(args.repeats))
    for reason in absent:
        print(f"Absent: {reason}.\n")


if __name__ == "__main__":
    main()
