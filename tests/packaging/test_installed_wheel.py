"""The package as installed: what its libraries ask for, what importing it costs, how its names resolve."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import mm_libtorch_encoder
from tools import inspection

FOREIGN = re.compile(r"torch|c10|cuda|cublas|python", re.IGNORECASE)


def readelf(option: str, library: Path) -> str:
    return subprocess.run(["readelf", option, library], check=True, capture_output=True, text=True).stdout


def libraries(package: Path) -> list[Path]:
    grafts = package.with_name(f"{package.name}.libs")
    return [*package.glob("*.so"), *grafts.glob("*.so*")]


def test_the_extension_needs_neither_torch_nor_python(package: Path) -> None:
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("-d", package / "_native.abi3.so"))
    assert needed
    assert [name for name in needed if FOREIGN.search(name)] == []


def test_the_bridge_needs_only_the_cpu_library_of_torch(package: Path) -> None:
    dynamic = readelf("-d", package / "libmm_torch.so")
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    assert [name for name in needed if FOREIGN.search(name)] == ["libtorch_cpu.so"]
    assert "RPATH" not in dynamic
    assert "RUNPATH" not in dynamic


def test_the_promised_glibc_suffices(package: Path) -> None:
    for library in libraries(package):
        versions = re.findall(r"Name: GLIBC_([\d.]+)", readelf("-V", library))
        numbers = [tuple(map(int, text.split("."))) for text in versions]
        assert max(numbers, default=()) <= inspection.NEWEST_GLIBC, library.name


def test_the_record_states_the_measured_glibc(package: Path) -> None:
    record = mm_libtorch_encoder.runtime.manifest()
    if record is None:
        pytest.skip("a source checkout has no record")
    versions = [
        text
        for library in libraries(package)
        for text in re.findall(r"GLIBC_([\d.]+)", readelf("-V", library))
    ]
    floor = max(tuple(map(int, text.split("."))) for text in versions)
    assert record["libc"] == "glibc " + ".".join(map(str, floor))
    assert record["package"] == mm_libtorch_encoder.__version__


def test_versions_agree(root: Path) -> None:
    from importlib.metadata import version

    import build_wheel

    assert mm_libtorch_encoder.__version__ == version("mm-libtorch-encoder") == build_wheel.version()


def test_import_is_quick_and_loads_neither_torch_nor_numpy() -> None:
    program = (
        "import sys, time\nstart = time.process_time()\nimport mm_libtorch_encoder\n"
        "print(time.process_time() - start, [name for name in ('torch', 'numpy') if name in sys.modules])"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, text=True
        ).stdout.split(None, 1)
        for _ in range(5)
    ]
    assert [loaded.strip() for _, loaded in outputs] == ["[]"] * 5
    # Processor time and the best of five, so that a busy machine does not matter.
    assert min(float(seconds) for seconds, _ in outputs) < 0.05


def test_exceptions_and_data_classes_need_no_torch() -> None:
    program = (
        "import sys\n"
        "from mm_libtorch_encoder import CheckpointError, DeviceOutOfMemory, EncoderClosed, MediaError\n"
        "from mm_libtorch_encoder import ImageMetadata, ImageResult, RuntimeMismatch, preprocess\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_every_public_name_has_a_home() -> None:
    assert sorted(mm_libtorch_encoder.__all__) == sorted(mm_libtorch_encoder._HOME)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'mm_libtorch_encoder' has no attribute 'Decoder'"):
        mm_libtorch_encoder.Decoder  # noqa: B018


def test_bases_of_the_exceptions() -> None:
    for name, base in {
        "MediaError": ValueError,
        "CheckpointError": ValueError,
        "RuntimeMismatch": RuntimeError,
        "EncoderClosed": RuntimeError,
        "DeviceOutOfMemory": RuntimeError,
    }.items():
        assert issubclass(getattr(mm_libtorch_encoder, name), base)
