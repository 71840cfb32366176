"""Finds a CUDA compiler that fits a Torch, and compiles libmm_cuda.so with it.

python -m tools.cuda [--python PY] puts the library beside the package's Python files, for a source checkout.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from install_wheel import Failure, numbers, probe

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "cuda"
LIBRARY = "libmm_cuda.so"

# Machine code for A100, H100/H200, B200 and the RTX 50 line, where the compiler knows them; the intermediate code of
# the oldest serves every newer GPU, and those between.
ARCHITECTURES = ("80", "90", "100", "120")
OLDEST_ARCHITECTURE = "80"
# Without these a wheel with CUDA kernels is not released.
REQUIRED_ARCHITECTURES = ("80", "90", "100")
# Oldest Torch that the library runs beside, as in build/bridge.rs.
TARGET_VERSION = "0x020b000000000000"
HOST_FLAGS = ("-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror")


@dataclass(frozen=True)
class Toolkit:
    """A CUDA compiler and the folders that belong to it."""

    nvcc: Path
    version: tuple[int, ...]  # (13, 0)

    @property
    def home(self) -> Path:
        """The folder that CUDA_HOME names."""
        return self.nvcc.parent.parent

    @property
    def includes(self) -> list[Path]:
        """Where cuda_runtime_api.h may be."""
        places = (self.home / "include", self.home / "targets" / "x86_64-linux" / "include")
        return [place for place in places if place.is_dir()]

    @property
    def architectures(self) -> list[str]:
        """Those of ARCHITECTURES that this compiler knows."""
        listed = _output([str(self.nvcc), "--list-gpu-code"]).split()
        return [number for number in ARCHITECTURES if f"sm_{number}" in listed]


def find(torch_cuda: str, python: str, environ: Mapping[str, str]) -> Toolkit:
    """The first compiler of exactly Torch's CUDA version; a Failure that says what was found instead."""
    wanted = numbers(torch_cuda)[:2]
    others = []
    for nvcc in _candidates(wanted[0], python, environ):
        text = _output([str(nvcc), "--version"])
        found = re.search(r"release (\d+)\.(\d+)", text)
        version = (int(found.group(1)), int(found.group(2))) if found else ()
        if version == wanted:
            return Toolkit(nvcc, version)
        others.append(f"{nvcc} is of CUDA {'.'.join(map(str, version)) or 'no known version'}")
    instead = f" ({'; '.join(others)})" if others else ""
    raise Failure(
        f"There is no CUDA compiler for Torch's CUDA {torch_cuda}{instead}: "
        "`pip install --no-deps -r requirements/cuda.txt` brings one, or CUDA_HOME names one."
    )


def _candidates(major: int, python: str, environ: Mapping[str, str]) -> list[Path]:
    places = [Path(environ[name]) / "bin" for name in ("CUDA_HOME", "CUDA_PATH") if environ.get(name)]
    # pip's toolkit, of the Python that is built for and of the one that runs this.
    for interpreter in dict.fromkeys((python, sys.executable)):
        prefix = Path(interpreter).parent.parent
        places += sorted(prefix.glob(f"lib/python3*/site-packages/nvidia/cu{major}/bin"))
    on_path = shutil.which("nvcc", path=environ.get("PATH", os.defpath))
    places += [Path(on_path).resolve().parent] if on_path else []
    places += [Path(f"/usr/local/cuda-{major}/bin"), Path("/usr/local/cuda/bin")]
    return [place / "nvcc" for place in dict.fromkeys(places) if (place / "nvcc").is_file()]


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except OSError:
        return ""
    return done.stdout


def torch_folder(python: str) -> Path:
    """The folder of the `torch` package of `python`."""
    script = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    return Path(_output([python, "-c", script]).strip())


