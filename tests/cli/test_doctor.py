"""`mm-encoder doctor`: this host, a host that does not fit, and installations broken in every way."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mm_libtorch_encoder import RuntimeMismatch, _native, runtime
from mm_libtorch_encoder.cli import doctor

Cli = Callable[..., Any]
FITTING_BRIDGE = {
    "libtorch": "2.14.1",
    "kernel_level": "base",
    "torch_threads": 1,
    "operators": 2,
    "other_operators": [],
    "devices": [{"device": "cpu", "title": "", "works": True, "milliseconds": 1.25}],
    "cuda": {"problem": 'device "cuda:0" cannot be used', "gpu": None, "kernels": []},
}


@pytest.fixture
def record() -> dict[str, Any]:
    """A stable CPU wheel's record that fits this host."""
    return {
        **runtime.host_facts(),
        "format": 1,
        "package": _native.__version__,
        "policy": "stable",
        "key": "torch-stable-2.11-cpu-x86_64",
        "cuda": None,
        "python": "cp311-abi3",
    }


@pytest.fixture
def installed(record: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The record, as the one of this installation, with a bridge that works."""
    monkeypatch.setattr(runtime, "manifest", lambda: record)
    monkeypatch.setattr(doctor, "probe", lambda: FITTING_BRIDGE)
    return record


def test_this_host(process: Cli) -> None:
    done = process("doctor", "--json")
    assert (done.code, done.err) == (0, "")
    facts = json.loads(done.out)
    assert facts["problems"] == []
    assert facts["host"]["torch"] == torch.__version__
    assert all(row["fits"] for row in facts["fields"])
    assert {"torch", "machine", "libc", "python"} <= {row["field"] for row in facts["fields"]}
    bridge = facts["bridge"]
    assert torch.__version__.startswith(bridge["libtorch"])
    assert bridge["operators"] > 10
    assert bridge["other_operators"] == []
    assert (bridge["devices"][0]["device"], bridge["devices"][0]["works"]) == ("cpu", True)
    assert len(bridge["devices"]) == 1 + torch.cuda.device_count()
    flags = Path("/proc/cpuinfo").read_text()
    assert bridge["kernel_level"] in (
        "base",
        *(level for level in ("avx2", "avx512f") if level in flags),
        "avx512",
    )
    assert facts["cpu_features"]["pixels"] == facts["cpu_features"]["available"][-1]


def test_what_is_known_of_cuda(process: Cli) -> None:
    cuda = json.loads(process("doctor", "--json").out)["bridge"]["cuda"]
    assert (cuda["problem"] is None) == (cuda["gpu"] is not None)
    if not torch.cuda.is_available():
        assert cuda["problem"].startswith('device "cuda:0" ')


def test_the_switches_of_cuda_are_shown() -> None:
    kernels = [
        ["norm", True, None],
        ["rotary", False, "cuda:0: differs from its plain form"],
        ["gated", False, None],
    ]
    gpu = {"name": "H100", "capability": [9, 0], "driver": [13, 0], "memory": 1 << 36}
    text = doctor._cuda_section({"problem": None, "gpu": gpu, "kernels": kernels})
    assert "knows CUDA up to 13.0" in text
    assert re.search(r"kernels on +norm\n", text)
    assert "rotary (cuda:0: differs from its plain form), gated" in text


def test_without_a_driver_no_kernel_is_on() -> None:
    kernels = [["norm", True, None]]
    text = doctor._cuda_section({"problem": "there is no driver", "gpu": None, "kernels": kernels})
    assert "there is no driver" in text and "kernels" not in text


def test_kernels_can_be_capped(process: Cli) -> None:
    done = process("doctor", "--json", env={**os.environ, "MM_KERNELS": "base"})
    assert json.loads(done.out)["bridge"]["kernel_level"] == "base"


def test_a_fitting_wheel(cli: Cli, installed: dict[str, Any]) -> None:
    done = cli("doctor")
    assert (done.code, done.err) == (0, "")
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert f"runtime key {installed['key']}" in lines
    assert "CUDA kernels none (a CPU wheel)" in lines
    assert "tower base fused kernels, 1 Torch threads" in lines
    assert "operators 2 of 2 as expected" in lines
    assert "cpu works (a test picture took 1.2 ms)" in lines
    assert lines[-1] == "This installation works here."


def test_a_wheel_that_does_not_fit(cli: Cli, installed: dict[str, Any]) -> None:
    installed.update(machine="riscv64", libc="glibc 9.99")
    done = cli("doctor")
    assert done.code == 1
    assert "does not fit this host: machine: built for riscv64" in done.err
    table = {
        line.split()[0]: line.split()[-1] for line in done.out.splitlines() if line.endswith(("yes", "NO"))
    }
    assert table == {"torch": "yes", "machine": "NO", "libc": "NO", "python": "yes"}
    assert done.out.endswith("This installation does not work here.\n")
    facts = json.loads(cli("doctor", "--json").out)
    assert [row["field"] for row in facts["fields"] if not row["fits"]] == ["machine", "libc"]
    assert facts["bridge"] is None


def test_every_field_of_an_exact_wheel(cli: Cli, installed: dict[str, Any]) -> None:
    installed.update(policy="exact", libc=runtime.host_facts()["libc"])
    facts = json.loads(cli("doctor", "--json").out)
    assert [row["field"] for row in facts["fields"]] == [*runtime.EXACT_FIELDS, "python"]
    assert all(row["fits"] for row in facts["fields"])


def test_a_cuda_wheel_names_the_cuda_of_the_host(
    cli: Cli, installed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed["cuda"] = "13.0"
    host = {**runtime.host_facts(), "torch_cuda": "12.8"}
    monkeypatch.setattr(runtime, "host_facts", lambda: host)
    facts = json.loads(cli("doctor", "--json").out)
    (row,) = (row for row in facts["fields"] if row["field"] == "cuda")
    assert row == {"field": "cuda", "wheel": "13.x", "host": "12.8", "fits": False}


def test_a_record_of_another_release(cli: Cli, installed: dict[str, Any]) -> None:
    installed["package"] = "0.0.1"
    done = cli("doctor")
    assert done.code == 1
    assert "the runtime record is of release 0.0.1" in done.err


def test_a_missing_record(cli: Cli, installed: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise RuntimeMismatch("This installation has no runtime record.")

    monkeypatch.setattr(runtime, "manifest", missing)
    done = cli("doctor")
    assert (done.code, done.err) == (1, "mm-encoder: This installation has no runtime record.\n")
    assert "unknown: the runtime record is missing or damaged" in done.out


def test_a_torch_that_cannot_be_imported(process: Cli, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise OSError('libtorch_cpu.so: cannot open')")
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = process("doctor", env={**os.environ, "PYTHONPATH": path})
    assert done.code == 1
    assert "Torch is installed but cannot be imported" in done.err
    assert "host has none" in done.err
    assert "python" in done.out


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("kill -SEGV $$", "the trial run was ended by SIGSEGV"),
        ("exit 3", "the trial run ended with exit code 3 and without an answer"),
        ("echo nonsense", "the trial run ended with exit code 0 and without an answer"),
        ("sleep 60", "the trial run took longer than 1 s"),
    ],
)
def test_a_trial_run_that_ends_badly(
    tmp_path: Path, script: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nexec 2>&-\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr(doctor.sys, "executable", str(python))
    monkeypatch.setattr(doctor, "PROBE_SECONDS", 1 if "sleep" in script else 60)
    assert doctor.probe() == {"error": sentence}


def test_findings_of_the_trial_run_are_problems(
    cli: Cli, installed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = {"device": "cpu", "title": "", "works": False, "error": "no"}
    for bridge, sentence in (
        ({"error": "no such library"}, "the bridge to LibTorch does not open: no such library"),
        (
            {**FITTING_BRIDGE, "other_operators": ["aten::cat"]},
            "Torch's operator aten::cat is not the expected one",
        ),
        ({**FITTING_BRIDGE, "devices": [broken]}, "cpu: no"),
    ):
        monkeypatch.setattr(doctor, "probe", lambda bridge=bridge: bridge)
        done = cli("doctor")
        assert (done.code, done.err) == (1, f"mm-encoder: {sentence}\n")


def plain(*arguments: str) -> subprocess.CompletedProcess[str]:
    python = os.environ.get("MM_PLAIN_PYTHON")
    if python is None:
        pytest.skip(
            "MM_PLAIN_PYTHON names no Python with NumPy and the wheel but without Torch; make test does"
        )
    command = [python, "-m", "mm_libtorch_encoder", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=Path(python).parent, timeout=300)


def test_without_torch() -> None:
    done = plain("doctor")
    assert done.returncode == 1
    assert "not installed (preprocessing works without it)" in done.stdout
    assert "torch: built for 2.11 or newer" in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads(plain("doctor", "--json").stdout)["host"]["torch"] is None


def test_what_needs_torch_says_so(photos: Path, checkpoint: Path, tmp_path: Path) -> None:
    assert plain("families").returncode == 0
    for command in (["encode"], ["show", "--out", str(tmp_path / "out.png")]):
        done = plain(command[0], str(checkpoint), str(photos / "a.png"), *command[1:], "--device=cpu")
        assert (done.returncode, done.stdout) == (1, "")
        assert "No wheel fits this host before it has Torch 2.11 or newer." in done.stderr
        assert done.stderr.count("\n") == 1
