"""Captured graphs beside eager runs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch

from .. import Encoder, GraphConfig
from .context import Context, NotRun, embeddings, picture
from .timings import SIDES, quantiles, series

SMALL, LARGE = (112, 112), (448, 336)
SEEDS = 4


def graphs(context: Context) -> str:
    """Replays have the bits of eager runs, whatever runs between them, and the memory of graphs goes back."""
    context.need_cuda()
    images = [(size, seed) for seed in range(SEEDS) for size in (SMALL, LARGE, SMALL)]
    sources = [picture(*size, seed) for size, seed in images]
    with context.encoder() as encoder:
        wanted = [tensor.clone() for tensor in embeddings(encoder, *sources)]
    with context.encoder(cuda_graphs=GraphConfig(min_hits=2)) as encoder:
        first = embeddings(encoder, *sources)
        captured(encoder, 2)
        replayed = encoder.stats().graph_replays
        assert replayed == len(sources) - 4, f"{replayed} replays"
        kept = [tensor.clone() for tensor in first]
        # Two callers at once, and results that are dropped while others are computed.
        with ThreadPoolExecutor(2) as pool:
            runs = list(pool.map(lambda _: embeddings(encoder, *sources), range(6)))
        context.synchronise()
        for run in [first, kept, *runs]:
            for place, (mine, right) in enumerate(zip(run, wanted, strict=True)):
                assert torch.equal(mine, right), f"{images[place][0]}: a graph gave other bits"
        held, reserved = encoder.stats().graph_bytes, _reserved(context)
    assert encoder.stats().graph_bytes == 0, "close() left graphs"
    if reserved is not None:
        given_back = reserved - (_reserved(context) or 0)
        assert given_back > 0, f"{held} bytes of graphs, and close() gave no memory back"
    with context.encoder(cuda_graphs=GraphConfig(min_hits=1 << 20), replicas_per_gpu=2) as encoder:
        encoder.warmup([SMALL, LARGE])
        captured(encoder, 4)
        with ThreadPoolExecutor(4) as pool:
            runs = list(pool.map(lambda _: embeddings(encoder, *sources), range(4)))
        context.synchronise()
        same = all(torch.equal(a, b) for run in runs for a, b in zip(run, wanted, strict=True))
        assert same, "graphs of two replicas gave other bits"
    with context.encoder(cuda_graphs=GraphConfig(min_hits=1, max_graphs=1)) as encoder:
        # One after the other, so that each change of size takes the other one's place.
        one_by_one = [embeddings(encoder, source)[0] for source in sources]
        drops = encoder.stats().graph_drops
    context.synchronise()
    same = all(torch.equal(a, b) for a, b in zip(one_by_one, wanted, strict=True))
    assert same, "a graph that took another's place gave other bits"
    assert drops >= 2 * SEEDS, f"{drops} graphs dropped"
    return (
        f"{len(images)} images of two sizes in turn, {replayed} of them replays; {held / 2**20:.1f} MiB held"
    )


def captured(encoder: Encoder, graphs: int) -> None:
    """AssertionError unless the encoder has captured so many, and why not."""
    stats = encoder.stats()
    made = f"{stats.graph_captures} graphs instead of {graphs}"
    assert stats.graph_captures == graphs and not stats.graph_failures, f"{made}: {stats.graph_failure}"


def graph_timings(context: Context) -> dict[str, dict[str, float]]:
    """Bytes to embeddings with graphs and without, by size of image."""
    context.need_cuda()
    figures: dict[str, dict[str, float]] = {}
    with context.encoder() as eager, context.encoder(cuda_graphs=GraphConfig()) as encoder:
        for side in SIDES:
            source, before = picture(side, side), encoder.stats()
            encoder.warmup([(side, side)])
            now = encoder.stats()
            if now.graph_captures == before.graph_captures:
                continue
            plain = quantiles(series(partial(eager.generate, source), context.synchronise))
            figure = quantiles(series(partial(encoder.generate, source), context.synchronise))
            figure["times_eager"] = round(plain["p50_ms"] / figure["p50_ms"], 2)
            figure["graph_mib"] = round((now.graph_bytes - before.graph_bytes) / 2**20, 1)
            figures[f"eager, {side} px"], figures[f"graph, {side} px"] = plain, figure
    if not figures:
        raise NotRun("no forward of these sizes could be captured")
    return figures


def _reserved(context: Context) -> int | None:
    if not torch.cuda.is_available():
        return None
    # Without what its allocator holds for nobody.
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved(context.device)
