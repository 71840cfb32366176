"""Writing embeddings to a safetensors file, an image at a time: those of a run need not fit in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .failure import Failure
from .output import Target

if TYPE_CHECKING:
    import torch

DTYPES = {
    "torch.float32": "F32",
    "torch.bfloat16": "BF16",
    "torch.float16": "F16",
    "torch.int64": "I64",
}
# Readers refuse a longer header.
MAX_HEADER_BYTES = 100_000_000
COPY_BYTES = 1 << 20


class EmbeddingsFile:
    """A context manager. Data waits in a scratch file: the header, which comes first, names every tensor."""

    def __init__(self, path: str) -> None:
        self._target = Target(path)
        self._entries: dict[str, Any] = {}
        self._end = 0
        try:
            self._data = self._target.scratch()
        except OSError as error:
            raise self._target.failure(error) from None

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Writes one tensor, under a name that no other may have."""
        import torch

        if name in self._entries:
            raise Failure(
                f"two tensors would have the name {name} in {self._target.name}: give other image paths"
            )
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
        self._entries[name] = {
            "dtype": DTYPES[str(tensor.dtype)],
            "shape": list(tensor.shape),
            "data_offsets": [self._end, self._end + data.nbytes],
        }
        try:
            self._data.write(data)
        except OSError as error:
            raise self._target.failure(error) from None
        self._end += data.nbytes

    def finish(self, metadata: Mapping[str, str]) -> None:
        """Puts the whole file in its place, with these texts in its header."""
        header = json.dumps({"__metadata__": {"format": "pt", **metadata}, **self._entries}).encode()
        header += b" " * (-len(header) % 8)
        if len(header) > MAX_HEADER_BYTES:
            raise Failure(
                f"{self._target.name} cannot be written: its header would be over the limit of "
                f"{MAX_HEADER_BYTES} bytes; encode fewer images at once"
            )
        self._target.write(self._pieces(header))

    def _pieces(self, header: bytes) -> Iterator[bytes]:
        yield len(header).to_bytes(8, "little")
        yield header
        self._data.seek(0)
        while piece := self._data.read(COPY_BYTES):
            yield piece

    def __enter__(self) -> EmbeddingsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._data.close()
