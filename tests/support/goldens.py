"""Recorded results of upstream on our demonstration checkpoints: tests/goldens/<family>.json.

Exact things are recorded as they are or as digests: grids, pixels, the checkpoint itself. Of embeddings,
whose last bits differ from processor to processor, the norm and evenly spaced float32 samples are recorded.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from images import Spec
from numpy.typing import NDArray
from sounds import Sound

FOLDER = Path(__file__).resolve().parent.parent / "goldens"
SAMPLES = 256
SEED = 7  # of the demonstration checkpoint
DTYPES = ("float32", "bfloat16")
KINDS = {"Spec": Spec, "Sound": Sound}
FAMILY_OF = {"kimi_k25": "kimi"}  # variants of a family's demonstration

MEDIA = (
    Spec(640, 427, 1),
    Spec(83, 57, 2),
    Spec(1, 1, 3),
    Spec(30, 1700, 4),
    Spec(1100, 23, 5),
    Spec(256, 384, 6),
    Spec(321, 203, 7, "RGBA"),
    Spec(150, 410, 8, "L"),
    Spec(212, 212, 9, "P"),
    Spec(1024, 768, 10),
)


def path(family: str) -> Path:
    return FOLDER / f"{family}.json"


def family_of(name: str) -> str:
    """The family of a golden."""
    return FAMILY_OF.get(name, name)


def load(family: str) -> dict[str, Any]:
    return json.loads(path(family).read_text("utf-8"))


def save(family: str, record: dict[str, Any]) -> None:
    path(family).write_text(json.dumps(record, indent=1) + "\n", "utf-8")


def folder_digest(folder: Path) -> str:
    """SHA-256 over names and contents of a checkpoint's files."""
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        digest.update(f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def exact(array: NDArray[Any]) -> dict[str, Any]:
    """Shape and SHA-256 of the little-endian float32 values."""
    values = np.ascontiguousarray(array, "<f4")
    return {"shape": list(values.shape), "sha256": hashlib.sha256(values.tobytes()).hexdigest()}


def spaced(array: NDArray[Any]) -> NDArray[np.float32]:
    """`SAMPLES` evenly spaced values, first and last among them; repeated where there are fewer."""
    flat = np.asarray(array, np.float32).reshape(-1)
    return flat[np.linspace(0, flat.size - 1, SAMPLES).round().astype(np.int64)]


def sampled(array: NDArray[Any]) -> dict[str, Any]:
    """Shape, Euclidean norm and `SAMPLES` values in base64 of little-endian float32."""
    values = np.asarray(array, np.float32)
    return {
        "shape": list(values.shape),
        "norm": float(np.linalg.norm(values.astype(np.float64))),
        "samples": base64.b64encode(spaced(values).astype("<f4").tobytes()).decode(),
    }


def samples(record: dict[str, Any]) -> NDArray[np.float32]:
    """The values of a `sampled` record."""
    return np.frombuffer(base64.b64decode(record["samples"]), "<f4")


def item(spec: Any) -> dict[str, Any]:
    """How a golden records which item it is of."""
    return {"kind": type(spec).__name__, **asdict(spec)}


def spec(record: dict[str, Any]) -> Any:
    """The item that `item` recorded."""
    fields = dict(record)
    return KINDS[fields.pop("kind")](**fields)


def relative(got: NDArray[Any], want: NDArray[Any]) -> float:
    """Euclidean distance in units of the wanted values' norm."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, (got.shape, want.shape)
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def cosine(got: NDArray[Any], want: NDArray[Any]) -> float:
    """Cosine of the angle between the two, taken as vectors."""
    got, want = np.asarray(got, np.float64).reshape(-1), np.asarray(want, np.float64).reshape(-1)
    return float(got @ want / (np.linalg.norm(got) * np.linalg.norm(want)))
