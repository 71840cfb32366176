#!/usr/bin/env python3
"""Picks the one wheel of a wheelhouse that fits a Python's Torch, and installs it with --no-deps.

    python install_wheel.py WHEELHOUSE [--dry-run] [--python PY]

Needs nothing but the standard library, downloads nothing and never touches Torch. Every wheel below
WHEELHOUSE is judged by the runtime record inside it. Where none or several fit, all are listed with the
reason and the exit code is 1.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import struct
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGE = "mm_libtorch_encoder"
MANIFEST_PATH = f"{PACKAGE}/_runtime.json"

# Bounds of what is read from a wheelhouse; anyone may have put a file there.
MAX_WHEELS = 1000
MAX_FOLDERS = 100_000
MAX_DIRECTORY_BYTES = 4 * 1024 * 1024  # of one wheel's table of contents
MAX_CELL = 120
PROBE_SECONDS = 300

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


class Failure(Exception):
    """Ends the program with this sentence."""


@dataclass
class Wheel:
    """One file of the wheelhouse: its record, and why it cannot be used."""

    path: Path
    manifest: dict[str, Any] | None
    reasons: list[str]


def find_wheels(wheelhouse: Path) -> list[Path]:
    """All *.whl files below `wheelhouse`, sorted; links to folders are not followed."""
    found: list[Path] = []
    for count, (folder, _, files) in enumerate(os.walk(wheelhouse)):
        if count >= MAX_FOLDERS:
            raise Failure(
                f"{wheelhouse} holds more than {MAX_FOLDERS} folders; name the folder of the wheels."
            )
        found += [Path(folder, name) for name in files if name.endswith(".whl")]
        if len(found) > MAX_WHEELS:
            raise Failure(f"{wheelhouse} holds more than {MAX_WHEELS} wheels; name a smaller folder.")
    return sorted(found)


def read_manifest(path: Path) -> dict[str, Any]:
    """The runtime record inside a wheel. ValueError with a reason where there is none that can be trusted."""
    if not path.is_file():
        raise ValueError("is not a regular file")
    try:
        with path.open("rb") as file:
            _check_directory_size(file)
            with zipfile.ZipFile(file) as archive:
                entries = [entry for entry in archive.infolist() if entry.filename == MANIFEST_PATH]
                if len(entries) != 1:
                    raise ValueError(
                        "holds no runtime record" if not entries else "holds several runtime records"
                    )
                if entries[0].compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise ValueError("its runtime record is compressed in an unusual way")
                if entries[0].file_size > MAX_MANIFEST_BYTES:
                    raise ValueError(f"its runtime record is larger than {MAX_MANIFEST_BYTES} bytes")
                with archive.open(entries[0]) as member:
                    text = member.read(MAX_MANIFEST_BYTES + 1)
    except OSError:
        raise ValueError("cannot be read") from None
    except ValueError:
        raise
    except Exception:  # zipfile and its decompressors raise many kinds on a damaged or encrypted file
        raise ValueError("is not a valid wheel file") from None
    try:
        return parse_manifest(text)
    except ValueError as error:
        raise ValueError(f"its runtime record {error}") from None


def _check_directory_size(file: Any) -> None:
    """Bounds the table of contents before zipfile reads all of it into memory.

    Wheels carry no archive comment and no zip64 part, so the end record is exactly the last 22 bytes; a file
    made otherwise is refused, which leaves zipfile no second way to read it.
    """
    size = file.seek(0, os.SEEK_END)
    if size < 22:
        raise ValueError("is not a valid wheel file")
    start = max(0, size - 42)
    file.seek(start)
    tail = file.read(size - start)
    signature, directory_bytes, comment_bytes = struct.unpack("<4s8xI4xH", tail[-22:])
    if signature != b"PK\x05\x06" or comment_bytes or tail[:-22].startswith(b"PK\x06\x07"):
        raise ValueError("is not a valid wheel file")
    if directory_bytes > MAX_DIRECTORY_BYTES:
        raise ValueError(f"its table of contents is larger than {MAX_DIRECTORY_BYTES} bytes")


def tag_problem(path: Path, manifest: dict[str, Any], host: dict[str, Any]) -> str | None:
    """Why the tags in the file name do not fit `host`, or do not belong to the record; None where they do."""
    parts = path.name[: -len(".whl")].split("-")
    if len(parts) not in (5, 6) or parts[0] != PACKAGE:
        return "is not a wheel of mm-libtorch-encoder"
    if parts[1] != manifest["package"]:
        return f"its name says version {parts[1]}, its record {manifest['package']}"
    pythons, abis, platforms = (part.split(".") for part in parts[-3:])
    if "abi3" in abis and f"{pythons[0]}-abi3" != manifest["python"]:
        return f"its name says {pythons[0]}-abi3, its record {manifest['python']}"
    if "abi3" not in abis and host["python"] not in abis:
        return f"built for {'.'.join(abis)}, host has {host['python']}"
    if not any(_platform_fits(platform, host) for platform in platforms):
        return f"built for {'.'.join(platforms)}, host has {host['machine']} with {host['libc']}"
    return None


def _platform_fits(platform: str, host: dict[str, Any]) -> bool:
    many = re.match(r"manylinux_(\d{1,4})_(\d{1,4})_(\w+)$", platform, re.ASCII)
    if many:
        enough = host["libc"].startswith("glibc ") and numbers(host["libc"]) >= (
            int(many.group(1)),
            int(many.group(2)),
        )
        return enough and many.group(3) == host["machine"]
    return platform == f"linux_{host['machine']}"


def judge(path: Path, host: dict[str, Any]) -> Wheel:
    """Reads one wheel and lists every reason against it."""
    if not path.name.startswith(f"{PACKAGE}-"):
        return Wheel(path, None, ["is not a wheel of mm-libtorch-encoder"])
    try:
        manifest = read_manifest(path)
    except ValueError as error:
        return Wheel(path, None, [str(error)])
    reasons = [
        f"{field}: built for {wanted}, host has {has}" for field, wanted, has in differences(manifest, host)
    ]
    if not reasons:
        problem = tag_problem(path, manifest, host)
        reasons = [problem] if problem else []
    return Wheel(path, manifest, reasons)


def probe(python: str) -> dict[str, Any]:
    """The facts of another interpreter, which needs nothing of this project."""
    # Without the current folder on its path, so that a file called torch.py in it is not taken for Torch.
    program = (
        "from __future__ import annotations\n"
        "import sys\nsys.path[:] = [entry for entry in sys.path if entry]\n"
        f"import json\n{inspect.getsource(host_facts)}\nprint()\nprint(json.dumps(host_facts()))"
    )
    try:
        done = subprocess.run(
            [python, "-c", program], stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_SECONDS
        )
    except OSError:
        raise Failure(f"{shown(python)} cannot be run; give --python the path of an interpreter.") from None
    except subprocess.TimeoutExpired:
        raise Failure(f"{shown(python)} did not import its Torch within {PROBE_SECONDS} seconds.") from None
    if done.returncode:
        raise Failure(
            f"{shown(python)} cannot import its Torch; `{shown(python)} -c 'import torch'` shows why."
        )
    facts: dict[str, Any] = json.loads(done.stdout.decode("utf-8", "replace").splitlines()[-1])
    return facts


def shown(text: object) -> str:
    """Text from outside, made safe to print."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text))


