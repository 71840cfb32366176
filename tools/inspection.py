"""Judges a finished wheel: what is inside, what it asks of its host, whether its record tells the truth."""

from __future__ import annotations

import csv
import json
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import install_wheel
from tools import cuda, elf, wheelfile

PACKAGE = install_wheel.PACKAGE
NATIVE = f"{PACKAGE}/_native.abi3.so"
BRIDGE = f"{PACKAGE}/libmm_torch.so"
CUDA = f"{PACKAGE}/{cuda.LIBRARY}"
GRAFTS = f"{PACKAGE}.libs"

# The oldest host that is promised: Debian 12.
NEWEST_GLIBC = (2, 36)
NEWEST_GLIBCXX = (3, 4, 30)

# What a host always has. Each of our libraries may need these, its grafts, and what ALSO names.
SYSTEM = re.compile(r"(libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+|ld-linux-[\w-]+)\.so(\.\d+)*")
ALSO = {
    BRIDGE: r"libtorch_cpu\.so",
    CUDA: r"libtorch_cuda\.so|libcudart\.so\.{major}|libcublasLt\.so\.{major}",
}


@dataclass
class Expected:
    """What the build meant to make."""

    version: str  # of Cargo.toml
    manifest: dict[str, Any]
    sources: Path  # the package's Python files, which have to be in the wheel unchanged
    bridge: bool  # is the LibTorch bridge part of the package?
    private_paths: tuple[str, ...] = ()  # folders of the build machine that must not show


