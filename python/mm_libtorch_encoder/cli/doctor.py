"""`mm-encoder doctor`: what the host is, what the wheel wants, whether it fits. Works without Torch."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

from .. import _native, runtime
from .failure import Outcome
from .text import Table

# A Torch on a network disk takes long to import.
PROBE_SECONDS = 300
# A host that fits no wheel: `runtime.differences` then names every field that a wheel has a wish for.
NO_HOST = {
    "torch": "0.0",
    "torch_revision": "",
    "torch_build": "",
    "torch_cuda": "0.0",
    "cxx11_abi": None,
    "machine": "",
    "libc": "",
    "python": "",
}


def add_parser(commands: Any) -> None:
    """The command's arguments."""
    parser = commands.add_parser(
        "doctor",
        help="check that this installation fits this host",
        description="Say what the host is, what the wheel wants, whether it fits, and which devices work.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> Outcome:
    """The command."""
    facts = collect()
    problems = facts["problems"]
    text = json.dumps(facts, indent=1) if options.json else report(facts)
    return Outcome(text, "; ".join(problems))


def collect() -> dict[str, Any]:
    """Everything that the command says."""
    problems: list[str] = []
    host = _host(problems)
    wheel, development = _wheel(host, problems)
    facts: dict[str, Any] = {
        "version": _native.__version__,
        "host": host,
        "cpus": os.cpu_count(),
        "cpu_features": {
            "pixels": _native.instruction_levels()[-1],
            "available": _native.instruction_levels(),
            "pixel_threads": _native.threads(),
        },
        "wheel": None if development else wheel,
        "development": development,
        "fields": [],
        "bridge": None,
        "problems": problems,
    }
    if wheel is not None:
        facts["fields"] = fields(wheel, host)
        sentence = runtime.mismatch(wheel, host)
        problems += [sentence] if sentence else []
    if not problems:
        facts["bridge"] = bridge = probe()
        if "error" in bridge:
            problems.append(f"the bridge to LibTorch does not open: {bridge['error']}")
        else:
            problems += [
                f"Torch's operator {name} is not the expected one" for name in bridge["other_operators"]
            ]
            problems += [
                f"{item['device']}: {item['error']}" for item in bridge["devices"][:1] if not item["works"]
            ]
    return facts


def _host(problems: list[str]) -> dict[str, Any]:
    try:
        return runtime.host_facts()
    except Exception:  # whatever a broken Torch raises
        problems.append("Torch is installed but cannot be imported (`import torch` shows why)")
    kept = sys.modules.get("torch")
    sys.modules["torch"] = None  # type: ignore[assignment]  # an import then fails as if it were not installed
    try:
        return runtime.host_facts()
    finally:
        del sys.modules["torch"]
        if kept is not None:
            sys.modules["torch"] = kept


def _wheel(host: dict[str, Any], problems: list[str]) -> tuple[dict[str, Any] | None, bool]:
    """The runtime record, and whether it only stands for a source checkout."""
    try:
        record = runtime.manifest()
    except _native.RuntimeMismatch as error:
        problems.append(str(error))
        return None, False
    if record is None:
        return runtime._development_record(host, _native.__version__), True
    if record["package"] != _native.__version__:
        problems.append(
            f"the runtime record is of release {record['package']}, the native library of another one"
        )
    return record, False


def fields(wheel: dict[str, Any], host: dict[str, Any]) -> list[dict[str, Any]]:
    """Each field that the wheel has a wish for: what it wants, what the host has, whether that fits."""
    unfit = {field for field, _, _ in runtime.differences(wheel, host)}
    rows = []
    for field, wanted, _ in runtime.differences(wheel, NO_HOST):
        has = host["torch_cuda" if field == "cuda" else field]
        rows.append({"field": field, "wheel": wanted, "host": has, "fits": field not in unfit})
    return rows


def probe() -> dict[str, Any]:
    """What the trial run finds; its "error" says how it ended if not well."""
    program = f"import sys; sys.path[:] = {sys.path!r}; from {__package__} import probe; probe.main()"
    try:
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            timeout=PROBE_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"the trial run took longer than {PROBE_SECONDS} s"}
    except OSError:
        return {"error": "no process could be started for the trial run"}
    if done.returncode < 0:
        return {"error": f"the trial run was ended by {signal.Signals(-done.returncode).name}"}
    try:
        found = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        found = None
    if done.returncode or not isinstance(found, dict):
        return {"error": f"the trial run ended with exit code {done.returncode} and without an answer"}
    return found


