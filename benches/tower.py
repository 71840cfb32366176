"""Tower time on the CPU beside its reference (transformers or SGLang, SDPA): same weights, same pixel values, taking
turns.

    python benches/tower.py [--families qwen35 glm53 kimi] [--sizes 224 448 896] [--dtypes float32 bfloat16] [--depth 4]

Published widths, a few blocks: the ratio depends on width and size, hardly on depth. `--cpu-time` compares processor
seconds instead of wall time, for a machine that does other work.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from checkpoints import PUBLISHED, published_width
from images import png
from measure import heading, interleaved, milliseconds, table
from reference import module

from mm_libtorch_encoder import Encoder


def row(family: str, folder: Path, encoder: Encoder, size: int, repeats: int, clock) -> list[str]:
    dtype = str(encoder.dtype).removeprefix("torch.")
    upstream = module(family)
    pixels, grids = upstream.preprocess(folder, png(size, size))
    pixels = pixels.to(encoder.dtype)
    seconds = interleaved(
        {
            "ours": lambda: encoder.encode_pixels(pixels, grids.tolist()),
            "reference": lambda: upstream.forward(folder, pixels, grids, dtype),
        },
        repeats,
        clock,
    )
    ratio = seconds["reference"] / seconds["ours"]
    patches = "x".join(map(str, grids[0, 1:].tolist()))
    times = [milliseconds(seconds[name]) for name in ("ours", "reference")]
    return [family, dtype, f"{size} px", patches, *times, f"{ratio:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--families", nargs="+", default=["qwen35", "glm53"], choices=sorted(PUBLISHED))
    parser.add_argument("--sizes", type=int, nargs="+", default=[224, 448, 896])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--cpu-time", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = time.process_time if args.cpu_time else time.perf_counter
    rows = []
    for family in args.families:
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = published_width(family, Path(folder) / family, depth=args.depth)
            for dtype in args.dtypes:
                with Encoder(checkpoint, family, "cpu", dtype=dtype) as encoder:
                    rows += [
                        row(family, checkpoint, encoder, size, args.repeats, clock) for size in args.sizes
                    ]
    print(heading(f"Towers, {args.threads} threads, {args.depth} blocks"))
    print(table(["family", "dtype", "image", "patches", "ours", "reference", "ratio"], rows))


if __name__ == "__main__":
    main()
