"""Encoders under load: a tower that is surely busy, and waiting for what the statistics show."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from mm_libtorch_encoder import Encoder, EncoderStats

PATIENCE = 120  # seconds until something counts as hanging
LONG = (1, 100, 100)  # patches: a good part of a second of the small GLM's tower on one core


def until(encoder: Encoder, shown: Callable[[EncoderStats], bool]) -> EncoderStats:
    """The statistics, once they are as wanted."""
    end = time.monotonic() + PATIENCE
    while not shown(stats := encoder.stats()):
        assert time.monotonic() < end, stats
        time.sleep(0.001)
    return stats


def joined(threads: list[threading.Thread]) -> None:
    """Waits for the threads; one that hangs fails the test."""
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "hangs"


@contextmanager
def busy(encoder: Encoder, replicas: int = 1) -> Iterator[None]:
    """Within, `replicas` replicas of a small GLM are at a long item each."""
    pixels = torch.zeros(LONG[1] * LONG[2], 1176)
    threads = [
        threading.Thread(target=lambda: encoder.encode_pixels(pixels, [LONG])) for _ in range(replicas)
    ]
    for thread in threads:
        thread.start()
    until(encoder, lambda stats: stats.running == replicas)
    try:
        yield
    finally:
        joined(threads)
