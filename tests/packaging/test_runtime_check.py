"""The check at the door: record missing, damaged, of another host or release; and a source checkout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mm_libtorch_encoder import RuntimeMismatch, __version__, runtime


@pytest.fixture
def package_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: dict[str, Any]) -> Path:
    """runtime.py as if it lay in site-packages/mm_libtorch_encoder, on a host that fits MANIFEST."""
    folder = tmp_path / "site-packages" / "mm_libtorch_encoder"
    folder.mkdir(parents=True)
    monkeypatch.setattr(runtime, "__file__", str(folder / "runtime.py"))
    monkeypatch.setattr(runtime, "host_facts", lambda: host)
    monkeypatch.setattr(runtime, "_fits", False)
    return folder


def test_a_fitting_record_passes_and_is_checked_once(
    package_at: Path, manifest: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest["package"] = __version__
    (package_at / "_runtime.json").write_text(json.dumps(manifest))
    runtime.check()
    monkeypatch.setattr(runtime, "host_facts", lambda: pytest.fail("asked again"))
    runtime.check()


def test_a_mismatch_is_raised_every_time(
    package_at: Path, manifest: dict[str, Any], host: dict[str, Any]
) -> None:
    manifest["package"] = __version__
    (package_at / "_runtime.json").write_text(json.dumps(manifest))
    host.update(torch="2.10.0+cu126", torch_cuda="12.6")
    for _ in range(2):
        with pytest.raises(RuntimeMismatch) as raised:
            runtime.check()
        assert "torch: built for 2.11 or newer (built with 2.14.1+cu130), host has 2.10.0+cu126" in str(
            raised.value
        )
        assert "cuda: built for 13.x, host has 12.6" in str(raised.value)
    assert isinstance(raised.value, RuntimeError)


def test_a_missing_record_is_refused(package_at: Path) -> None:
    with pytest.raises(RuntimeMismatch, match=r"has no runtime record \(_runtime.json\).*build_wheel.py"):
        runtime.check()


@pytest.mark.parametrize("text", [b"", b"{}", b"[" * 60_000, b"\x00" * 70_000])
def test_a_damaged_record_is_refused(package_at: Path, text: bytes) -> None:
    (package_at / "_runtime.json").write_bytes(text)
    with pytest.raises(
        RuntimeMismatch, match=r"The runtime record _runtime.json .* Install the wheel again."
    ):
        runtime.check()


def test_a_record_that_cannot_be_read_is_refused(package_at: Path) -> None:
    (package_at / "_runtime.json").mkdir()
    with pytest.raises(RuntimeMismatch, match="cannot be read"):
        runtime.check()


def test_a_record_of_another_release_is_refused(package_at: Path, manifest: dict[str, Any]) -> None:
    manifest["package"] = "0.0.1"
    (package_at / "_runtime.json").write_text(json.dumps(manifest))
    with pytest.raises(
        RuntimeMismatch, match=f"the runtime record is of 0.0.1, the native library of {__version__}"
    ):
        runtime.check()


def test_a_source_checkout_needs_only_a_supported_torch(
    package_at: Path, host: dict[str, Any], root: Path, tmp_path: Path
) -> None:
    (tmp_path / "Cargo.toml").write_bytes((root / "Cargo.toml").read_bytes())
    assert runtime.manifest() is None
    runtime.check()


def test_a_source_checkout_refuses_an_old_torch(
    package_at: Path, host: dict[str, Any], root: Path, tmp_path: Path
) -> None:
    (tmp_path / "Cargo.toml").write_bytes((root / "Cargo.toml").read_bytes())
    host["torch"] = "2.10.0"
    with pytest.raises(RuntimeMismatch, match=r"host has 2\.10\.0"):
        runtime.check()


def test_another_project_s_tree_is_no_source_checkout(package_at: Path, tmp_path: Path) -> None:
    (tmp_path / "Cargo.toml").write_text('[package]\nname = "another"\n')
    with pytest.raises(RuntimeMismatch, match="has no runtime record"):
        runtime.manifest()


def test_a_torch_that_cannot_be_imported(
    package_at: Path, manifest: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> dict[str, Any]:
        raise OSError("libtorch_cuda.so: /secret/path: cannot open shared object file")

    (package_at / "_runtime.json").write_text(json.dumps(manifest))
    monkeypatch.setattr(runtime, "host_facts", broken)
    with pytest.raises(RuntimeMismatch, match="Torch is installed but cannot be imported") as raised:
        runtime.check()
    assert "secret" not in str(raised.value)


def test_the_running_host_is_described_truly() -> None:
    import platform

    import torch

    facts = runtime.host_facts()
    assert facts["torch"] == torch.__version__
    assert facts["torch_revision"] == torch.version.git_version
    assert facts["torch_cuda"] == torch.version.cuda
    assert facts["libc"] == " ".join(platform.libc_ver())
    assert facts["machine"] == platform.machine()
