"""What an encoder counts: lengths of its queue, outcomes, and the time in each stage."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Histogram:
    """Times of one stage, in seconds.

    bounds: upper bounds of all buckets but the last, inclusive, each twice the one before it.
    buckets: images in each bucket; one more than bounds, since the last has no bound.
    total: sum of all times.
    """

    bounds: tuple[float, ...]
    buckets: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        """Images that were timed."""
        return sum(self.buckets)

    @property
    def mean(self) -> float:
        """Seconds an image took on average; 0 where there was none."""
        return self.total / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """The bound that `share` (0 to 1) of the images stayed within; infinity beyond the last bound, 0 of none."""
        if not 0 <= share <= 1:
            raise ValueError(f"share is {share}: it must be from 0 to 1")
        wanted = share * self.count
        seen = 0
        for bound, images in zip(self.bounds, self.buckets, strict=False):
            seen += images
            if seen >= wanted:
                return bound if seen else 0.0
        return float("inf")


@dataclass(frozen=True, slots=True)
class EncoderStats:
    """An encoder at one moment. Counts run from its opening; a blank image of warmup() counts in forwards alone.

    waiting_for_room: images whose callers wait because the queue is full.
    queued: images in the queue: waiting for preprocessing, in it, or waiting for the tower.
    preparing: of those, images in preprocessing.
    running: images in the tower.
    queued_tokens, queued_bytes: what the queued images count for.
    completed: images with a result.
    failed: images with an error of their own.
    refused: images that met QueueFull.
    abandoned: images skipped before the tower because nobody waited for them any more.
    forwards: runs of the tower.
    graph_captures: of those, runs that were captured as CUDA graphs.
    graph_replays: runs that were replays of a graph; all others were eager.
    graph_failures: captures and replays that failed; their runs were eager.
    graph_drops: graphs that were freed, to stay within bounds or because memory ran out.
    graph_bytes: device memory that graphs hold now.
    graph_failure: why the last failure was; "": there was none.
    stages: by name, the times of completed images: "wait" (for room and for a preprocessing thread), "decode",
        "resize" (with normalisation and patch layout), "queue" (for the tower), "forward" (of the whole batch) and
        "transfer" (from a batch's outputs to tensors of the image's own).
    """

    waiting_for_room: int
    queued: int
    preparing: int
    running: int
    queued_tokens: int
    queued_bytes: int
    completed: int
    failed: int
    refused: int
    abandoned: int
    forwards: int
    graph_captures: int
    graph_replays: int
    graph_failures: int
    graph_drops: int
    graph_bytes: int
    graph_failure: str
    stages: dict[str, Histogram]
