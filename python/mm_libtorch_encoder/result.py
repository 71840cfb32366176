"""Owning tensor results with immutable metadata."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class ImageMetadata:
    """What a tensor of embeddings is; plain values that pickle and compare.

    model: the name the encoder was opened with.
    mm_hash: identity of source bytes, model and decode choices, 64 hexadecimal digits.
    length: rows of the tensor, the tokens of the item.
    shape, dtype, device, strides: the tensor's own; strides count elements.
    embedding_offsets: first row of each grid's embeddings, and one past the last.
    grid_thws: (frames, rows, columns) of each grid, in patches before merging; none of a sound.
    """

    model: str
    mm_hash: str
    length: int
    shape: tuple[int, ...]
    dtype: str
    device: str
    strides: tuple[int, ...]
    embedding_offsets: tuple[int, ...]
    grid_thws: tuple[tuple[int, int, int], ...]


class ImageResult(NamedTuple):
    """An owning Torch tensor and its metadata.

    The tensor keeps its memory for itself: it outlives this tuple and the encoder. Treat it as read-only
    where a cache is in use.
    """

    tensor: torch.Tensor
    metadata: ImageMetadata