def commands(
    toolkit: Toolkit, torch: Path, objects: Path, environ: Mapping[str, str]
) -> tuple[list[list[str]], list[str]]:
    """The compilations, which may run side by side, and the link."""
    compiler = (environ.get("CXX") or "g++").split()
    # One rounding an operation: what the tests of the arithmetic saw on the CPU is what the GPU computes.
    codes = [f"arch=compute_{number},code=sm_{number}" for number in toolkit.architectures]
    codes.append(f"arch=compute_{OLDEST_ARCHITECTURE},code=compute_{OLDEST_ARCHITECTURE}")
    kernels = [str(toolkit.nvcc), f"-ccbin={compiler[0]}", "-std=c++20", "-O3", "-fmad=false", "--threads=2"]
    kernels += [f"-gencode={code}" for code in codes]
    kernels += [f"-Xcompiler={','.join(HOST_FLAGS)}", "-Werror=all-warnings"]
    kernels += ["-c", "kernels.cu", "-o", str(objects / "kernels.o")]
    includes = [part for place in (torch / "include", *toolkit.includes) for part in ("-isystem", str(place))]
    host = [*compiler, "-std=c++20", "-O2", *HOST_FLAGS, "-fno-semantic-interposition", "-DUSE_CUDA"]
    host += [f"-DTORCH_TARGET_VERSION={TARGET_VERSION}", *environ.get("CXXFLAGS", "").split(), *includes]
    names = sorted(path.stem for path in SOURCES.glob("*.cpp"))
    compilations = [
        kernels,
        *([*host, "-c", f"{name}.cpp", "-o", str(objects / f"{name}.o")] for name in names),
    ]
    link = [
        *compiler,
        "-shared",
        f"-Wl,-soname,{LIBRARY}",
        "-Wl,--as-needed",
        "-Wl,-z,now",
        "-Wl,-z,relro",
        "-s",
    ]
    link += ["-o", str(objects / LIBRARY), *(str(objects / f"{name}.o") for name in ("kernels", *names))]
    # pip's packages have no libcudart.so: the library is named in full, and found in the host's process.
    folders = [toolkit.home / "lib", toolkit.home / "lib64", torch / "lib"]
    folders.append(torch.parent / "nvidia" / f"cu{toolkit.version[0]}" / "lib")
    link += [f"-L{place}" for place in folders if place.is_dir()]
    link += ["-ltorch_cuda", f"-l:libcudart.so.{toolkit.version[0]}"]
    return compilations, link


def build(toolkit: Toolkit, torch: Path, objects: Path, environ: Mapping[str, str]) -> Path:
    """Compiles the library into the folder `objects` and returns its path."""
    missing = [number for number in REQUIRED_ARCHITECTURES if number not in toolkit.architectures]
    if missing:
        raise Failure(
            f"{toolkit.nvcc} knows no code for sm_{', sm_'.join(missing)}: take a newer CUDA compiler."
        )
    objects.mkdir(parents=True, exist_ok=True)
    compilations, link = commands(toolkit, torch, objects, environ)
    environment = {**environ, "CUDA_HOME": str(toolkit.home)}
    with ThreadPoolExecutor(max_workers=2) as pool:
        list(pool.map(lambda command: _run(command, environment), compilations))
    _run(link, environment)
    return objects / LIBRARY


def _run(command: list[str], environment: Mapping[str, str]) -> None:
    done = subprocess.run(command, cwd=SOURCES, env=dict(environment), check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise Failure("The CUDA library could not be built; the compiler's own words are above.")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.cuda", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--python", default=sys.executable, metavar="PY", help="interpreter whose Torch is built for"
    )
    options = parser.parse_args()
    try:
        facts = probe(options.python)
        if not facts["torch_cuda"]:
            raise Failure(f"The Torch of {options.python} is for the CPU alone.")
        toolkit = find(facts["torch_cuda"], options.python, os.environ)
        made = build(toolkit, torch_folder(options.python), ROOT / "target" / "cuda", os.environ)
    except Failure as failure:
        print(f"tools.cuda: {failure}", file=sys.stderr)
        return 1
    place = ROOT / "python" / "mm_libtorch_encoder" / LIBRARY
    # A process may have the old file mapped: replace the name, never the contents.
    fresh = place.with_suffix(".so.new")
    shutil.copy(made, fresh)
    fresh.replace(place)
    print(f"{place.relative_to(ROOT)}: CUDA {facts['torch_cuda']}, sm_{', sm_'.join(toolkit.architectures)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
