"""Puts the double of the CUDA library in its place, in a process of its own: it stays in the process that opens it."""

from __future__ import annotations

import ctypes
import threading
from functools import partial
from pathlib import Path


class Stream:
    """Stands for a torch.cuda.Stream."""

    def __init__(self, number: int) -> None:
        self.cuda_stream = number


class Pool:
    """Stands for `device.Pool`."""

    def __init__(self, double: Double, index: int) -> None:
        self._double = double
        self._name = f"pool {sum(line.startswith('enter') for line in double.pools) + 1}"
        self._thread = threading.get_ident()
        double.pools.append(f"enter {self._name} of cuda:{index}")
        double.note(f"enter {self._name}")

    def leave(self) -> int:
        """Bytes that the test gives it."""
        assert self._thread == threading.get_ident(), "a pool is left by another thread"
        self._double.pools.append(f"leave {self._name}")
        self._double.note(f"leave {self._name}")
        return self._double.pool_bytes

    def __del__(self) -> None:
        self._double.pools.append(f"free {self._name}")
        self._double.note(f"free {self._name}")


class Double:
    """The opened double: its log and its faults. Behind it there is no torch.cuda."""

    def __init__(self, path: str, *, meta: bool = False) -> None:
        import torch

        from mm_libtorch_encoder import device

        self._library = ctypes.CDLL(path)
        self._library.double_log.restype = ctypes.c_char_p
        self._library.double_use_meta(int(meta))
        device._library = lambda: Path(path)
        # What a caller's code goes on with, and the tensors that were recorded on such streams.
        self.current = Stream(0)
        self.recorded: list[tuple[int, tuple[int, ...]]] = []
        device._current_stream = lambda name: self.current
        device._record = lambda tensor, stream: self.recorded.append(
            (stream.cuda_stream, tuple(tensor.shape))
        )
        # Pools that graphs entered, by name, and what happened to them.
        self.pools: list[str] = []
        self.pool_bytes = 1 << 20
        device.Pool = partial(Pool, self)
        # A Torch for the CPU serves as well.
        torch.version.cuda = torch.version.cuda or "13.0"

    def log(self) -> list[str]:
        """What happened since the last call."""
        return self._library.double_log().decode().splitlines()

    def note(self, line: str) -> None:
        """Writes a line into the log."""
        self._library.double_note(line.encode())

    def launches(self) -> list[str]:
        """What was launched since the last call."""
        return [line.split()[1] for line in self.log() if line.startswith("launch ")]

    def refuse(self, sentence: str) -> None:
        """From now on no device can be used, for this reason; "": every one can."""
        self._library.double_refuse(sentence.encode())

    def fail_at(self, what: str) -> None:
        """The next "begin" or "end" of a capture, or the next "replay", fails."""
        self._library.double_fail_at(what.encode())

    def run_out_of_memory(self, times: int, *, at: str = "norm") -> None:
        """The next `times` norms (or `at`: "patches") do not get their memory."""
        self._library.double_run_out_of_memory(at.encode(), times)

    def spoil_patches(self) -> None:
        """From now on the kernel `patches` gets one value wrong."""
        self._library.double_spoil_patches()
