"""Pixels that travel as bytes: the kernel `patches` against the host's own preprocessing, and every family with it."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import images
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scripts import run

from mm_libtorch_encoder import _native, preprocess
from mm_libtorch_encoder.preprocess import Canvas, Normalization, Recipe

Kernels = ctypes.CDLL
CheckpointOf = Callable[[str], Path]

FAMILIES = [family for family, *_ in _native.families()]
# Resized in float32, or not an image at all: their values are no function of 8-bit levels.
VALUES = {"nemotron35", "muse_audio"}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CODES = {"float32": 0, "bfloat16": 1, "float16": 2}
ORDERS = {"channel-frame": 0, "frame-channel": 1, "channels-last": 2}
# Copies of a still image in a patch, where they are not 2.
FRAMES = {"deepseek41": 1, "kimi": 1}
SECONDS = 600

Pointer, I64, I32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class Job(ctypes.Structure):
    """MmCudaPatches of cuda/api.h."""

    _fields_ = [
        ("edges", Pointer), ("levels", Pointer), ("table", Pointer), ("out", Pointer), ("rows", I64), ("side", I32),
        ("frames", I32), ("order", I32),
    ]  # fmt: skip


def extreme_tables() -> tuple[NDArray[np.float32], list[float]]:
    """Values of every kind, all different, and paddings that are no level's value."""
    table = np.random.default_rng(5).standard_normal((3, 256)).astype(np.float32)
    table[:, :10] = [0.0, -0.0, 1e-45, -1e-40, 6e-8, 65519.0, -65520.0, 3e38, np.inf, -np.inf]
    table[1] = table[1, ::-1]
    return table, [-np.inf, 1e-42, 12345.678]


