"""A host, a runtime record that fits it, and fabricated wheels."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HOST = {
    "torch": "2.14.1+cu130",
    "torch_revision": "5c4886908584029761b579af026dcfb627c84070",
    "torch_build": "5b503286d11ccc24",
    "torch_cuda": "13.0",
    "cxx11_abi": True,
    "machine": "x86_64",
    "libc": "glibc 2.36",
    "python": "cp311",
}
MANIFEST = {
    **HOST,
    "format": 1,
    "package": "0.3.0",
    "policy": "stable",
    "key": "torch-stable-2.11-cu13-x86_64",
    "cuda": "13.0",
    "libc": "glibc 2.34",
    "python": "cp311-abi3",
}


@pytest.fixture
def host() -> dict[str, Any]:
    return dict(HOST)


@pytest.fixture
def manifest() -> dict[str, Any]:
    return dict(MANIFEST)


@pytest.fixture
def make_wheel(tmp_path: Path) -> Callable[..., Path]:
    """Writes a wheel that holds a runtime record and nothing else of use; returns its path."""

    def make(
        name: str = "mm_libtorch_encoder-0.3.0-cp311-abi3-manylinux_2_34_x86_64.whl",
        record: bytes | None = None,
        folder: str = "wheelhouse",
        **changes: Any,
    ) -> Path:
        path = tmp_path / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        project, version = "mm-libtorch-encoder", changes.get("package", "0.3.0")
        tag = "cp311-abi3-manylinux_2_34_x86_64"
        information = f"mm_libtorch_encoder-{version}.dist-info"
        content = json.dumps({**MANIFEST, **changes}).encode() if record is None else record
        files = {
            "mm_libtorch_encoder/__init__.py": b"",
            "mm_libtorch_encoder/_runtime.json": content,
            f"{information}/METADATA": f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}".encode(),
            f"{information}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
        }
        rows = "".join(f"{file},,\n" for file in [*files, f"{information}/RECORD"])
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for file, data in {**files, f"{information}/RECORD": rows.encode()}.items():
                archive.writestr(file, data)
        return path

    return make
