"""Opening a checkpoint's tower and encoding one image with it, with what the command line shows of both."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _native

if TYPE_CHECKING:
    import torch

    from ..encoder import Encoder

DTYPES = ("float32", "bfloat16", "float16")
BACKENDS = ("torchvision", "pillow", "pillow-12.2", "pillow-12.1")
DEEPSTACK = ("separate", "concatenated")
STAGES = ("decode", "resize", "queue", "forward")
CUDA_LIBRARY = Path(__file__).parents[1] / "libmm_cuda.so"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that encode and show share."""
    families = [name for name, *_ in _native.families()]
    parser.add_argument(
        "--model", help="name of the model, part of every hash (default: name of the checkpoint)"
    )
    parser.add_argument("--device", help='"cpu" or "cuda:N" (default: cuda:0 where it can be used, else cpu)')
    parser.add_argument(
        "--dtype", choices=DTYPES, help="element type of the tower (default: the checkpoint's own)"
    )
    parser.add_argument("--family", choices=families, help="model family (default: as config.json shows)")
    parser.add_argument(
        "--backend",
        choices=BACKENDS,
        help="whose resampling is reproduced bit for bit (default: what the family's reference uses)",
    )
    parser.add_argument(
        "--deepstack",
        choices=DEEPSTACK,
        help="levels of a tower with deepstack: a tensor of their own (default) or columns of the embeddings",
    )


@dataclass(frozen=True)
class Outline:
    """What becomes of an image, known from its header; sizes are (width, height) in pixels."""

    size: tuple[int, int]
    resized: tuple[int, int]
    canvas: tuple[int, int, int, int, int, int]  # as preprocess.Canvas
    grid: tuple[int, int, int]  # frames, rows, columns
    tokens: int


@dataclass(frozen=True)
class Encoded:
    """One item's result."""

    outline: Outline | None  # none of sound
    mm_hash: str
    milliseconds: dict[str, float]
    outputs: dict[str, torch.Tensor]


@dataclass(frozen=True)
class Tower:
    """An open encoder and the preprocessing of the same checkpoint."""

    encoder: Encoder
    processor: _native.Processor
    device_reason: str
    seconds: float

    @property
    def dtype(self) -> str:
        """The element type's name, such as "bfloat16"."""
        return str(self.encoder.dtype).removeprefix("torch.")

    @property
    def noun(self) -> str:
        """One item that the family reads: "image" or "sound"."""
        return "image" if self.encoder.modality == "image" else "sound"

    def outline(self, data: bytes) -> Outline:
        """Sizes and grid of encoded bytes."""
        size, canvas, grid, tokens = self.processor.outline(data)
        return Outline(size, (canvas[3], canvas[2]), canvas, grid, tokens)

    def encode(self, data: bytes) -> Encoded:
        """Encodes one item. Raises what `Encoder.generate` raises."""
        from ..device import Consumer

        outline = self.outline(data) if self.processor.modality == "image" else None
        encoding = self.encoder._native.generate([data], None)[0]
        if isinstance(encoding, BaseException):
            raise encoding
        outputs = self.encoder._outputs(encoding, Consumer(self.encoder.device))
        return Encoded(outline, encoding.mm_hash, encoding.milliseconds, outputs)

    def heading(self, checkpoint: str) -> str:
        """A line on what was opened."""
        reason = f" ({self.device_reason})" if self.device_reason else ""
        return (
            f"{self.encoder.family} tower of {checkpoint}, {self.dtype}, on {self.encoder.device}{reason}; "
            f"loaded in {self.seconds:.2f} s"
        )


def open_tower(options: argparse.Namespace, progress: Callable[[int, int], Any]) -> Tower:
    """The tower that the options name. Imports Torch."""
    from ..encoder import Encoder

    checkpoint = Path(options.checkpoint)
    model = options.model or default_model(checkpoint)
    device, reason = (options.device, "") if options.device else default_device()
    processor = _native.Processor(checkpoint, model, options.family, backend=options.backend)
    start = time.monotonic()
    encoder = Encoder(
        checkpoint,
        model,
        device,
        options.family,
        dtype=options.dtype,
        backend=options.backend,
        deepstack=options.deepstack,
        progress=progress,
    )
    return Tower(encoder, processor, reason, time.monotonic() - start)


def default_model(checkpoint: Path) -> str:
    """The checkpoint folder's name; for a snapshot in the Hugging Face cache the model id in its path."""
    path = Path(os.path.abspath(checkpoint))
    for part in reversed(path.parts):
        if part.startswith("models--") and part.count("--") == 2:
            return part.removeprefix("models--").replace("--", "/")
    return os.fsencode(path.name).decode("utf-8", "replace") or "model"


def default_device() -> tuple[str, str]:
    """("cuda:0" or "cpu", why)."""
    import torch

    if not CUDA_LIBRARY.is_file():
        return "cpu", "this wheel has no CUDA library"
    if not torch.cuda.is_available():
        return "cpu", "Torch sees no CUDA device"
    return "cuda:0", "the first CUDA device"
