"""build_wheel.py: what it asks for, keeps apart and writes down, without compiling anything."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import build_wheel
import install_wheel


def test_every_torch_has_compiled_objects_of_its_own(host: dict[str, Any]) -> None:
    key = "torch-stable-2.11-cpu-x86_64"
    changed = {
        "torch": "2.15.0+cu130",
        "torch_revision": "0",
        "torch_build": "0",
        "torch_cuda": "13.1",
        "cxx11_abi": False,
    }
    folders = {build_wheel.cache_folder(key, {**host, field: value}) for field, value in changed.items()}
    folders.add(build_wheel.cache_folder(key, host))
    assert len(folders) == len(changed) + 1
    assert build_wheel.cache_folder(key, host) == build_wheel.cache_folder(key, dict(host))
    assert all(folder.startswith(key) for folder in folders)
    assert build_wheel.cache_folder("another", host) not in folders


def test_cargo_is_told_the_torch_and_a_bridge_folder_inside_the_cache(tmp_path: Path) -> None:
    given = {
        "RUSTFLAGS": "-C target-cpu=x86-64",
        "CXXFLAGS": "-g0",
        "CARGO_HOME": str(tmp_path),
        "HOME": "/h",
    }
    (tmp_path / "registry" / "src" / "somewhere").mkdir(parents=True)
    environment = build_wheel.build_environment("/env/bin/python", tmp_path / "cache", given)
    assert environment["MM_TORCH_PYTHON"] == environment["PYO3_PYTHON"] == "/env/bin/python"
    assert environment["CARGO_TARGET_DIR"] == str(tmp_path / "cache")
    assert environment["MM_BRIDGE_DIR"].startswith(environment["CARGO_TARGET_DIR"] + "/")
    flags = environment["CARGO_ENCODED_RUSTFLAGS"].split("\x1f")
    assert flags[:2] == ["-C", "target-cpu=x86-64"]
    assert f"--remap-path-prefix={tmp_path}/registry/src/somewhere=/crates" in flags
    assert environment["CXXFLAGS"].startswith("-g0 -ffile-prefix-map=")
    assert environment["HOME"] == "/h"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"torch": None}, "has no Torch"),
        ({"torch": "2.13.0+cu130"}, "Torch 2.13.0+cu130 of python is too old to build with"),
        ({"libc": "unknown"}, "Linux with glibc"),
    ],
)
def test_hosts_that_cannot_build(host: dict[str, Any], changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(install_wheel.Failure, match=sentence.replace("+", r"\+")):
        build_wheel.check_tools("python", {**host, **changes})


@pytest.mark.parametrize("program", ["cargo", "g++", "maturin", "patchelf"])
def test_missing_programs_are_named(
    host: dict[str, Any], program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None if name == program else f"/bin/{name}")
    with pytest.raises(install_wheel.Failure) as raised:
        build_wheel.check_tools("python", host)
    assert f"The program {program} is missing." in str(raised.value)


def test_the_compiler_of_cxx_is_looked_for(host: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    with pytest.raises(install_wheel.Failure, match="The program no-such-compiler is missing"):
        build_wheel.check_tools("python", host)


def test_failures_end_as_one_sentence(
    host: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(install_wheel, "probe", lambda python: {**host, "torch": "2.11.0"})
    assert build_wheel.main(["--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("build_wheel.py: Torch 2.11.0 of ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("policy", ["stable", "exact"])
def test_the_record_fits_the_host_that_it_was_built_on(host: dict[str, Any], policy: str) -> None:
    key = install_wheel.runtime_key(policy, False, host)
    manifest = build_wheel.manifest_of(host, policy, str(key), "glibc 2.34")
    assert install_wheel.parse_manifest(json.dumps(manifest).encode()) == manifest
    assert install_wheel.differences(manifest, host) == []
    assert manifest["package"] == build_wheel.version()
    assert manifest["cuda"] is None  # a CPU wheel says so
    assert manifest["libc"] == {"stable": "glibc 2.34", "exact": "glibc 2.36"}[policy]


def test_a_bridge_of_another_build_never_gets_in(tmp_path: Path) -> None:
    package = tmp_path / "wheel" / "mm_libtorch_encoder"
    package.mkdir(parents=True)
    for name in ("_native.abi3.so", "libmm_torch.so", "libmm_stale.so"):
        (package / name).write_bytes(b"from the source tree")
    fresh = tmp_path / "libmm_torch.so"
    fresh.write_bytes(b"of this build")
    build_wheel.add_libraries(tmp_path / "wheel", fresh, wanted=True)
    assert sorted(path.name for path in package.iterdir()) == ["_native.abi3.so", "libmm_torch.so"]
    assert (package / "libmm_torch.so").read_bytes() == b"of this build"
    fresh.unlink()
    with pytest.raises(install_wheel.Failure, match="made no LibTorch bridge"):
        build_wheel.add_libraries(tmp_path / "wheel", fresh, wanted=True)


def test_build_rs_looks_again_when_torch_or_the_bridge_folder_changes(root: Path) -> None:
    """Within one cache, cargo compiles the bridge anew when any of these differs."""
    text = (root / "build" / "bridge.rs").read_text()
    for variable in ("MM_TORCH_PYTHON", "PYO3_PYTHON", "MM_BRIDGE_DIR", "CXX", "CXXFLAGS"):
        assert f'"{variable}"' in text[: text.index("rerun-if-env-changed={variable}")]
    assert 'rerun-if-changed={}", torch.join("version.py")' in text