def edges(canvas: Canvas, side: int, merge: int) -> Iterator[list[int]]:
    """The content's lines and columns within each patch, by their definition."""
    lines = [canvas.top <= y < canvas.top + canvas.content_height for y in range(canvas.height)]
    columns = [canvas.left <= x < canvas.left + canvas.content_width for x in range(canvas.width)]

    def within(axis: list[bool], number: int) -> list[int]:
        places = [place for place, inside in enumerate(axis[number * side : (number + 1) * side]) if inside]
        return [places[0], places[-1] + 1] if places else [0, 0]

    for block_y in range(canvas.height // side // merge):
        for block_x in range(canvas.width // side // merge):
            for y in range(block_y * merge, (block_y + 1) * merge):
                for x in range(block_x * merge, (block_x + 1) * merge):
                    yield within(lines, y) + within(columns, x)


def canvases(side: int, merge: int) -> list[Canvas]:
    height, width = 2 * merge * side, 3 * merge * side
    return [
        Canvas.full(height, width),
        Canvas(height, width, height - 1, width - 2 * side // 3, 0, 0),
        Canvas(height, width, max(1, height // 3), max(1, width // 2), height // 5, width // 3),
        Canvas(height, width, 0, 0, 0, 0),
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("samples", ORDERS)
@pytest.mark.parametrize("frames", [1, 2, 3])
@pytest.mark.parametrize(("side", "merge"), [(1, 1), (7, 2), (14, 2), (16, 1), (27, 1), (40, 1)])
def test_the_kernel_gives_the_hosts_values(
    kernels: Kernels, dtype: str, samples: str, frames: int, side: int, merge: int
) -> None:
    image = images.noise(45, 37, seed=side)
    table, fill = extreme_tables()
    ramp = np.tile(np.arange(256, dtype=np.float32), (3, 1))
    as_levels = Recipe(Normalization.from_table(ramp, [0.0] * 3), side, merge=merge, samples=samples)
    as_values = Recipe(
        Normalization.from_table(table, fill), side, frames=frames, merge=merge, samples=samples, dtype=dtype
    )
    all_values = torch.from_numpy(np.column_stack([table, np.float32(fill)])).to(DTYPES[dtype])
    for canvas in canvases(side, merge):
        levels = preprocess.prepare(image, as_levels, canvas).astype(np.uint8)
        wanted = preprocess.prepare(image, as_values, canvas).view(np.uint8)
        # Whatever lies in padding is not looked at.
        cut = np.array(list(edges(canvas, side, merge)), np.uint16)
        out = np.full(wanted.shape, 0xA5, np.uint8)
        guard = np.concatenate([out.ravel(), np.full(64, 0xA5, np.uint8)])
        job = Job(
            cut.ctypes.data, levels.ctypes.data, all_values.data_ptr(), guard.ctypes.data, len(levels), side, frames,
            ORDERS[samples],
        )  # fmt: skip
        kernels.host_patches(ctypes.byref(job), CODES[dtype])
        assert np.array_equal(guard[: wanted.size].reshape(wanted.shape), wanted), canvas
        assert (guard[wanted.size :] == 0xA5).all()


@pytest.mark.parametrize("side", [*range(1, 34), 40, 56, 64, 255, 256])
def test_every_level_of_a_patch_is_taken_once(kernels: Kernels, side: int) -> None:
    each = kernels.host_patch_run(I32(side))
    # A run lies in one plane, and begins where so many numbers may be read and written at once.
    assert each in (1, 4) and side * side % each == 0
    count = 3 * side * side // each
    blocks, threads = ctypes.c_uint32(), ctypes.c_uint32()
    kernels.host_launch(1, I64(1000), I64(count), ctypes.byref(blocks), ctypes.byref(threads))
    assert blocks.value == 1000 and 32 <= threads.value <= 256
    times = (ctypes.c_uint8 * count)()
    for thread in range(threads.value):
        kernels.host_taken(I64(thread), I64(threads.value), I64(count), times)
    assert bytes(times) == b"\1" * count


START = """
    import json, sys
    from pathlib import Path
    import torch
    import images, sounds
    from cuda_double import Double
    from mm_libtorch_encoder import DeviceOutOfMemory, Encoder, _native
    import mm_libtorch_encoder.encoder

    library, *folders = sys.argv[1:]
    double = Double(library)
    # The last is padded wherever a family pads.
    pictures = [images.png(100, 60, 2), images.png(70, 75, 3), images.png(33, 131, 4)]
    heard = [sounds.Sound(samples).data() for samples in (70_000, 5_000)]

    def all_but(name):
        return [kernel for kernel, *_ in _native.cuda_kernels() if kernel != name]

    def open_encoder(folder, dtype="float32", **options):
        return Encoder(folder, "demo", "cuda:0", Path(folder).name, dtype=dtype, **options)

    def ran(encoder, sources):
        "Tensors, names of launches and bytes of uploads."
        double.log()
        tensors = [result.tensor.clone() for result in encoder.generate(sources)]
        lines = double.log()
        launches = [line.split()[1] for line in lines if line.startswith("launch ")]
        return tensors, launches, [int(line.split()[1]) for line in lines if line.startswith("upload ")]

    def farthest(first, second):
        "The largest relative Euclidean distance of two tensors; 0 for the same bits."
        assert len(first) == len(second) > 0 and not any(bool(a.isnan().any()) for a in first)
        pairs = [(a.double(), b.double()) for a, b in zip(first, second) if not torch.equal(a, b)]
        return max((float((a - b).norm() / b.norm()) for a, b in pairs), default=0.0)
"""

EVERY_FAMILY = """
    def shape(folder, source):
        return _native.Processor(folder, family=Path(folder).name).pixel_values(source)[0].shape

    report = {}
    for folder in folders:
        for dtype in ("float32", "bfloat16", "float16"):
            for batch in (1, 4):
                with open_encoder(folder, dtype, max_batch_images=batch) as encoder:
                    sources = pictures if encoder.modality == "image" else heard
                    sources = sources if batch > 1 else sources[:1] + sources[-1:]
                    _native.set_cuda_kernels(all_but(None))
                    bytes_, launches, uploads = ran(encoder, sources)
                    _native.set_cuda_kernels(all_but("patches"))
                    values, plain, plain_uploads = ran(encoder, sources)
                report[f"{folder} {dtype} {batch}"] = {
                    "farthest": farthest(bytes_, values), "launches": launches, "plain": plain, "uploads": uploads,
                    "plain_uploads": plain_uploads, "shapes": [shape(folder, source) for source in sources],
                }
    print(json.dumps(report))
"""


@pytest.fixture(scope="module")
def folders(demo_checkpoint: CheckpointOf) -> dict[str, Path]:
    return {family: demo_checkpoint(family) for family in FAMILIES}


@pytest.fixture(scope="module")
def report(double: Path, folders: dict[str, Path]) -> dict[str, Any]:
    outcome = run(START + EVERY_FAMILY, double, *folders.values(), timeout=SECONDS)
    assert outcome.code == 0, outcome.err
    found: dict[str, Any] = json.loads(outcome.out.splitlines()[-1])
    return found


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_bytes_give_the_same_embeddings(
    report: dict[str, Any], folders: dict[str, Path], family: str, dtype: str, batch: int
) -> None:
    found = report[f"{folders[family]} {dtype} {batch}"]
    # Who shares a forward with whom is chance, and moves the last bits of a product: twice the bound of batches, since
    # both runs may be batches. That their inputs are equal bit for bit is a test of src/encoder/input.rs.
    assert found["farthest"] <= (0 if batch == 1 else 4e-6 if dtype == "float32" else 2e-2)
    assert "patches" not in found["plain"]
    assert ("patches" in found["launches"]) == (family not in VALUES)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_fewer_bytes_travel(
    report: dict[str, Any], folders: dict[str, Path], family: str, dtype: str
) -> None:
    found = report[f"{folders[family]} {dtype} 1"]
    uploads, plain = found["uploads"], found["plain_uploads"]
    size = 4 if dtype == "float32" else 2
    matrices = [rows * columns * size for rows, columns in found["shapes"]]
    # A byte a sample of one copy of each patch, and 8 bytes for what of the patch is padding.
    levels = [rows * (columns // FRAMES.get(family, 2) + 8) for rows, columns in found["shapes"]]
    assert len(matrices) == 2 and set(matrices) <= set(plain)
    if family in VALUES:
        assert sorted(uploads) == sorted(plain)
        return
    assert not set(matrices) & set(uploads)
    assert sorted([*uploads, *matrices]) == sorted([*plain, *levels])


def test_a_kernel_that_differs_is_not_used(double: Path, folders: dict[str, Path]) -> None:
    program = """
    double.spoil_patches()
    with open_encoder(folders[0]) as encoder:
        tensors, launches, _ = ran(encoder, pictures)
    ((on, reason),) = [(on, reason) for name, on, reason in _native.cuda_kernels() if name == "patches"]
    print("said", on, reason, "patches" in launches)
    with Encoder(folders[0], "demo", "cpu", dtype="float32") as encoder:
        plain = [result.tensor for result in encoder.generate(pictures)]
    print("said", max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(tensors, plain)) < 1e-5)
    """
    outcome = run(START + program, double, folders["qwen35"])
    assert outcome.code == 0, outcome.err
    first, second = (
        line.removeprefix("said ") for line in outcome.out.splitlines() if line.startswith("said")
    )
    assert first.startswith("False cuda:0: differs from its plain form by") and first.endswith(" False")
    assert second == "True"


def test_out_of_memory_stays_with_its_request(double: Path, folders: dict[str, Path]) -> None:
    program = """
    encoder = open_encoder(folders[0])
    wanted, _, _ = ran(encoder, pictures[:1])
    before = _native.live_tensors()
    double.run_out_of_memory(1, at="patches")
    answers = encoder.generate([pictures[0]] * 3, return_errors=True)
    answers.sort(key=lambda answer: type(answer).__name__)  # which one comes first is chance
    print("said", [type(answer).__name__ for answer in answers], str(answers[0]))
    print("said", farthest(wanted * 2, [answer.tensor for answer in answers[1:]]) == 0)
    del answers
    print("said", _native.live_tensors() - before)
    encoder.close()
    """
    outcome = run(START + program, double, folders["glm53"])
    assert outcome.code == 0, outcome.err
    said = [line.removeprefix("said ") for line in outcome.out.splitlines() if line.startswith("said")]
    assert said[0].startswith("['DeviceOutOfMemory', 'ImageResult', 'ImageResult']")
    assert "expand_patches" in said[0] and "out of memory" in said[0]
    assert said[1:] == ["True", "0"]


def test_a_callers_own_matrix_travels_as_it_is(double: Path, folders: dict[str, Path]) -> None:
    """Also beside images that are bytes."""
    program = """
    from concurrent.futures import ThreadPoolExecutor

    folder = folders[0]
    values, grid = _native.Processor(folder).pixel_values(pictures[0])
    values = torch.from_numpy(values)
    encoder = open_encoder(folder, max_batch_images=8)
    wanted, _, _ = ran(encoder, pictures)
    double.log()
    own = encoder.encode_pixels(values, [grid])["embeddings"]
    print("said", farthest([own], wanted[:1]) < 4e-6, "patches" in double.launches())

    def one(number):
        if number % 3 == 0:
            return encoder.encode_pixels(values, [grid])["embeddings"]
        return encoder.generate(pictures[number % 3])[0].tensor

    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(one, range(24)))
    error = max(float((tensor - wanted[number % 3]).abs().max()) for number, tensor in enumerate(found))
    print("said", error < 1e-5)
    encoder.close()
    """
    outcome = run(START + program, double, folders["qwen35"])
    assert outcome.code == 0, outcome.err
    assert [line for line in outcome.out.splitlines() if line.startswith("said")] == [
        "said True False",
        "said True",
    ]
