"""Settings of the result cache."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from . import _native

_MIB = 1024**2


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """Bounds and place of an encoder's cache of finished results.

    With a cache all results are CPU tensors. A hit in memory shares the stored memory with every other result for
    the same image, so treat results as read-only: clone before you write. The tensors keep that memory alive on their
    own, after eviction and after close() too.

    memory_bytes: most bytes of entries in host memory, each with 1 KiB of records. It bounds what the cache holds,
        not what callers hold.
    disk_path: a directory for results that outlive the process; None: memory alone. It is made if need be, belongs to
        one open encoder at a time, and must be writable by nobody whom you do not trust with the results.
    disk_bytes: most bytes of entries in that directory; it must have room for two of the largest entries, each with
        a header of two pages.
    max_entry_bytes: largest entry; larger results are returned and not kept.

    Raises ValueError for settings that cannot work, TypeError for values that are no integers.
    """

    memory_bytes: int = 1024 * _MIB
    disk_path: str | os.PathLike[str] | None = None
    disk_bytes: int = 0
    max_entry_bytes: int = 256 * _MIB

    def __post_init__(self) -> None:
        for name in ("memory_bytes", "disk_bytes", "max_entry_bytes"):
            value = getattr(self, name)
            if type(value) is not int:
                raise TypeError(f"{name} must be an integer number of bytes, not {type(value).__name__}")
            if value < 0:
                raise ValueError(f"{name} is {value}: it must not be negative")
        if self.disk_path is not None and not isinstance(self.disk_path, (str, os.PathLike)):
            raise TypeError(f"disk_path must be a path or None, not {type(self.disk_path).__name__}")
        _native.check_cache(*self._fields())

    def _fields(self) -> tuple[int, Path | None, int, int]:
        # An empty path is an error, which Path would turn into the working directory.
        text = None if self.disk_path is None else os.fspath(self.disk_path)
        if text == "":
            raise ValueError("disk_path is empty: give a directory, or None for memory alone")
        path = None if text is None else Path(text).absolute()
        return self.memory_bytes, path, self.disk_bytes, self.max_entry_bytes
