"""The trial run of `mm-encoder doctor`, in a process of its own: it may crash without taking doctor with it.

Opens the bridge, compares the operators that it calls with those of the running Torch, and encodes a small
picture with random weights on each device. Prints one JSON object.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

PICTURE_WIDTH, PICTURE_HEIGHT = 128, 96


def main() -> None:
    """Prints what was found."""
    print(json.dumps(findings()))


def findings() -> dict[str, Any]:
    """Facts of the bridge and of each device."""
    from mm_libtorch_encoder import _native

    try:
        import torch

        import mm_libtorch_encoder.encoder  # noqa: F401  (opens the bridge)
    except (RuntimeError, ImportError, OSError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    operators = _native.op_schemas()
    return {
        "libtorch": ".".join(map(str, _native.torch_version())),
        "kernel_level": _native.kernel_level(),
        "torch_threads": torch.get_num_threads(),
        "operators": len(operators),
        "other_operators": [
            name for name, overload, schema in operators if not _same(torch, name, overload, schema)
        ],
        "devices": _devices(torch),
        # Behind the devices: opening an encoder on one checks the kernels there.
        "cuda": _cuda(),
    }


def _cuda() -> dict[str, Any]:
    """The CUDA library: what keeps it from being used, and which of its parts are in use."""
    from mm_libtorch_encoder import _native, device

    fact: dict[str, Any] = {"problem": None, "gpu": None, "kernels": []}
    try:
        device.prepare("cuda:0")
        fact["kernels"] = _native.cuda_kernels()
        fact["gpu"] = _native.cuda_device(0)
    except RuntimeError as error:
        fact["problem"] = str(error)
    return fact


def _same(torch: Any, name: str, overload: str, schema: str) -> bool:
    try:
        return str(torch._C._get_schema(name, overload)) == schema
    except RuntimeError:
        return False


def _devices(torch: Any) -> list[dict[str, Any]]:
    names = ["cpu"]
    if torch.cuda.is_available():
        names += [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    with tempfile.TemporaryDirectory(prefix="mm-encoder-doctor-") as scratch:
        return [_device(torch, name, Path(scratch) / name.replace(":", "-")) for name in names]


def _device(torch: Any, device: str, folder: Path) -> dict[str, Any]:
    """Encodes a picture with a demo checkpoint."""
    import numpy as np

    from mm_libtorch_encoder import Encoder, _native

    from . import png

    title = torch.cuda.get_device_name(device) if device.startswith("cuda") else ""
    fact: dict[str, Any] = {"device": device, "title": title, "works": False}
    rows, columns = np.arange(PICTURE_HEIGHT)[:, None, None], np.arange(PICTURE_WIDTH)[None, :, None]
    picture = png.encode(((rows * 2 + columns * np.array([1, 2, 3])) % 256).astype(np.uint8))
    family, *_ = _native.families()[0]
    try:
        _native.make_checkpoint(family, folder)
        with Encoder(folder, "doctor", device, dtype="float32") as encoder:
            start = time.monotonic()
            ((tensor, _),) = encoder.generate(picture)
            fact["milliseconds"] = round((time.monotonic() - start) * 1e3, 3)
        fact["works"] = bool(torch.isfinite(tensor).all())
        if not fact["works"]:
            fact["error"] = "the embeddings are not finite"
    except (RuntimeError, ValueError, OSError) as error:
        fact["error"] = str(error)
    return fact
