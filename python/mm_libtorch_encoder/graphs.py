"""Settings of an encoder's CUDA graphs."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from . import _native

_MIB = 1024**2


@dataclass(frozen=True, slots=True)
class GraphConfig:
    """Which forwards of the tower are captured as CUDA graphs, and how much they may hold.

    A forward is captured behind its eager run when images of the same grid, or batches of the same grids in the same
    order, came `min_hits` times, or when warmup() runs its size. From then on it is one launch, with the same bits.
    Each replica has graphs of its own. Where one cannot be made, or a bound is met, forwards stay eager: nothing fails
    for it. On the CPU nothing is captured.

    While a forward is captured, which takes about as long as it takes to launch it, no other thread of the process
    may wait for the whole device (torch.cuda.synchronize, an empty_cache): it would get an error of CUDA's, and that
    forward would stay eager. A process that does so calls warmup() before, with the sizes that it needs, and sets
    min_hits beyond reach.

    min_hits: the forward of the same grids behind which they are captured; 1: the first.
    max_graphs: graphs of a replica, 1 to 256; the one that was not used for the longest time goes first.
    max_tokens: tokens of the largest forward that is captured: a large one gains little, since its kernels take
        longer than their launches.
    max_bytes: device memory of all graphs of a replica: each has its activations to itself.

    Raises ValueError for numbers out of their range, TypeError for values that are no integers.
    """

    min_hits: int = 3
    max_graphs: int = 16
    max_tokens: int = 4096
    max_bytes: int = 1024 * _MIB

    def __post_init__(self) -> None:
        for name in ("min_hits", "max_graphs", "max_tokens", "max_bytes"):
            value = getattr(self, name)
            if type(value) is not int:
                raise TypeError(f"{name} must be an integer, not {type(value).__name__}")
            if value < 1:
                raise ValueError(f"{name} is {value}: it must be at least 1")
        _native.check_graphs(*self._fields())

    def _fields(self) -> tuple[int, int, int, int]:
        fields: tuple[int, int, int, int] = astuple(self)
        return fields