@dataclass
class Report:
    """Facts for people to read, and problems; a wheel with a problem is not released."""

    facts: list[tuple[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def dotted(version: tuple[int, ...]) -> str:
    """(2, 34) as "2.34"; "none" for ()."""
    return ".".join(str(part) for part in version) or "none"


def inspect(wheel: Path, expected: Expected) -> Report:
    """Unpacks `wheel` and looks at every part of it."""
    report = Report()
    with tempfile.TemporaryDirectory(prefix="mm-inspect-") as scratch:
        folder = Path(scratch)
        wheelfile.unpack(wheel, folder)
        files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
        _contents(report, files, expected)
        _record(report, files)
        _libraries(report, files, expected)
        _gpu_code(report, files, expected)
        _licences(report, files)
        _names(report, wheel, files, expected)
    return report


def shared_objects(files: dict[str, Path]) -> dict[str, elf.SharedObject]:
    """The shared objects of an unpacked wheel, with their facts."""
    return {name: elf.read(path) for name, path in sorted(files.items()) if re.search(r"\.so(\.\d+)*$", name)}


def libc_floor(objects: dict[str, elf.SharedObject]) -> tuple[int, ...]:
    """The oldest glibc on which all of them load."""
    return max((item.glibc for item in objects.values()), default=())


def _contents(report: Report, files: dict[str, Path], expected: Expected) -> None:
    required = {NATIVE, install_wheel.MANIFEST_PATH} | ({BRIDGE} if expected.bridge else set())
    required |= {CUDA} if expected.manifest["cuda"] else set()
    for source in sorted(expected.sources.rglob("*")):
        if source.suffix in (".py", ".pyi") or source.name == "py.typed":
            name = f"{PACKAGE}/{source.relative_to(expected.sources).as_posix()}"
            required.add(name)
            if name in files and files[name].read_bytes() != source.read_bytes():
                report.problems.append(f"{name} differs from the source tree.")
    report.problems += [f"{name} is missing." for name in sorted(required - set(files))]
    for name in sorted(set(files) - required):
        if not re.match(rf"{PACKAGE}-[^/]+\.dist-info/|{re.escape(GRAFTS)}/", name):
            report.problems.append(f"{name} does not belong into the wheel.")
    report.facts.append(("files", str(len(files))))


def _record(report: Report, files: dict[str, Path]) -> None:
    listed: dict[str, str] = {}
    for name, path in files.items():
        if name.endswith(".dist-info/RECORD"):
            listed.update(
                (row[0], row[1]) for row in csv.reader(path.read_text("utf-8").splitlines()) if len(row) == 3
            )
    if set(listed) != set(files):
        report.problems.append("RECORD does not list exactly the files of the wheel.")
    for name in sorted(set(listed) & set(files)):
        if listed[name] and listed[name] != wheelfile.record_hash(files[name].read_bytes()):
            report.problems.append(f"RECORD has another hash for {name}.")


def _libraries(report: Report, files: dict[str, Path], expected: Expected) -> None:
    objects = shared_objects(files)
    grafts = {Path(name).name for name in objects if name.startswith(f"{GRAFTS}/")}
    major = ".".join(str(part) for part in install_wheel.numbers(expected.manifest["cuda"])[:1])
    for name, item in objects.items():
        report.facts.append((name.rpartition("/")[2], "needs " + (", ".join(item.needed) or "nothing")))
        also = ALSO.get(name, "").format(major=major)
        for needed in item.needed:
            if needed not in grafts and not re.fullmatch(also, needed) and not SYSTEM.fullmatch(needed):
                report.problems.append(f"{name} needs {needed}, which a host need not have.")
        wanted = f"$ORIGIN/../{GRAFTS}" if name.startswith(f"{PACKAGE}/") else "$ORIGIN"
        for search_path in item.search_paths:
            if search_path != wanted or not grafts:
                report.problems.append(f"{name} has the library search path {search_path}.")
        if item.glibcxx > NEWEST_GLIBCXX:
            report.problems.append(
                f"{name} needs GLIBCXX_{dotted(item.glibcxx)}; {dotted(NEWEST_GLIBCXX)} is promised."
            )
        if item.glibc > NEWEST_GLIBC:
            report.problems.append(
                f"{name} needs GLIBC_{dotted(item.glibc)}; {dotted(NEWEST_GLIBC)} is promised."
            )
    for name, path in sorted(files.items()):
        content = path.read_bytes()
        shows = [folder for folder in expected.private_paths if folder.encode() in content]
        if shows:
            report.problems.append(f"{name} shows the build machine's path {shows[0]}.")
    report.facts.append(("highest GLIBC", dotted(libc_floor(objects))))
    report.facts.append(
        ("highest GLIBCXX", dotted(max((item.glibcxx for item in objects.values()), default=())))
    )


def _gpu_code(report: Report, files: dict[str, Path], expected: Expected) -> None:
    if CUDA not in files:
        return
    try:
        code = elf.gpu_code(files[CUDA])
    except ValueError as error:
        report.problems.append(f"{error}.")
        return
    missing = [number for number in cuda.REQUIRED_ARCHITECTURES if number not in code.machine]
    if missing:
        report.problems.append(f"{CUDA} has no machine code for sm_{', sm_'.join(missing)}.")
    if cuda.OLDEST_ARCHITECTURE not in code.intermediate:
        report.problems.append(
            f"{CUDA} has no intermediate code of compute_{cuda.OLDEST_ARCHITECTURE} for other GPUs."
        )
    listed = ", ".join(f"sm_{number}" for number in code.machine) or "nothing"
    report.facts.append(("GPU code", f"{listed}; PTX of {', '.join(code.intermediate) or 'nothing'}"))


def _licences(report: Report, files: dict[str, Path]) -> None:
    texts = {
        name.partition("/licenses/")[2]: path
        for name, path in files.items()
        if ".dist-info/licenses/" in name
    }
    for name in ("LICENSE", "rust-crates.txt"):
        if name not in texts or not texts[name].read_text("utf-8").strip():
            report.problems.append(f"The licence text {name} is missing or empty.")
    boms = {name.rpartition("/")[2]: path for name, path in files.items() if ".dist-info/sboms/" in name}
    if "mm-libtorch-encoder.cyclonedx.json" not in boms:
        report.problems.append("The bill of materials of the Rust crates is missing.")
    grafts = [name for name in files if name.startswith(f"{GRAFTS}/")]
    if grafts:
        packages: list[str] = []
        if "auditwheel.cdx.json" in boms:
            components = json.loads(boms["auditwheel.cdx.json"].read_text("utf-8"))["components"]
            packages = [item["name"] for item in components if not item["purl"].startswith("pkg:pypi/")]
        if len(packages) < len(grafts):
            report.problems.append("The bill of materials does not name the origin of every grafted library.")
        report.problems += [
            f"The licence text of the grafted {package} is missing."
            for package in sorted(set(packages))
            if f"{package}.txt" not in texts
        ]
    report.facts.append(("licence texts", ", ".join(sorted(texts))))
    report.facts.append(("bills of materials", ", ".join(sorted(boms))))


def _names(report: Report, wheel: Path, files: dict[str, Path], expected: Expected) -> None:
    """Name, tags, metadata and record say the same."""
    try:
        manifest = install_wheel.read_manifest(wheel)
    except ValueError as error:
        report.problems.append(f"The wheel {error}.")
        return
    if manifest != expected.manifest:
        fields = sorted(key for key in expected.manifest if manifest.get(key) != expected.manifest[key])
        report.problems.append(
            f"The runtime record differs from the build in {', '.join(fields) or 'extra fields'}."
        )
    metadata = "".join(
        path.read_text("utf-8") for name, path in files.items() if name.endswith(".dist-info/METADATA")
    )
    stated = re.search(r"^Version: (.*)$", metadata, re.MULTILINE)
    parts = wheel.name.removesuffix(".whl").split("-")
    if {stated and stated.group(1), parts[1], manifest["package"]} != {expected.version}:
        report.problems.append(
            f"File name, metadata and record do not all say version {expected.version} of Cargo.toml."
        )
    if parts[2:4] != ["cp311", "abi3"]:
        report.problems.append(f"The wheel is tagged {'-'.join(parts[2:4])} instead of cp311-abi3.")
    platform, machine = parts[-1], manifest["machine"]
    if manifest["policy"] == "exact":
        if platform != f"linux_{machine}":
            report.problems.append(f"An exact wheel is tagged linux_{machine}, not {platform}.")
    else:
        many = re.fullmatch(rf"manylinux_(\d+)_(\d+)_{re.escape(machine)}", platform)
        tag = (int(many.group(1)), int(many.group(2))) if many else ()
        if not (tag and libc_floor(shared_objects(files)) <= tag <= NEWEST_GLIBC):
            report.problems.append(f"The platform tag {platform} does not cover what the libraries need.")
    wheel_tags = "".join(
        path.read_text("utf-8") for name, path in files.items() if name.endswith(".dist-info/WHEEL")
    )
    if f"Tag: {'-'.join(parts[2:])}" not in wheel_tags.splitlines():
        report.problems.append("The WHEEL file and the file name have different tags.")