def cell(text: object) -> str:
    """The same, cut to what a table bears."""
    safe = shown(text)
    return safe if len(safe) <= MAX_CELL else safe[: MAX_CELL - 3] + "..."


def table(wheels: list[Wheel], wheelhouse: Path) -> str:
    """Every wheel with its runtime key and the reasons against it, one reason a line."""
    rows = [("wheel", "runtime key", "verdict")]
    for wheel in wheels:
        name = cell(os.path.relpath(wheel.path, wheelhouse))
        key = cell(wheel.manifest["key"]) if wheel.manifest else "-"
        first, *rest = [cell(reason) for reason in wheel.reasons] or ["fits"]
        rows.append((name, key, first))
        rows += [("", "", reason) for reason in rest]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    rows.insert(1, ("-" * widths[0], "-" * widths[1], "-" * 7))
    return "\n".join(f"{name:{widths[0]}}  {key:{widths[1]}}  {verdict}" for name, key, verdict in rows)


def describe(host: dict[str, Any]) -> str:
    """One line on the target."""
    torch = "no Torch" if host["torch"] is None else f"Torch {host['torch']}"
    cuda = f", CUDA {host['torch_cuda']}" if host["torch_cuda"] else ""
    return shown(f"{torch}{cuda}, {host['python']}, {host['machine']}, {host['libc']}")


def advice(host: dict[str, Any], fitting: int) -> str:
    """What to do when not exactly one wheel fits."""
    if fitting:
        return "Name a folder that holds only the wanted one."
    keys = sorted({runtime_key("stable", kernels, host) or "" for kernels in (True, False)})
    if not keys[0]:
        return "Install Torch {}.{} or newer first; this program never does.".format(*OLDEST_TORCH)
    return f"A wheel with runtime key {' or '.join(keys)} would fit; build_wheel.py makes one."


def install(python: str, wheel: Path) -> None:
    """pip, bound to this one file."""
    have_pip = subprocess.run(
        [python, "-m", "pip", "--version"], stdin=subprocess.DEVNULL, capture_output=True
    )
    if have_pip.returncode:
        raise Failure(f"{shown(python)} has no pip; `{shown(python)} -m ensurepip` adds it.")
    command = [python, "-m", "pip", "install", "--no-deps", "--force-reinstall", "--no-index", str(wheel)]
    if subprocess.run(command, stdin=subprocess.DEVNULL).returncode:
        raise Failure("pip could not install the wheel; its own words are above.")


def main(arguments: list[str] | None = None) -> int:
    """The command line; the exit code is 0, or 1 with a sentence on stderr."""
    parser = argparse.ArgumentParser(prog="install_wheel.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "wheelhouse", type=Path, metavar="WHEELHOUSE", help="folder that holds wheels, at any depth"
    )
    parser.add_argument("--dry-run", action="store_true", help="say which wheel would be installed, and stop")
    parser.add_argument("--python", default=sys.executable, metavar="PY", help="interpreter to install into")
    options = parser.parse_args(arguments)
    try:
        if not options.wheelhouse.is_dir():
            raise Failure(f"{shown(options.wheelhouse)} is not a folder.")
        host = probe(options.python)
        print(f"Target: {shown(options.python)} ({describe(host)})")
        wheels = [judge(path, host) for path in find_wheels(options.wheelhouse)]
        fitting = [wheel for wheel in wheels if not wheel.reasons]
        if len(fitting) != 1:
            if not wheels:
                raise Failure(f"{shown(options.wheelhouse)} holds no wheel (*.whl). {advice(host, 0)}")
            print(table(wheels, options.wheelhouse))
            count = len(fitting) or "None"
            raise Failure(
                f"{count} of {len(wheels)} wheels fit; exactly one has to. {advice(host, len(fitting))}"
            )
        print(f"Wheel:  {shown(fitting[0].path)}")
        if options.dry_run:
            print("Dry run: nothing was installed.")
            return 0
        install(options.python, fitting[0].path)
    except Failure as failure:
        sys.stdout.flush()
        print(f"install_wheel.py: {failure}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
