"""Memory of the way from encoded bytes to a tower's input: flat over many images, and bounded for one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import images
import numpy as np
import pytest
import scripts

#: What an allocator may leave behind in its arenas over any number of images.
SLACK = 8 << 20
#: Python objects, thread stacks and tables that come with the first image.
FIRST_USE = 2 << 20

Demo = Callable[[str], Path]

FLAT = """
import json, sys
from pathlib import Path
import scripts
from mm_libtorch_encoder import _native

processor = _native.Processor(sys.argv[1], "Qwen/Qwen3.5-4B")
items = [path.read_bytes() for path in sorted(Path(sys.argv[2]).iterdir())]
count = int(sys.argv[3])
seen = []
for number in range(count):
    data = items[number % len(items)]
    try:
        values, _ = processor.pixel_values(data[: len(data) // 2] if number % 7 == 3 else data, "bfloat16")
        del values
    except _native.MediaError:
        pass
    if number % (count // 10) == count // 10 - 1:
        seen.append(scripts.resident())
print(json.dumps(seen))
"""

PEAK = """
import json, sys
from pathlib import Path
import scripts
from mm_libtorch_encoder import _native

processor = _native.Processor(sys.argv[1], "Qwen/Qwen3.5-4B")
data = Path(sys.argv[2]).read_bytes()
processor.pixel_values(Path(sys.argv[3]).read_bytes(), "bfloat16")
before = scripts.resident()
values, _ = processor.pixel_values(data, "bfloat16")
# Not getrusage's: that one counts the parent's memory from before this program began.
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(json.dumps([int(peak.split()[1]) * 1024 - before, values.nbytes]))
"""


def check_flat(checkpoint: Path, folder: Path, count: int) -> None:
    sizes = [(64, 48), (640, 480), (480, 640), (1280, 720), (333, 517), (1000, 1000), (224, 224)]
    for number, (width, height) in enumerate(sizes):
        form, options = [("JPEG", {}), ("PNG", {}), ("JPEG", {"progressive": True}), ("WEBP", {})][number % 4]
        data = images.encode(images.picture(width, height, number), form, **options)
        (folder / str(number)).write_bytes(data)
    done = scripts.run(FLAT, checkpoint, folder, str(count), timeout=900)
    assert done.code == 0, done.err
    seen = json.loads(done.out)
    assert len(seen) == 10
    assert max(seen[1:]) - seen[0] < SLACK, [f"{value >> 20} MiB" for value in seen]


def test_memory_is_flat_over_500_images(demo_checkpoint: Demo, tmp_path: Path) -> None:
    check_flat(demo_checkpoint("qwen35"), tmp_path, 500)


@pytest.mark.slow
def test_memory_is_flat_over_10000_images(demo_checkpoint: Demo, tmp_path: Path) -> None:
    check_flat(demo_checkpoint("qwen35"), tmp_path, 10_000)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "BMP"])
@pytest.mark.parametrize("size", [(1920, 1080), (4032, 3024)])
def test_the_peak_is_pixels_and_output_and_a_tenth(
    demo_checkpoint: Demo, tmp_path: Path, size: tuple[int, int], form: str
) -> None:
    """The formats whose decoders hold rows beside their result; docs/decoding.md has what the others hold."""
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(images.encode(images.picture(64, 64), form))
    smooth = images.picture(size[0] // 8, size[1] // 8).resize(size)
    large.write_bytes(images.encode(smooth, form))
    done = scripts.run(PEAK, demo_checkpoint("qwen35"), large, small)
    assert done.code == 0, done.err
    peak, output = json.loads(done.out)
    decoded = int(np.prod(size)) * 3
    assert output > decoded
    assert peak <= (decoded + output) * 1.1 + FIRST_USE, f"{peak} bytes beside {decoded} and {output}"
