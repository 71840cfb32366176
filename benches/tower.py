"""Tower time on the CPU beside its reference (transformers or SGLang, SDPA): same weights, same input, taking turns.

    python benches/tower.py [--families qwen35 kimi] [--sizes 224 448] [--dtypes float32 bfloat16] [--depth 2]

Published widths, a few blocks: the ratio depends on width and size, hardly on depth. Sizes are sides of square images
in pixels; for sound they are hundredths of a second. `--cpu-time` compares processor seconds instead of wall time, for
a machine that does other work. A family whose reference is not installed is left out, and named.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import goldens
from checkpoints import PUBLISHED, published_width
from images import png
from measure import heading, interleaved, milliseconds, table
from reference import module
from sounds import Sound

from mm_libtorch_encoder import Encoder, _native

AUDIO_RATE = 24_000


def row(
    name: str, folder: Path, encoder: Encoder, size: int, repeats: int, clock: Callable[[], float]
) -> list[str]:
    dtype = str(encoder.dtype).removeprefix("torch.")
    upstream = module(name)
    sound = encoder.modality == "audio"
    data = Sound(size * AUDIO_RATE // 100).data() if sound else png(size, size)
    # Ours: pixel values of all families equal their upstream's, and here only the tower is timed.
    matrix, grid = _native.Processor(folder, "", encoder.family).pixel_values(data)
    pixels, grids = torch.from_numpy(matrix).to(encoder.dtype), torch.tensor([grid])
    seconds = interleaved(
        {
            "ours": lambda: encoder.encode_pixels(pixels, [grid]),
            "reference": lambda: upstream.forward(folder, pixels, grids, dtype),
        },
        repeats,
        clock,
    )
    ratio = seconds["reference"] / seconds["ours"]
    times = [milliseconds(seconds[each]) for each in ("ours", "reference")]
    shown = f"{size / 100:g} s" if sound else f"{size} px"
    return [name, dtype, shown, str(matrix.shape[0]), *times, f"{ratio:.2f}"]


def rows_of(name: str, args: argparse.Namespace, clock: Callable[[], float]) -> list[list[str]]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = published_width(name, Path(folder) / name, depth=args.depth)
        for dtype in args.dtypes:
            with Encoder(checkpoint, name, "cpu", goldens.family_of(name), dtype=dtype) as encoder:
                rows += [row(name, checkpoint, encoder, size, args.repeats, clock) for size in args.sizes]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--families", nargs="+", default=sorted(PUBLISHED), choices=sorted(PUBLISHED))
    parser.add_argument("--sizes", type=int, nargs="+", default=[448])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--cpu-time", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = time.process_time if args.cpu_time else time.perf_counter
    rows: list[list[str]] = []
    absent: list[str] = []
    for name in args.families:
        try:
            rows += rows_of(name, args, clock)
        except ImportError as error:
            absent.append(f"{name} ({error.name} is not installed)")
    unit = "processor time" if args.cpu_time else "wall time"
    print(heading(f"Towers, {args.threads} threads, {args.depth} blocks, {unit}"))
    print(table(["family", "dtype", "input", "patches", "ours", "reference", "ratio"], rows))
    if absent:
        print("\nNot run: " + ", ".join(absent))


if __name__ == "__main__":
    main()
