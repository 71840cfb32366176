"""Arithmetic of every kernel, run on the CPU, against the operators' plain definitions in Torch."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

Kernels = ctypes.CDLL
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
# Largest error of a rounding, in units of the value's own size; float32 has the error of exp, erf and sums on top.
ROUNDING = {torch.float32: 4e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}
ACTIVATIONS: dict[int, Callable[[torch.Tensor], torch.Tensor]] = {
    1: functional.gelu,
    2: lambda x: functional.gelu(x, approximate="tanh"),
    3: functional.silu,
    4: functional.relu,
    5: lambda x: x * torch.sigmoid(1.702 * x),
    6: lambda x: functional.relu(x).square(),
}
EXTREMES = [0.0, -0.0, 1e-8, -1e-8, 1e-40, 0.5, -0.5, 10.0, -10.0, 88.0, -88.0, 200.0, -200.0, 6e4, -6e4]
NOT_NUMBERS = [math.inf, -math.inf, math.nan]

Pointer = ctypes.c_void_p


def structure(name: str, **fields: type) -> type[ctypes.Structure]:
    return type(name, (ctypes.Structure,), {"_fields_": list(fields.items())})


I64, I32, F32 = ctypes.c_int64, ctypes.c_int32, ctypes.c_float
Norm = structure(
    "Norm", x=Pointer, y=Pointer, sum=Pointer, weight=Pointer, bias=Pointer, out=Pointer, rows=I64, columns=I64,
    eps=F32,
)  # fmt: skip
Rotary = structure(
    "Rotary", qkv=Pointer, cos=Pointer, sin=Pointer, q_norm=Pointer, k_norm=Pointer, rows=I64, heads=I64, dim=I64,
    eps=F32, neighbours=I32,
)  # fmt: skip
Gated = structure("Gated", x=Pointer, out=Pointer, rows=I64, columns=I64, limit=F32, activation=I32)
Activation = structure("Activation", x=Pointer, out=Pointer, count=I64, activation=I32)
Positions = structure(
    "Positions", x=Pointer, table=Pointer, index=Pointer, weight=Pointer, out=Pointer, rows=I64, columns=I64
)  # fmt: skip


def at(tensor: torch.Tensor | None) -> int | None:
    assert tensor is None or tensor.is_contiguous()
    return None if tensor is None else tensor.data_ptr()


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * scale).to(dtype)


def same(mine: torch.Tensor, wanted: torch.Tensor, steps: float = 1.0) -> None:
    """Equal within `steps` roundings of the element type; NaN and infinities in the same places."""
    mine, exact = mine.double(), wanted.double()
    largest = torch.finfo(wanted.dtype).max if wanted.dtype == torch.float16 else math.inf
    exact = torch.where(exact.abs() > largest, exact.sign() * math.inf, exact)
    assert torch.equal(mine.isnan(), exact.isnan())
    assert torch.equal(mine.isinf(), exact.isinf())
    whole = exact.isfinite()
    bound = steps * ROUNDING[wanted.dtype] * exact[whole].abs() + 6e-8
    worst = (mine[whole] - exact[whole]).abs() - bound
    assert worst.numel() == 0 or float(worst.max()) <= 0, float(worst.max())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_half_number_is_widened_and_rounded_back(kernels: Kernels, dtype: torch.dtype) -> None:
    halves = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(dtype)
    wide = torch.empty(1 << 16)
    kernels.host_widen(Pointer(at(halves)), Pointer(at(wide)), I64(1 << 16), CODES[dtype])
    assert torch.equal(wide.isnan(), halves.float().isnan())
    numbers = ~wide.isnan()
    assert torch.equal(wide[numbers].view(torch.int32), halves.float()[numbers].view(torch.int32))
    back = torch.empty_like(halves)
    kernels.host_round(Pointer(at(wide)), Pointer(at(back)), I64(1 << 16), CODES[dtype])
    assert torch.equal(back[numbers].view(torch.uint16), halves[numbers].view(torch.uint16))
    assert bool(back[~numbers].isnan().all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_is_torchs_for_floats_of_every_size(kernels: Kernels, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    bits = torch.randint(-(2**31), 2**31 - 1, (400_000,), generator=generator).to(torch.int32)
    # Halfway cases: a half number and half of its last digit.
    halves = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(dtype).float()
    halfway = halves.view(torch.int32) + (0x8000 if dtype == torch.bfloat16 else 0x1000)
    floats = torch.cat([bits, halfway, halfway + 1, halfway - 1]).view(torch.float32)
    floats = torch.cat(
        [floats, 2.0 ** torch.arange(-30, -12).float() * 1.5, torch.tensor([65519.996, 65520.0])]
    )
    mine = torch.empty(floats.numel(), dtype=dtype)
    kernels.host_round(Pointer(at(floats)), Pointer(at(mine)), I64(floats.numel()), CODES[dtype])
    wanted = floats.to(dtype)
    numbers = ~wanted.isnan()
    assert torch.equal(mine.isnan(), wanted.isnan())
    assert torch.equal(mine[numbers].view(torch.uint16), wanted[numbers].view(torch.uint16))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activations(kernels: Kernels, dtype: torch.dtype, kind: int) -> None:
    x = torch.cat([torch.tensor(EXTREMES + NOT_NUMBERS), noise(1237, scale=4.0)]).to(dtype)
    out = torch.full_like(x, 77.0)
    kernels.host_activation(ctypes.byref(Activation(at(x), at(out), x.numel(), kind)), CODES[dtype])
    if kind == 5:  # Torch composes it of three operators, each of which rounds.
        same(out, ACTIVATIONS[kind](x), 2.0)
        return
    # Torch's own values, from float64, rounded once. Its GELU and SiLU of -inf are NaN: -inf * 0.
    same(out, ACTIVATIONS[kind](x.double()).to(dtype), 1.5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [2, 3])
@pytest.mark.parametrize("limit", [math.inf, 7.0])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (17, 333)])
def test_gated(kernels: Kernels, dtype: torch.dtype, kind: int, limit: float, shape: tuple[int, int]) -> None:
    rows, columns = shape
    x = noise(rows, 2 * columns, scale=5.0)
    if columns > 300:
        x[0, :15], x[1, columns : columns + 15] = torch.tensor(EXTREMES), torch.tensor(EXTREMES)
    x = x.to(dtype)
    out = torch.full((rows, columns), 77.0, dtype=dtype)
    kernels.host_gated(ctypes.byref(Gated(at(x), at(out), rows, columns, limit, kind)), CODES[dtype])
    gate, up = x.double().chunk(2, dim=1)
    wanted = ACTIVATIONS[kind](gate.clamp(max=limit)) * up.clamp(-limit, limit)
    same(out, wanted.to(dtype), 1.5)


def test_gates_of_nan_stay_nan(kernels: Kernels) -> None:
    x = torch.tensor([[math.nan, 1.0, 1.0, math.nan]])
    out = torch.empty(1, 2)
    kernels.host_gated(ctypes.byref(Gated(at(x), at(out), 1, 2, 7.0, 3)), 0)
    assert bool(out.isnan().all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["rms", "rms without weight", "layer"])
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (5, 31), (3, 32), (2, 1152), (4, 4999)])
def test_norms_alone_and_behind_a_sum(
    kernels: Kernels, dtype: torch.dtype, kind: str, added: bool, shape: tuple[int, int]
) -> None:
    rows, columns = shape
    x, y = noise(rows, columns, seed=1, dtype=dtype), noise(rows, columns, seed=2, dtype=dtype)
    weight = None if kind == "rms without weight" else 1 + noise(columns, seed=3, dtype=dtype, scale=0.2)
    bias = noise(columns, seed=4, dtype=dtype) if kind == "layer" else None
    total, out = torch.empty_like(x), torch.empty_like(x)
    eps = 1e-5
    second, place = (y, total) if added else (None, None)
    job = Norm(at(x), at(second), at(place), at(weight), at(bias), at(out), rows, columns, eps)
    kernels.host_norm(ctypes.byref(job), CODES[dtype])
    source = x
    if added:
        assert torch.equal(total, x + y)
        source = x + y
    wide = source.double()
    w = None if weight is None else weight.double()
    if kind == "layer":
        assert w is not None and bias is not None
        wanted = functional.layer_norm(wide, (columns,), w, bias.double(), eps)
    else:
        wanted = functional.rms_norm(wide, (columns,), w, eps)
    error = (out.double() - wanted).abs()
    # The sums of a long row and the difference from the mean lose a few digits of float32.
    assert float((error - (ROUNDING[dtype] * wanted.abs() + 3e-6)).max()) <= 0


@pytest.mark.parametrize("value", [0.0, 3.0, 1e-20, 3e4])
def test_norms_of_constant_rows(kernels: Kernels, value: float) -> None:
    x = torch.full((2, 77), value)
    weight, bias, out = torch.ones(77), torch.full((77,), 0.25), torch.empty(2, 77)
    kernels.host_norm(ctypes.byref(Norm(at(x), None, None, at(weight), at(bias), at(out), 2, 77, 1e-6)), 0)
    assert float((out - functional.layer_norm(x, (77,), weight, bias, 1e-6)).abs().max()) < 0.02
    kernels.host_norm(ctypes.byref(Norm(at(x), None, None, at(weight), None, at(out), 2, 77, 1e-6)), 0)
    assert torch.allclose(out, functional.rms_norm(x, (77,), weight, 1e-6), rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("neighbours", [0, 1])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 2), (3, 2, 4), (7, 3, 72), (5, 2, 66), (2, 16, 128)])
def test_rotary(
    kernels: Kernels, dtype: torch.dtype, neighbours: int, normed: bool, shape: tuple[int, int, int]
) -> None:
    rows, heads, dim = shape
    half = dim // 2
    qkv = noise(rows, 3, heads, dim, seed=5, dtype=dtype)
    angle = noise(rows, half, seed=6, scale=3.0)
    cos, sin = angle.cos(), angle.sin()
    weights = [1 + noise(dim, seed=seed, dtype=dtype, scale=0.2) if normed else None for seed in (7, 8)]
    mine = qkv.clone()
    job = Rotary(
        at(mine), at(cos), at(sin), at(weights[0]), at(weights[1]), rows, heads, dim, 1e-6, neighbours
    )
    kernels.host_rotary(ctypes.byref(job), CODES[dtype])
    assert torch.equal(mine[:, 2], qkv[:, 2])
    for part, weight in enumerate(weights):
        x = qkv[:, part].float()
        if weight is not None:
            x = functional.rms_norm(x.double(), (dim,), weight.double(), 1e-6).to(dtype).float()
        x = x.double()
        a, b = (x[..., 0::2], x[..., 1::2]) if neighbours else (x[..., :half], x[..., half:])
        c, s = cos[:, None].double(), sin[:, None].double()
        first, second = a * c - b * s, b * c + a * s
        got = mine[:, part].double()
        halves = (got[..., 0::2], got[..., 1::2]) if neighbours else (got[..., :half], got[..., half:])
        size = a.abs() + b.abs()
        steps = 2.0 if normed else 1.0
        for value, wanted in zip(halves, (first, second), strict=True):
            assert float(((value - wanted).abs() - steps * ROUNDING[dtype] * size).max()) <= 1e-7


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (9, 33), (31, 257)])
def test_positions(kernels: Kernels, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    rows, columns = shape
    x, table = noise(rows, columns, seed=1, dtype=dtype), noise(50, columns, seed=2, dtype=dtype)
    generator = torch.Generator().manual_seed(3)
    index = torch.randint(0, 50, (4, rows), generator=generator)
    weight = torch.rand((4, rows), generator=generator)
    out = torch.empty_like(x)
    job = Positions(at(x), at(table), at(index), at(weight), at(out), rows, columns)
    kernels.host_positions(ctypes.byref(job), CODES[dtype])
    # The plain definition, float32 step by step, rounded where it rounds: bit for bit.
    total = table[index[0]].float() * weight[0, :, None]
    for tap in range(1, 4):
        total = total + table[index[tap]].float() * weight[tap, :, None]
    assert torch.equal(out, x + total.to(dtype))


KINDS = {"element": 0, "row": 1, "warp": 2}


def launch(kernels: Kernels, kind: str, count: int, columns: int = 0) -> tuple[int, int]:
    blocks, threads = ctypes.c_uint32(), ctypes.c_uint32()
    kernels.host_launch(KINDS[kind], I64(count), I64(columns), ctypes.byref(blocks), ctypes.byref(threads))
    return blocks.value, threads.value


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 255, 256, 257, 8191, 100_003])
@pytest.mark.parametrize("columns", [1, 31, 72, 1152, 5000])
def test_a_launch_takes_every_unit_once(kernels: Kernels, kind: str, count: int, columns: int) -> None:
    blocks, threads = launch(kernels, kind, count, columns)
    assert 1 <= blocks <= 2**31 - 1 and 32 <= threads <= 1024 and threads % 32 == 0
    takers = blocks * {"element": threads, "row": 1, "warp": threads // 32}[kind]
    times = (ctypes.c_uint8 * count)()
    for taker in range(takers):
        kernels.host_taken(I64(taker), I64(takers), I64(count), times)
    assert bytes(times) == b"\1" * count
    # No block is launched for nothing.
    assert takers - count < threads


@pytest.mark.parametrize("columns", [1, 31, 32, 33, 255, 256, 257, 5000])
def test_a_team_takes_every_column_once(kernels: Kernels, columns: int) -> None:
    _, threads = launch(kernels, "row", 1, columns)
    times = (ctypes.c_uint8 * columns)()
    for thread in range(threads):
        kernels.host_taken(I64(thread), I64(threads), I64(columns), times)
    assert bytes(times) == b"\1" * columns


@pytest.mark.parametrize("kind", KINDS)
def test_no_size_passes_what_a_grid_may_have(kernels: Kernels, kind: str) -> None:
    for count in (2**31 - 1, 2**31, 2**40):
        blocks, threads = launch(kernels, kind, count, 1 << 16)
        assert 1 <= blocks <= 2**31 - 1 and threads <= 1024
