"""Upstream implementations, one module for those that share code.

A module offers:

``run(family, checkpoint, data, dtype, **options)``
    Runs upstream's own preprocessing and tower on the CPU on one encoded item. Returns tensors by name:
    ``pixel_values`` float32 ``[patches, columns]``, ``grid_thws`` int64 ``[items, 3]``, ``embeddings``
    ``[tokens, columns]`` in ``dtype`` (a name such as "bfloat16"), and what else the tower gives.
``versions()``
    Package names and versions on which the result depends.
``BACKENDS``
    Names for ``run(..., backend=)`` that are our names of the same arithmetic, the default first; empty where
    upstream has but one.
``MEDIA`` (optional)
    The items that goldens record, instead of `goldens.MEDIA`.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

# Our names of families and of variants of their demonstration, and the module of this folder that runs their upstream.
MODULES = {
    "deepseek41": "deepseek",
    "glm53": "qwen_glm",
    "kimi": "kimi",
    "kimi_k25": "kimi",
    "inkling": "inkling",
    "muse_audio": "muse_audio",
    "muse_glimmer": "muse",
    "muse_vision": "muse",
    "nemotron35": "nemotron",
    "qwen2_vl": "qwen_glm",
    "qwen2_5_vl": "qwen_glm",
    "qwen3_vl": "qwen_glm",
    "qwen35": "qwen_glm",
}


def module(family: str) -> ModuleType:
    """The reference module of `family`; imports the upstream package only now."""
    return import_module(f"{__name__}.{MODULES[family]}")