def report(facts: dict[str, Any]) -> str:
    """The facts for a reader."""
    bridge = facts["bridge"] if facts["bridge"] and "error" not in facts["bridge"] else None
    sections = [f"mm-libtorch-encoder {facts['version']}", _host_section(facts), _wheel_section(facts)]
    if facts["fields"]:
        table = Table("  field", "the wheel wants", "the host has", "fits")
        for row in facts["fields"]:
            has = "none" if row["host"] is None else str(row["host"])
            table.add("  " + row["field"], row["wheel"], has, "yes" if row["fits"] else "NO")
        sections.append("Fit\n" + table.text())
    sections.append(_cpu_section(facts["cpu_features"], bridge))
    if bridge:
        sections.append(_cuda_section(bridge["cuda"]))
        sections.append(_section("Devices", *((item["device"], _device(item)) for item in bridge["devices"])))
    sections.append(
        "This installation does not work here." if facts["problems"] else "This installation works here."
    )
    return "\n\n".join(sections)


def _host_section(facts: dict[str, Any]) -> str:
    host = facts["host"]
    torch = "not installed (preprocessing works without it)"
    if host["torch"]:
        cuda = f"CUDA {host['torch_cuda']}" if host["torch_cuda"] else "CPU only"
        torch = f"{host['torch']}, built for {cuda}, revision {host['torch_revision'][:12]}"
    return _section(
        "Host",
        ("python", f"{platform.python_implementation()} {platform.python_version()}"),
        ("machine", f"{host['machine']}, {facts['cpus']} CPUs"),
        ("libc", host["libc"]),
        ("torch", torch),
        ("rich", "installed" if find_spec("rich") else "not installed (plain progress instead of bars)"),
    )


def _wheel_section(facts: dict[str, Any]) -> str:
    wheel = facts["wheel"]
    if facts["development"]:
        return "Wheel\n  none: this is a source checkout, whose bridge was compiled on this host"
    if wheel is None:
        return "Wheel\n  unknown: the runtime record is missing or damaged"
    built = f"Torch {wheel['torch']}" + (f", CUDA {wheel['torch_cuda']}" if wheel["torch_cuda"] else "")
    return _section(
        "Wheel",
        ("runtime key", wheel["key"]),
        ("policy", wheel["policy"]),
        ("built with", built),
        ("CUDA kernels", f"for CUDA {wheel['cuda']}" if wheel["cuda"] else "none (a CPU wheel)"),
    )


def _cpu_section(features: dict[str, Any], bridge: dict[str, Any] | None) -> str:
    available = ", ".join(features["available"])
    rows = [("pixels", f"{features['pixels']} (of {available}), {features['pixel_threads']} threads")]
    if bridge:
        expected = bridge["operators"] - len(bridge["other_operators"])
        rows += [
            ("tower", f"{bridge['kernel_level']} fused kernels, {bridge['torch_threads']} Torch threads"),
            ("operators", f"{expected} of {bridge['operators']} as expected"),
        ]
    return _section("CPU features", *rows)


def _cuda_section(cuda: dict[str, Any]) -> str:
    rows = []
    if cuda["gpu"]:
        driver = ".".join(map(str, cuda["gpu"]["driver"]))
        rows.append(("driver", f"knows CUDA up to {driver}"))
    if cuda["problem"]:
        rows.append(("not usable", cuda["problem"]))
    on = [name for name, used, _ in cuda["kernels"] if used]
    off = [f"{name} ({reason})" if reason else name for name, used, reason in cuda["kernels"] if not used]
    # Without a device they were not checked, and nothing uses them.
    if cuda["gpu"] and cuda["kernels"]:
        rows.append(("kernels on", ", ".join(on) or "none"))
        rows.append(("kernels off", ", ".join(off) or "none"))
    return _section("CUDA", *rows)


def _device(item: dict[str, Any]) -> str:
    title = f"{item['title']}: " if item["title"] else ""
    if item["works"]:
        return f"{title}works (a test picture took {item['milliseconds']:.1f} ms)"
    return f"{title}not usable: {item['error']}"


def _section(heading: str, *facts: tuple[str, str]) -> str:
    width = max(len(name) for name, _ in facts) + 2
    return "\n".join([heading, *(f"  {name:{width}}{value}" for name, value in facts)])
