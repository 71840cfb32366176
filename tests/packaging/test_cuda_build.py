"""The CUDA library of a wheel: which compiler is taken, what it is told, what the finished library is asked."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

import build_wheel
import install_wheel
from tools import cuda, elf, inspection

ALL = ("80", "90", "100", "120")


def compiler(folder: Path, version: str, architectures: tuple[str, ...] = ALL) -> Path:
    """A program that answers as nvcc does; gives the folder that CUDA_HOME would name."""
    nvcc = folder / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    codes = "\\n".join(f"sm_{number}" for number in architectures)
    nvcc.write_text(
        "#!/bin/sh\ncase $1 in\n"
        f"--version) echo 'Cuda compilation tools, release {version}, V{version}.88';;\n"
        f"--list-gpu-code) printf '{codes}\\n';;\nesac\n"
    )
    nvcc.chmod(0o755)
    return folder


@pytest.fixture(autouse=True)
def no_compiler_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda.sys, "executable", "/nowhere/bin/python")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)


def pip_home(python: Path, major: int = 13) -> Path:
    return python.parent.parent / "lib" / "python3.11" / "site-packages" / "nvidia" / f"cu{major}"


def test_cuda_home_comes_first_then_pips_then_the_path(tmp_path: Path) -> None:
    python = tmp_path / "env" / "bin" / "python"
    home, pips, machines = tmp_path / "home", pip_home(python), tmp_path / "machine"
    for place in (home, pips, machines):
        compiler(place, "13.0")
    environ = {"CUDA_HOME": str(home), "PATH": f"{machines / 'bin'}:/usr/bin:/bin"}
    assert cuda.find("13.0", str(python), environ).home == home
    del environ["CUDA_HOME"]
    assert cuda.find("13.0", str(python), environ).home == pips
    shutil.rmtree(pips)
    assert cuda.find("13.0", str(python), environ).home == machines


@pytest.mark.parametrize("version", ["12.9", "13.1", "14.0"])
def test_a_compiler_of_another_version_is_passed_over_and_named(tmp_path: Path, version: str) -> None:
    home = compiler(tmp_path / "home", version)
    with pytest.raises(install_wheel.Failure) as raised:
        cuda.find("13.0", "/nowhere/bin/python", {"CUDA_HOME": str(home), "PATH": "/nowhere"})
    sentence = str(raised.value)
    assert "no CUDA compiler for Torch's CUDA 13.0" in sentence
    assert f"{home}/bin/nvcc is of CUDA {version}" in sentence
    assert "requirements/cuda.txt" in sentence and "\n" not in sentence


def test_a_fitting_one_behind_another_version_is_found(tmp_path: Path) -> None:
    python = tmp_path / "env" / "bin" / "python"
    compiler(pip_home(python), "13.0")
    home = compiler(tmp_path / "home", "12.8")
    assert cuda.find("13.0", str(python), {"CUDA_HOME": str(home)}).version == (13, 0)


def test_wheels_with_and_without(
    host: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert build_wheel.cuda_toolkit(host, "/nowhere/bin/python", None) is None
    with pytest.raises(install_wheel.Failure, match="no CUDA compiler"):
        build_wheel.cuda_toolkit(host, "/nowhere/bin/python", True)
    with pytest.raises(install_wheel.Failure, match="is for the CPU alone"):
        build_wheel.cuda_toolkit({**host, "torch_cuda": None}, "python", True)
    monkeypatch.setenv("CUDA_HOME", str(compiler(tmp_path / "home", "13.0")))
    assert build_wheel.cuda_toolkit(host, "python", None) is not None
    assert build_wheel.cuda_toolkit(host, "python", False) is None
    assert build_wheel.cuda_toolkit({**host, "torch_cuda": None}, "python", None) is None


def test_the_record_of_a_wheel_with_kernels(host: dict[str, Any]) -> None:
    key = install_wheel.runtime_key("stable", True, host)
    manifest = build_wheel.manifest_of(host, "stable", str(key), "glibc 2.34", kernels=True)
    assert manifest["key"] == "torch-stable-2.11-cu13-x86_64" and manifest["cuda"] == "13.0"
    assert install_wheel.parse_manifest(json.dumps(manifest).encode()) == manifest
    assert install_wheel.differences(manifest, host) == []
    # It fits beside a Torch for the CPU, and beside any CUDA of its major version.
    assert install_wheel.differences(manifest, {**host, "torch_cuda": None}) == []
    assert install_wheel.differences(manifest, {**host, "torch_cuda": "13.9"}) == []
    (difference,) = install_wheel.differences(manifest, {**host, "torch_cuda": "12.8"})
    assert difference == ("cuda", "13.x", "12.8")


def test_what_the_compilers_are_told(tmp_path: Path) -> None:
    toolkit = cuda.Toolkit(compiler(tmp_path / "home", "13.0") / "bin" / "nvcc", (13, 0))
    torch = tmp_path / "site" / "torch"
    compilations, link = cuda.commands(toolkit, torch, tmp_path / "objects", {"CXX": "clang++ -m64"})
    kernels, *hosts = compilations
    for number in ALL:
        assert f"-gencode=arch=compute_{number},code=sm_{number}" in kernels
    assert "-gencode=arch=compute_80,code=compute_80" in kernels
    assert "-fmad=false" in kernels and "-ccbin=clang++" in kernels
    assert "-Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Wextra,-Werror" in kernels
    for command in hosts:
        assert command[:2] == ["clang++", "-m64"]
        assert {"-Wall", "-Wextra", "-Werror", "-fvisibility=hidden"} <= set(command)
    assert {command[-3] for command in hosts} == {path.name for path in cuda.SOURCES.glob("*.cpp")}
    assert [part for part in link if part.startswith("-l")] == ["-ltorch_cuda", "-l:libcudart.so.13"]
    assert not any("rpath" in part for part in link)


def test_an_old_compiler_builds_nothing(tmp_path: Path) -> None:
    home = compiler(tmp_path / "home", "13.0", ("80", "90"))
    toolkit = cuda.Toolkit(home / "bin" / "nvcc", (13, 0))
    with pytest.raises(install_wheel.Failure, match="knows no code for sm_100"):
        cuda.build(toolkit, tmp_path, tmp_path / "objects", {})


def container(*entries: tuple[int, int]) -> bytes:
    """GPU code as a compiler wraps it: (kind, architecture) each, kind 1 intermediate, 2 machine code."""
    body = b""
    for kind, architecture in entries:
        body += (
            struct.pack("<HHIQIIHHI", kind, 0x101, 64, 8, 0, 64, 0, 0, architecture).ljust(64, b"\0")
            + b"code" * 2
        )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def library(path: Path, code: bytes | None, *flags: str) -> Path:
    """A shared object with that GPU code."""
    source = "int f(void) { return 1; }\n"
    if code is not None:
        words = ", ".join(map(str, code))
        source += f'__attribute__((section(".nv_fatbin"), used)) const unsigned char gpu[] = {{{words}}};\n'
    command = ["g++", "-x", "c", "-", "-x", "none", "-shared", "-fPIC", "-nostdlib", "-o", str(path)]
    subprocess.run([*command, "-Wl,--no-as-needed", *flags], input=source.encode(), check=True)
    return path


def test_gpu_code_is_listed(tmp_path: Path) -> None:
    code = container((2, 90), (1, 80), (2, 80)) + container((2, 100)) + bytes(24)
    found = elf.gpu_code(library(tmp_path / "some.so", code))
    assert found == elf.GpuCode(machine=("80", "90", "100"), intermediate=("80",))
    assert elf.gpu_code(library(tmp_path / "none.so", None)) == elf.GpuCode((), ())


@pytest.mark.parametrize("spoilt", [b"\1" * 32, container((2, 90))[:40], container((2, 90))[:-9] + b"\0"])
def test_damaged_gpu_code_is_an_error(tmp_path: Path, spoilt: bytes) -> None:
    path = library(tmp_path / "some.so", spoilt)
    if spoilt[0] == 1:
        with pytest.raises(ValueError, match="cannot be read"):
            elf.gpu_code(path)
    else:
        try:  # cut short: an error or what is whole of it, never a hang or another exception
            assert elf.gpu_code(path).machine in ((), ("90",))
        except ValueError:
            pass


def report_of(tmp_path: Path, path: Path) -> inspection.Report:
    report = inspection.Report()
    expected = inspection.Expected("0", {"cuda": "13.0"}, tmp_path, True)
    inspection._gpu_code(report, {inspection.CUDA: path}, expected)
    inspection._libraries(report, {inspection.CUDA: path}, expected)
    return report


def test_a_library_with_all_its_code_passes(tmp_path: Path) -> None:
    needed = []
    for name in ("libtorch_cuda.so", "libcudart.so.13", "libcublasLt.so.13"):
        needed.append(str(library(tmp_path / name, None, f"-Wl,-soname,{name}")))
    code = container((2, 80), (2, 90), (2, 100), (1, 80))
    report = report_of(tmp_path, library(tmp_path / "libmm_cuda.so", code, *needed))
    assert report.problems == []
    assert ("GPU code", "sm_80, sm_90, sm_100; PTX of 80") in report.facts


@pytest.mark.parametrize(
    ("code", "needs", "problem"),
    [
        (container((2, 90), (1, 80)), None, "has no machine code for sm_80, sm_100"),
        (container((2, 80), (2, 90), (2, 100)), None, "has no intermediate code of compute_80"),
        (None, None, "has no machine code for sm_80, sm_90, sm_100"),
        (container((2, 80)), "libcublas.so.13", "needs libcublas.so.13, which a host need not have"),
        (container((2, 80)), "libcudart.so.12", "needs libcudart.so.12"),
        (container((2, 80)), "libcuda.so.1", "needs libcuda.so.1"),
    ],
)
def test_faults_of_the_library_are_found(
    tmp_path: Path, code: bytes | None, needs: str | None, problem: str
) -> None:
    flags = [str(library(tmp_path / needs, None, f"-Wl,-soname,{needs}"))] if needs else []
    problems = report_of(tmp_path, library(tmp_path / "libmm_cuda.so", code, *flags)).problems
    assert any(problem in sentence for sentence in problems), problems


def test_the_installed_library_is_what_the_record_says(package: Path) -> None:
    from mm_libtorch_encoder import runtime

    record = runtime.manifest()
    path = package / cuda.LIBRARY
    if record is None:
        pytest.skip("a source checkout has no record")
    assert path.exists() == (record["cuda"] is not None)
    if not path.exists():
        pytest.skip("a wheel for the CPU")
    code = elf.gpu_code(path)
    assert set(cuda.REQUIRED_ARCHITECTURES) <= set(code.machine)
    assert cuda.OLDEST_ARCHITECTURE in code.intermediate
    foreign = {name for name in elf.read(path).needed if not inspection.SYSTEM.fullmatch(name)}
    major = record["cuda"].split(".")[0]
    assert foreign <= {"libtorch_cuda.so", f"libcudart.so.{major}", f"libcublasLt.so.{major}"}
    assert {"libtorch_cuda.so", f"libcudart.so.{major}"} <= foreign
    assert elf.read(path).search_paths == ()


def test_no_path_of_this_machine_is_kept(package: Path) -> None:
    path = package / cuda.LIBRARY
    if not path.exists():
        pytest.skip("a wheel for the CPU")
    content = path.read_bytes()
    for folder in {str(cuda.ROOT), os.path.expanduser("~")} - {"/"}:
        assert folder.encode() not in content
