"""Does this build fit the host's Torch? The record of the build, and the check before the bridge is opened.

`_runtime.json` is written by build_wheel.py. A source checkout (`maturin develop`) has no record: its bridge
was compiled on this host, so only the oldest supported Torch is checked there. An installed package without a
record is refused.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

MANIFEST_NAME = "_runtime.json"

# The policy. The same text, up to the end mark, stands in runtime.py and in install_wheel.py, which has to
# run alone; a test holds the two equal.
MANIFEST_FORMAT = 1
MAX_MANIFEST_BYTES = 64 * 1024
OLDEST_TORCH = (2, 11)
MANIFEST_FIELDS: dict[str, tuple[type, ...]] = {
    "format": (int,),
    "package": (str,),  # version of mm-libtorch-encoder
    "policy": (str,),  # "stable" or "exact"
    "key": (str,),  # runtime key, the folder of the wheel
    "torch": (str,),  # Torch whose headers were used
    "torch_revision": (str,),  # its source revision
    "torch_build": (str,),  # digest of its build configuration
    "torch_cuda": (str, type(None)),  # its CUDA version
    "cuda": (str, type(None)),  # CUDA version of this wheel's own kernels; null: a CPU wheel
    "cxx11_abi": (bool,),
    "machine": (str,),  # as `uname -m` says it
    "libc": (str,),  # "glibc 2.34": the oldest one that works (stable), the build host's (exact)
    "python": (str,),  # "cp311-abi3": the oldest CPython that works
}
EXACT_FIELDS = ("torch", "torch_revision", "torch_build", "torch_cuda", "cxx11_abi", "machine", "libc")


def host_facts() -> dict[str, Any]:
    """What this interpreter offers; every Torch field is None where Torch is not installed."""
    import hashlib
    import os
    import platform
    import sys

    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION") or "unknown"
    except (AttributeError, OSError, ValueError):
        libc = "unknown"
    tag = "cp" if sys.implementation.name == "cpython" else sys.implementation.name
    python = tag + "".join(str(part) for part in sys.version_info[:2]) + getattr(sys, "abiflags", "")
    torch_fields = ("torch", "torch_revision", "torch_build", "torch_cuda", "cxx11_abi")
    facts: dict[str, Any] = dict.fromkeys(torch_fields)
    facts.update(machine=platform.machine(), libc=libc, python=python)
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return facts
    # The line about the running CPU is a fact of the machine, not of the build.
    lines = [line for line in torch.__config__.show().splitlines() if "CPU capability" not in line]
    facts.update(
        torch=str(torch.__version__),
        torch_revision=torch.version.git_version or "unknown",
        torch_build=hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16],
        torch_cuda=torch.version.cuda,
        cxx11_abi=bool(torch.compiled_with_cxx11_abi()),
    )
    return facts


def parse_manifest(text: bytes) -> dict[str, Any]:
    """The record as a dictionary; a ValueError that completes "the runtime record ..." where it is none."""
    if len(text) > MAX_MANIFEST_BYTES:
        raise ValueError(f"is larger than {MAX_MANIFEST_BYTES} bytes")
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("is not valid JSON") from None
    if not isinstance(manifest, dict):
        raise ValueError("is not a JSON object")
    if manifest.get("format") != MANIFEST_FORMAT:
        raise ValueError(f"is not of format {MANIFEST_FORMAT}; it was written by another release")
    for field, kinds in MANIFEST_FIELDS.items():
        if field not in manifest:
            raise ValueError(f"lacks the field {field!r}")
        if not isinstance(manifest[field], kinds):
            raise ValueError(f"has a {field!r} of the wrong type")
    if manifest["policy"] not in ("stable", "exact"):
        raise ValueError("has a policy that is neither 'stable' nor 'exact'")
    return manifest


def numbers(text: str | None) -> tuple[int, ...]:
    """The first dotted number of a version or libc name: (2, 14, 1) of "2.14.1+cu130"; () without one."""
    found = re.search(r"\d{1,9}(?:\.\d{1,9})*", text or "", re.ASCII)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def torch_supported(version: str | None) -> bool:
    """Is this Torch one that the stable ABI of our bridge runs on?"""
    return numbers(version)[:2] >= OLDEST_TORCH


def device_token(cuda: str | None, exact: bool) -> str:
    """The part of a runtime key that names the devices: "cpu", "cu13" (any 13.x) or, exact, "cu130"."""
    parts = numbers(cuda)
    if not parts:
        return "cpu"
    return "cu" + "".join(str(part) for part in parts[: 2 if exact else 1])


def runtime_key(policy: str, kernels: bool, host: dict[str, Any]) -> str | None:
    """The key of the wheel that fits `host`, with CUDA kernels or without; None where no wheel can fit."""
    import hashlib

    if not torch_supported(host["torch"]):
        return None
    exact = policy == "exact"
    device = device_token(host["torch_cuda"] if kernels else None, exact)
    if not exact:
        return "torch-stable-{}.{}-{}-{}".format(*OLDEST_TORCH, device, host["machine"])
    version = ".".join(str(part) for part in numbers(host["torch"]))
    identity = json.dumps([device, *(host[field] for field in EXACT_FIELDS)])
    return f"torch-{version}-{device}-{host['machine']}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"


def differences(manifest: dict[str, Any], host: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Every field in which `host` does not fit the wheel: (field, wanted by the wheel, had by the host)."""
    found: list[tuple[str, str, str]] = []
    oldest = ".".join(str(part) for part in OLDEST_TORCH)
    exact = manifest["policy"] == "exact"
    if host["torch"] is None:
        wanted = manifest["torch"] if exact else f"{oldest} or newer"
        found.append(("torch", wanted, "none"))
    elif exact:
        for field in EXACT_FIELDS:
            if manifest[field] != host[field]:
                found.append((field, str(manifest[field]), str(host[field])))
    else:
        if not torch_supported(host["torch"]):
            found.append(("torch", f"{oldest} or newer (built with {manifest['torch']})", host["torch"]))
        wheel_cuda, host_cuda = numbers(manifest["cuda"])[:1], numbers(host["torch_cuda"])[:1]
        if wheel_cuda and host_cuda and wheel_cuda != host_cuda:
            found.append(("cuda", f"{wheel_cuda[0]}.x", host["torch_cuda"]))
    if not (exact and host["torch"]):
        if manifest["machine"] != host["machine"]:
            found.append(("machine", manifest["machine"], host["machine"]))
        same_libc = manifest["libc"].split()[:1] == host["libc"].split()[:1]
        if not same_libc or numbers(host["libc"]) < numbers(manifest["libc"]):
            found.append(("libc", f"{manifest['libc']} or newer", host["libc"]))
    oldest_python = re.match(r"cp3(\d{1,3})-abi3$", manifest["python"], re.ASCII)
    python = re.match(r"cp3(\d{1,3})$", host["python"], re.ASCII)
    if not (oldest_python and python and int(python.group(1)) >= int(oldest_python.group(1))):
        found.append(("python", f"{manifest['python']} (that CPython or a newer one)", host["python"]))
    return found


