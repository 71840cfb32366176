"""Checks that hold on every device."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from ..cache import CacheConfig
from .context import Context, difference, embeddings, picture, within
from .transformers_tower import TransformersTower

SIZES = ((224, 224), (448, 333), (97, 610))


def parity_with_the_cpu(context: Context) -> str:
    """The embeddings of device="cpu" in float32, whose towers are tested against their references."""
    context.need_cuda()
    sources = [picture(*size) for size in SIZES]
    with context.encoder() as encoder:
        mine, dtype = embeddings(encoder, *sources), encoder.dtype
    with context.encoder(device="cpu", dtype="float32") as encoder:
        wanted = embeddings(encoder, *sources)
    worst = max(difference(a, b) for a, b in zip(mine, wanted, strict=True))
    return within(worst, dtype, f"{len(sources)} images, {str(dtype).removeprefix('torch.')} beside float32")


def parity_with_transformers(context: Context) -> str:
    """The embeddings of transformers on the same device, in the same dtype, from the same pixel values."""
    with context.encoder() as encoder:
        tower = TransformersTower(context.checkpoint, context.device, encoder.dtype)
        worst = 0.0
        for size in SIZES:
            pixels, grids = tower.pixels(picture(*size))
            mine = encoder.encode_pixels(pixels, [tuple(grid) for grid in grids.tolist()])["embeddings"]
            worst = max(worst, difference(mine, tower.forward(pixels, grids)))
        return within(worst, encoder.dtype, f"{len(SIZES)} images beside transformers")


def repeatability(context: Context) -> str:
    """The same bits from two threads at once, again and again."""
    sources = [picture(*size) for size in SIZES]
    with context.encoder() as encoder:
        wanted = [tensor.clone() for tensor in embeddings(encoder, *sources)]
        with ThreadPoolExecutor(2) as pool:
            runs = list(pool.map(lambda _: embeddings(encoder, *sources), range(12)))
        context.synchronise()
        for run in runs:
            for mine, first in zip(run, wanted, strict=True):
                assert torch.equal(mine, first), "another run gave other bits"
    return f"{len(runs)} runs of {len(sources)} images from two threads gave the same bits"


def recovery(context: Context) -> str:
    """A malformed image fails alone."""
    good = picture(*SIZES[0])
    with context.encoder() as encoder:
        (wanted,) = embeddings(encoder, good)
        outcomes = encoder.generate([good, good[: len(good) // 2], b"", good], return_errors=True)
        kinds = [type(outcome).__name__ for outcome in outcomes]
        assert kinds == ["ImageResult", "MediaError", "MediaError", "ImageResult"], kinds
        assert torch.equal(outcomes[0].tensor, wanted) and torch.equal(outcomes[3].tensor, wanted)
    return "two malformed images between two good ones: two MediaErrors, two results"


def ownership(context: Context) -> str:
    """Results outlive the encoder."""
    with context.encoder() as encoder:
        (tensor,) = embeddings(encoder, picture(*SIZES[0]))
        kept = tensor.clone()
    with context.encoder() as encoder:
        embeddings(encoder, *[picture(*size, 1) for size in SIZES])
    assert torch.equal(tensor, kept), "a result changed after close()"
    assert tensor.untyped_storage().resizable(), "the storage is not the allocator's own"
    return "a result kept its values behind close() and a second encoder"


def replicas(context: Context) -> str:
    """Three workers on one copy of the weights give the bits of one."""
    sources = [picture(*size, seed) for seed in range(4) for size in SIZES]
    with context.encoder() as encoder:
        wanted = embeddings(encoder, *sources)
    with context.encoder(replicas_per_gpu=3) as encoder, ThreadPoolExecutor(3) as pool:
        runs = list(pool.map(lambda _: embeddings(encoder, *sources), range(3)))
    context.synchronise()
    # On the CPU replicas share the compute threads, and a product over fewer threads may round otherwise.
    if context.on_cuda:
        same = all(torch.equal(a, b) for run in runs for a, b in zip(run, wanted, strict=True))
        assert same, "replicas gave other bits"
    worst = max(difference(a, b) for run in runs for a, b in zip(run, wanted, strict=True))
    return within(worst, wanted[0].dtype, f"{3 * len(sources)} images through 3 replicas")


def caching(context: Context) -> str:
    """The same bytes again come from memory, and for another encoder from disk, with the same bits."""
    source = picture(*SIZES[0])
    with tempfile.TemporaryDirectory(prefix="mm-qualify-") as folder:
        cache = CacheConfig(1 << 28, Path(folder), 1 << 28, max_entry_bytes=1 << 26)
        with context.encoder(cache=cache) as encoder:
            (first,), (second,) = embeddings(encoder, source), embeddings(encoder, source)
            assert torch.equal(first, second), "memory gave other bits"
            hits = encoder.cache_stats()["memory_hits"]
            assert hits == 1, f"{hits} hits in memory instead of 1"
        with context.encoder(cache=cache) as encoder:
            (third,) = embeddings(encoder, source)
            assert torch.equal(first, third), "the disk gave other bits"
            hits = encoder.cache_stats()["disk_hits"]
            assert hits == 1, f"{hits} hits on disk instead of 1"
    return "a hit in memory and one on disk had the bits of the first result"
