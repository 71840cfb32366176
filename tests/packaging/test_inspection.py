"""The inspection finds every fault that it promises to find, on small wheels made and spoilt here."""

from __future__ import annotations

import json
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools import elf, inspection, wheelfile

PLATFORM = "manylinux_2_34_x86_64"
GRAFT = "libjpeg-dad87949.so.62.3.0"


def compile_library(path: Path, *flags: str, source: str = "int f(void) { return 1; }") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [
        "g++",
        "-x",
        "c",
        "-",
        "-x",
        "none",
        "-shared",
        "-fPIC",
        "-nostdlib",
        f"-Wl,-soname,{path.name}",
        "-o",
        str(path),
    ]
    subprocess.run([*command, "-Wl,--no-as-needed", *flags], input=source.encode(), check=True)
    return path


class Sample:
    """An unpacked wheel that passes, to be spoilt."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.base = folder
        self.manifest = {**manifest, "cuda": None}
        self.folder = folder / "wheel"
        self.package = self.folder / "mm_libtorch_encoder"
        self.information = self.folder / "mm_libtorch_encoder-0.3.0.dist-info"
        self.sources = folder / "sources"
        self.libraries = folder / "libraries"
        self.name = f"mm_libtorch_encoder-0.3.0-cp311-abi3-{PLATFORM}.whl"
        for place in (self.package, self.sources):
            place.mkdir(parents=True)
            (place / "__init__.py").write_text('"""Package."""\n')
            (place / "py.typed").touch()
        self.cpu = compile_library(self.libraries / "libtorch_cpu.so")
        graft = compile_library(self.folder / "mm_libtorch_encoder.libs" / GRAFT)
        grafts = "-Wl,--disable-new-dtags,-rpath,$ORIGIN/../mm_libtorch_encoder.libs"
        compile_library(self.package / "_native.abi3.so", str(graft), grafts)
        compile_library(self.package / "libmm_torch.so", str(self.cpu))
        for path, text in {
            "METADATA": "Metadata-Version: 2.4\nName: mm-libtorch-encoder\nVersion: 0.3.0\n",
            "WHEEL": f"Wheel-Version: 1.0\nTag: cp311-abi3-{PLATFORM}\n",
            "licenses/LICENSE": "text",
            "licenses/rust-crates.txt": "text",
            "licenses/libjpeg62-turbo.txt": "text",
            "sboms/mm-libtorch-encoder.cyclonedx.json": "{}",
            "sboms/auditwheel.cdx.json": json.dumps(
                {
                    "components": [
                        {"name": "libjpeg62-turbo", "purl": "pkg:deb/debian/libjpeg62-turbo@1%3A2.1.5-2"}
                    ]
                }
            ),
        }.items():
            (self.information / path).parent.mkdir(parents=True, exist_ok=True)
            (self.information / path).write_text(text)

    def problems(self, after: Callable[[Path], None] | None = None) -> list[str]:
        """Packs and inspects; `after` may spoil the packed file."""
        (self.package / "_runtime.json").write_text(json.dumps(self.manifest))
        wheel = self.base / self.name
        wheelfile.pack(self.folder, wheel)
        if after:
            after(wheel)
        expected = inspection.Expected(
            version="0.3.0",
            manifest={**self.manifest, "torch": "2.14.1+cu130"},
            sources=self.sources,
            bridge=True,
            private_paths=("/home/builder/project",),
        )
        return inspection.inspect(wheel, expected).problems


@pytest.fixture
def sample(tmp_path: Path, manifest: dict[str, Any]) -> Sample:
    return Sample(tmp_path, manifest)


def test_a_good_wheel_has_no_problem(sample: Sample) -> None:
    assert sample.problems() == []


def native_needs_torch(sample: Sample) -> None:
    compile_library(sample.package / "_native.abi3.so", str(sample.cpu))


def native_needs_cuda(sample: Sample) -> None:
    compile_library(
        sample.package / "_native.abi3.so", str(compile_library(sample.libraries / "libcudart.so.13"))
    )


def native_needs_python(sample: Sample) -> None:
    library = compile_library(sample.libraries / "libpython3.11.so.1.0")
    compile_library(sample.package / "_native.abi3.so", str(library))


def bridge_needs_cuda_torch(sample: Sample) -> None:
    compile_library(
        sample.package / "libmm_torch.so", str(compile_library(sample.libraries / "libtorch_cuda.so"))
    )


def bridge_knows_a_path(sample: Sample) -> None:
    compile_library(sample.package / "libmm_torch.so", str(sample.cpu), "-Wl,-rpath,/opt/torch/lib")


def needs_version(sample: Sample, library: str, version: str) -> None:
    versions = sample.base / "versions"
    versions.write_text(f"{version} {{ fresh; }};")
    flags = ("-Wl,--version-script", str(versions))
    newer = compile_library(sample.libraries / library, *flags, source="int fresh(void) { return 1; }")
    source = "int fresh(void); int g(void) { return fresh(); }"
    compile_library(sample.package / "libmm_torch.so", str(sample.cpu), str(newer), source=source)


def new_glibc(sample: Sample) -> None:
    needs_version(sample, "libc.so.6", "GLIBC_2.39")


def new_libstdcxx(sample: Sample) -> None:
    needs_version(sample, "libstdc++.so.6", "GLIBCXX_3.4.31")


def no_bridge(sample: Sample) -> None:
    (sample.package / "libmm_torch.so").unlink()


def no_native(sample: Sample) -> None:
    (sample.package / "_native.abi3.so").unlink()


def stray_file(sample: Sample) -> None:
    (sample.package / "__pycache__").mkdir()
    (sample.package / "__pycache__" / "x.pyc").touch()


def old_source(sample: Sample) -> None:
    (sample.sources / "__init__.py").write_text('"""Newer."""\n')


def source_left_out(sample: Sample) -> None:
    (sample.sources / "new.py").touch()


def empty_licence(sample: Sample) -> None:
    (sample.information / "licenses" / "LICENSE").write_text("")


def no_graft_licence(sample: Sample) -> None:
    (sample.information / "licenses" / "libjpeg62-turbo.txt").unlink()


def no_graft_origin(sample: Sample) -> None:
    (sample.information / "sboms" / "auditwheel.cdx.json").unlink()


def no_crate_bom(sample: Sample) -> None:
    (sample.information / "sboms" / "mm-libtorch-encoder.cyclonedx.json").unlink()


def private_path(sample: Sample) -> None:
    compile_library(
        sample.package / "libmm_torch.so",
        str(sample.cpu),
        source='const char *where(void) { return "/home/builder/project/src/a.c"; }',
    )


def other_metadata_version(sample: Sample) -> None:
    (sample.information / "METADATA").write_text("Name: mm-libtorch-encoder\nVersion: 0.2.9\n")


def other_name_version(sample: Sample) -> None:
    sample.name = f"mm_libtorch_encoder-0.2.9-cp311-abi3-{PLATFORM}.whl"


def other_torch_in_record(sample: Sample) -> None:
    sample.manifest["torch"] = "2.15.0"


def damaged_record(sample: Sample) -> None:
    del sample.manifest["policy"]


def linux_tag(sample: Sample) -> None:
    sample.name = "mm_libtorch_encoder-0.3.0-cp311-abi3-linux_x86_64.whl"


def too_new_tag(sample: Sample) -> None:
    sample.name = "mm_libtorch_encoder-0.3.0-cp311-abi3-manylinux_2_39_x86_64.whl"


def exact_with_manylinux(sample: Sample) -> None:
    sample.manifest["policy"] = "exact"


def one_python_only(sample: Sample) -> None:
    sample.name = f"mm_libtorch_encoder-0.3.0-cp311-cp311-{PLATFORM}.whl"


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (native_needs_torch, "_native.abi3.so needs libtorch_cpu.so, which a host need not have"),
        (native_needs_cuda, "_native.abi3.so needs libcudart.so.13"),
        (native_needs_python, "_native.abi3.so needs libpython3.11.so.1.0"),
        (bridge_needs_cuda_torch, "libmm_torch.so needs libtorch_cuda.so"),
        (bridge_knows_a_path, "libmm_torch.so has the library search path /opt/torch/lib"),
        (new_glibc, "libmm_torch.so needs GLIBC_2.39; 2.36 is promised"),
        (new_libstdcxx, "libmm_torch.so needs GLIBCXX_3.4.31; 3.4.30 is promised"),
        (no_bridge, "libmm_torch.so is missing"),
        (no_native, "_native.abi3.so is missing"),
        (stray_file, "x.pyc does not belong into the wheel"),
        (old_source, "__init__.py differs from the source tree"),
        (source_left_out, "new.py is missing"),
        (empty_licence, "LICENSE is missing or empty"),
        (no_graft_licence, "licence text of the grafted libjpeg62-turbo is missing"),
        (no_graft_origin, "does not name the origin of every grafted library"),
        (no_crate_bom, "bill of materials of the Rust crates is missing"),
        (private_path, "libmm_torch.so shows the build machine's path /home/builder/project"),
        (other_metadata_version, "do not all say version 0.3.0"),
        (other_name_version, "do not all say version 0.3.0"),
        (other_torch_in_record, "differs from the build in torch"),
        (damaged_record, "its runtime record lacks the field 'policy'"),
        (linux_tag, "platform tag linux_x86_64 does not cover"),
        (too_new_tag, "platform tag manylinux_2_39_x86_64 does not cover"),
        (exact_with_manylinux, "An exact wheel is tagged linux_x86_64"),
        (one_python_only, "tagged cp311-cp311 instead of cp311-abi3"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_every_fault_is_found(sample: Sample, spoil: Callable[[Sample], None], problem: str) -> None:
    spoil(sample)
    problems = sample.problems()
    assert any(problem in sentence for sentence in problems), problems


def test_record_hashes_are_checked(sample: Sample) -> None:
    def change(wheel: Path) -> None:
        with zipfile.ZipFile(wheel) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        files["mm_libtorch_encoder/py.typed"] = b"changed"
        files["mm_libtorch_encoder-0.3.0.dist-info/added"] = b""
        with zipfile.ZipFile(wheel, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)

    problems = sample.problems(change)
    assert "RECORD has another hash for mm_libtorch_encoder/py.typed." in problems
    assert "RECORD does not list exactly the files of the wheel." in problems


def test_packing_gives_the_same_bytes_again(sample: Sample) -> None:
    sample.problems()
    first = (sample.base / sample.name).read_bytes()
    for path in sample.folder.rglob("*"):
        path.touch()
    sample.problems()
    assert (sample.base / sample.name).read_bytes() == first


def test_the_elf_reader_agrees_with_readelf(package: Path) -> None:
    import re

    for library in package.glob("*.so"):
        item = elf.read(library)
        dynamic = subprocess.run(
            ["readelf", "-d", library], check=True, capture_output=True, text=True
        ).stdout
        versions = subprocess.run(
            ["readelf", "-V", library], check=True, capture_output=True, text=True
        ).stdout
        assert item.needed == tuple(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
        glibc = [tuple(map(int, text.split("."))) for text in re.findall(r"Name: GLIBC_([\d.]+)", versions)]
        assert item.glibc == max(glibc, default=())
