"""Native multimodal encoder: media bytes in, owning Torch tensors with a tower's embeddings out.

Importing this package loads neither Torch nor NumPy: every name is resolved when it is first touched. A
module that needs Torch checks the build against the host first, and raises `RuntimeMismatch` where it does
not fit; `mm_libtorch_encoder.preprocess` works on a host without Torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import preprocess as preprocess
    from ._native import CheckpointError as CheckpointError
    from ._native import DecodePolicy as DecodePolicy
    from ._native import DeviceOutOfMemory as DeviceOutOfMemory
    from ._native import EncoderClosed as EncoderClosed
    from ._native import MediaError as MediaError
    from ._native import QueueFull as QueueFull
    from ._native import RuntimeMismatch as RuntimeMismatch
    from ._native import __version__ as __version__
    from .cache import CacheConfig as CacheConfig
    from .encoder import Encoder as Encoder
    from .graphs import GraphConfig as GraphConfig
    from .result import ImageMetadata as ImageMetadata
    from .result import ImageResult as ImageResult
    from .stats import EncoderStats as EncoderStats
    from .stats import Histogram as Histogram

# The module that defines each public name; the name of a module stands for the module itself.
_HOME = {
    "CacheConfig": "cache",
    "CheckpointError": "_native",
    "DecodePolicy": "_native",
    "DeviceOutOfMemory": "_native",
    "Encoder": "encoder",
    "EncoderClosed": "_native",
    "EncoderStats": "stats",
    "GraphConfig": "graphs",
    "Histogram": "stats",
    "ImageMetadata": "result",
    "ImageResult": "result",
    "MediaError": "_native",
    "QueueFull": "_native",
    "RuntimeMismatch": "_native",
    "__version__": "_native",
    "preprocess": "preprocess",
}

__all__ = [
    "CacheConfig",
    "CheckpointError",
    "DecodePolicy",
    "DeviceOutOfMemory",
    "Encoder",
    "EncoderClosed",
    "EncoderStats",
    "GraphConfig",
    "Histogram",
    "ImageMetadata",
    "ImageResult",
    "MediaError",
    "QueueFull",
    "RuntimeMismatch",
    "__version__",
    "preprocess",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f".{home}", __name__)
    value = module if name == home else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