# End of the policy.


def manifest() -> dict[str, Any] | None:
    """The record of this build, or None in a source checkout. `RuntimeMismatch`: it is missing or damaged."""
    from ._native import RuntimeMismatch

    path = Path(__file__).with_name(MANIFEST_NAME)
    try:
        with path.open("rb") as file:
            text = file.read(MAX_MANIFEST_BYTES + 1)
    except FileNotFoundError:
        if _in_source_checkout(path.parent):
            return None
        raise RuntimeMismatch(
            f"This installation of mm-libtorch-encoder has no runtime record ({MANIFEST_NAME}), so it is "
            "unknown which Torch it fits. Install a wheel made by build_wheel.py."
        ) from None
    except OSError:
        raise RuntimeMismatch(
            f"The runtime record {MANIFEST_NAME} of mm-libtorch-encoder cannot be read. "
            "Install the wheel again."
        ) from None
    try:
        return parse_manifest(text)
    except ValueError as error:
        raise RuntimeMismatch(
            f"The runtime record {MANIFEST_NAME} of mm-libtorch-encoder {error}. Install the wheel again."
        ) from None


def mismatch(manifest: dict[str, Any], host: dict[str, Any]) -> str | None:
    """One sentence on every differing field and on the wheel that would fit; None where this wheel fits."""
    found = differences(manifest, host)
    if not found:
        return None
    fields = "; ".join(f"{field}: built for {wanted}, host has {has}" for field, wanted, has in found)
    key = runtime_key(manifest["policy"], manifest["cuda"] is not None, host)
    if key is None:
        advice = "No wheel fits this host before it has Torch {}.{} or newer.".format(*OLDEST_TORCH)
    elif key == manifest["key"]:
        advice = (
            f"A wheel with runtime key {key}, built for such a host, would fit (build_wheel.py makes one)."
        )
    else:
        advice = (
            f"A wheel with runtime key {key} would fit (build_wheel.py makes one, install_wheel.py picks it)."
        )
    name = f"mm-libtorch-encoder {manifest['package']} (runtime key {manifest['key']})"
    return f"{name} does not fit this host: {fields}. {advice}"


_fits = False


def check() -> None:
    """Raises `RuntimeMismatch` unless this build fits the host. Imports Torch; a success is remembered."""
    global _fits
    if _fits:
        return
    from ._native import RuntimeMismatch, __version__

    record = manifest()
    try:
        host = host_facts()
    except Exception as error:
        raise RuntimeMismatch(
            "Torch is installed but cannot be imported, so nothing that needs it can run. "
            "`import torch` shows why."
        ) from error
    if record is None:
        record = _development_record(host, __version__)
    if record["package"] != __version__:
        raise RuntimeMismatch(
            "Parts of two releases of mm-libtorch-encoder are mixed: "
            f"the runtime record is of {record['package']}, the native library of {__version__}. "
            "Install the wheel again."
        )
    sentence = mismatch(record, host)
    if sentence is not None:
        raise RuntimeMismatch(sentence)
    _fits = True


def _in_source_checkout(package: Path) -> bool:
    """Is `package` the python/mm_libtorch_encoder folder of the project's own tree?"""
    try:
        return 'name = "mm-libtorch-encoder"' in (package.parents[1] / "Cargo.toml").read_text("utf-8")
    except (OSError, UnicodeDecodeError, IndexError):
        return False


def _development_record(host: dict[str, Any], version: str) -> dict[str, Any]:
    """Stands for a bridge compiled on this very host: any supported Torch fits."""
    record = {field: host.get(field) for field in MANIFEST_FIELDS}
    record.update(package=version, policy="stable", key="development", cuda=None, python="cp311-abi3")
    record["torch"] = host["torch"] or "none"
    return record
