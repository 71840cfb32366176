"""The command line, the order of the checks, and the report."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from .. import _native, runtime
from .. import device as devices
from . import checks, cuda_checks, graphs, timings
from .context import Context, NotRun

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"

CHECKS: dict[str, Callable[[Context], Any]] = {
    "parity with the CPU": checks.parity_with_the_cpu,
    "parity with transformers": checks.parity_with_transformers,
    "repeatability": checks.repeatability,
    "recovery": checks.recovery,
    "delayed consumer": cuda_checks.delayed_consumer,
    "dropped while read": cuda_checks.dropped_while_read,
    "ownership": checks.ownership,
    "replicas": checks.replicas,
    "cache": checks.caching,
    "out of memory": cuda_checks.out_of_memory,
    "kernels": cuda_checks.kernels,
    "graphs": graphs.graphs,
    "sanitizers": cuda_checks.sanitizers,
    "timings": timings.timings,
    "timings of graphs": graphs.graph_timings,
    "vLLM and SGLang": lambda context: timings.peers(),
}


@dataclass
class Finding:
    """How one check ended."""

    check: str
    status: str
    detail: str
    seconds: float
    figures: dict[str, dict[str, float]] = field(default_factory=dict)


def main(arguments: list[str] | None = None) -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m mm_libtorch_encoder.qualify", description="Qualify this installation on this machine."
    )
    parser.add_argument("checkpoint", type=Path, help="folder of a checkpoint")
    parser.add_argument("--device", default="cuda:0", help='"cuda:N" (default: cuda:0) or "cpu"')
    parser.add_argument("--dtype", help="element type of the tower (default: the checkpoint's own)")
    parser.add_argument("--family", help="model family (default: as config.json shows)")
    parser.add_argument(
        "--only",
        action="append",
        metavar="CHECK",
        choices=list(CHECKS),
        help=f"run this check alone, or several by several --only: {', '.join(CHECKS)}",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the JSON document to FILE too")
    options = parser.parse_args(arguments)
    context = Context(options.checkpoint, options.device, dtype=options.dtype, family=options.family)
    findings = []
    absent = device_fault(context)
    if absent:
        # One sentence, not the same one for each check.
        findings = [Finding("device", FAILED, absent, 0.0)]
        if not options.json:
            print(line(findings[0]), flush=True)
    for name in options.only or CHECKS:
        if absent:
            findings.append(Finding(name, NOT_RUN, "the device cannot be used", 0.0))
            continue
        findings.append(run(name, context))
        if not options.json:
            print(line(findings[-1]), flush=True)
    document = {"host": host(context), "findings": [asdict(finding) for finding in findings]}
    text = json.dumps(document, indent=1)
    if options.report:
        options.report.write_text(text + "\n", "utf-8")
    if options.json:
        print(text)
    else:
        print(summary(findings))
    return int(any(finding.status == FAILED for finding in findings))


def device_fault(context: Context) -> str | None:
    """What keeps the device from being used at all; None: nothing."""
    if not context.on_cuda:
        return None
    try:
        devices.prepare(context.device)
        _native.cuda_device(torch.device(context.device).index or 0)
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def run(name: str, context: Context) -> Finding:
    """One check, whatever it raises."""
    start = time.perf_counter()
    figures: dict[str, dict[str, float]] = {}
    try:
        found = CHECKS[name](context)
        status, detail = PASSED, found
        if isinstance(found, dict):
            detail, figures = "; ".join(f"{key}: {value}" for key, value in found.items()), found
    except NotRun as reason:
        status, detail = NOT_RUN, str(reason)
    except Exception as error:
        status, detail = FAILED, f"{type(error).__name__}: {error}"
    return Finding(name, status, detail, round(time.perf_counter() - start, 2), figures)


def line(finding: Finding) -> str:
    """A finding for a reader."""
    return f"{finding.status:8} {finding.check} ({finding.seconds:.1f} s): {finding.detail}"


def summary(findings: list[Finding]) -> str:
    """Counts, and what was not run."""
    counts = {
        status: sum(finding.status == status for finding in findings) for status in (PASSED, FAILED, NOT_RUN)
    }
    text = ", ".join(f"{count} {status}" for status, count in counts.items())
    missing = [finding.check for finding in findings if finding.status == NOT_RUN]
    return text + (f" ({', '.join(missing)})" if missing else "")


def host(context: Context) -> dict[str, Any]:
    """Machine, driver, Torch and this build."""
    gpu: dict[str, Any] | None = None
    if context.on_cuda:
        try:
            gpu = _native.cuda_device(torch.device(context.device).index or 0)
        except (RuntimeError, ValueError) as error:
            gpu = {"error": str(error)}
    return {
        "version": _native.__version__,
        "manifest": runtime.manifest(),
        "torch": str(torch.__version__),
        "torch_cuda": torch.version.cuda,
        "device": context.device,
        "gpu": gpu,
        "kernels": _native.cuda_kernels(),
        "cpu_kernels": _native.kernel_level(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "command": " ".join(sys.argv),
    }
