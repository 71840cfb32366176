"""Times: bytes to embeddings, and images a second, beside transformers on the same device."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec

from .context import Context, NotRun, picture
from .transformers_tower import TransformersTower

SIDES = (224, 448, 1024)
REPEATS = 40
SECONDS = 4.0  # most for one series
CALLERS = 4


def series(run: Callable[[], object], synchronise: Callable[[], None]) -> list[float]:
    """Milliseconds of each call, the device's work included, in ascending order."""
    for _ in range(3):
        run()
    synchronise()
    times: list[float] = []
    begun = time.perf_counter()
    while len(times) < REPEATS and time.perf_counter() - begun < SECONDS:
        start = time.perf_counter()
        run()
        synchronise()
        times.append((time.perf_counter() - start) * 1e3)
    return sorted(times)


def quantiles(times: list[float]) -> dict[str, float]:
    """p50 and p95 of ascending times."""
    at = lambda part: round(times[min(len(times) - 1, int(part * len(times)))], 3)  # noqa: E731
    return {"p50_ms": at(0.5), "p95_ms": at(0.95)}


def timings(context: Context) -> dict[str, dict[str, float]]:
    """Figures by name and size of image."""
    figures: dict[str, dict[str, float]] = {}
    with context.encoder() as encoder:
        tower: TransformersTower | None
        try:
            tower = TransformersTower(context.checkpoint, context.device, encoder.dtype)
        except NotRun:
            tower = None
        for side in SIDES:
            source = picture(side, side)
            ours = series(partial(encoder.generate, source), context.synchronise)
            figure = quantiles(ours)
            count = max(CALLERS, min(64, int(1500 / figure["p50_ms"])))
            with ThreadPoolExecutor(CALLERS) as pool:
                start = time.perf_counter()
                for running in [pool.submit(encoder.generate, source) for _ in range(count)]:
                    running.result()
                context.synchronise()
                figure["images_per_second"] = round(count / (time.perf_counter() - start), 1)
            figures[f"ours, {side} px"] = figure
            if tower is not None:
                other = quantiles(series(partial(tower.run, source), context.synchronise))
                other["times_ours"] = round(other["p50_ms"] / figure["p50_ms"], 2)
                figures[f"transformers, {side} px"] = other
    return figures


def peers() -> str:
    """Which serving engines could be compared with, and that they were not."""
    present = [name for name in ("vllm", "sglang") if find_spec(name)]
    found = f"{', '.join(present)} can be imported" if present else "neither vLLM nor SGLang can be imported"
    raise NotRun(f"{found}; their towers are not called here")
