"""The other packages that are timed beside ours, found by anyone:

    pip install --no-deps --target DIR -r requirements/bench-peers.txt
    MM_BENCH_PEERS=DIR python benches/pixels.py

`make bench` does both. SGLang's extension is also taken from an installed SGLang. The published wheel has our own
package's name, so it runs in a process of its own that takes its turns when asked to. A peer that cannot run is named
with the reason.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import ExtensionFileLoader
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

FOLDER = os.environ.get("MM_BENCH_PEERS")
PUBLISHED = "mm-libtorch-encoder"
#: A tower of these settings is what the published wheel is asked for.
FAMILY, MODEL = "qwen35", "Qwen/Qwen3.5-4B"


class Absent(Exception):
    """Why a peer is not measured."""


def optional(name: str) -> Any:
    """A module, or None where it is not installed."""
    try:
        return import_module(name)
    except ImportError:
        return None


def versions() -> dict[str, str]:
    """Versions of the packages in the folder of peers."""
    found = distributions(path=[FOLDER]) if FOLDER else []
    return {
        f"{entry.name} (published)" if entry.name == PUBLISHED else entry.name: entry.version
        for entry in found
    }


def sglang() -> Any:
    """SGLang's image extension, without SGLang itself."""
    for folder in [*([FOLDER] if FOLDER else []), *sys.path]:
        for path in Path(folder).glob("sglang/srt/rust_extensions/_multimodal.*.so"):
            loader = ExtensionFileLoader("_multimodal", str(path))
            spec = importlib.util.spec_from_file_location("_multimodal", path, loader=loader)
            module = importlib.util.module_from_spec(spec) if spec else None
            if module is not None:
                loader.exec_module(module)
                return module
    raise Absent("SGLang's wheel is neither installed nor in MM_BENCH_PEERS")


class Published:
    """The published wheel in a process of its own: encoded bytes to the tower's bfloat16 input."""

    def __init__(self, threads: int, cpu_time: bool) -> None:
        if not FOLDER or not (Path(FOLDER) / "mm_libtorch_encoder").is_dir():
            raise Absent("MM_BENCH_PEERS names no folder with the published wheel")
        from mm_libtorch_encoder import _native

        self.folder = tempfile.TemporaryDirectory()
        checkpoint = Path(self.folder.name) / "checkpoint"
        _native.make_checkpoint(FAMILY, str(checkpoint), 0)
        command = [sys.executable, __file__, FOLDER, str(checkpoint), str(threads), str(int(cpu_time))]
        self.child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.loaded: bytes | None = None
        reply = self.ask({})
        if "absent" in reply:
            raise Absent(f"the published wheel does not run here: {reply['absent']}")

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self.child.stdin is not None and self.child.stdout is not None
        self.child.stdin.write(json.dumps(question) + "\n")
        self.child.stdin.flush()
        line = self.child.stdout.readline()
        if not line:
            raise Absent("the published wheel's process ended")
        return json.loads(line)

    def run(self, data: bytes) -> Callable[[], float]:
        """A run that gives its seconds, measured in the wheel's own process."""

        def call() -> float:
            if self.loaded is not data:
                path = Path(self.folder.name) / "item"
                path.write_bytes(data)
                self.ask({"load": str(path)})
                self.loaded = data
            return float(self.ask({"run": 1})["seconds"])

        return call

    def close(self) -> None:
        assert self.child.stdin is not None
        self.child.stdin.close()
        self.child.wait()
        self.folder.cleanup()


def serve(folder: str, checkpoint: str, threads: int, cpu_time: bool) -> None:
    """Answers a line with a line: the published wheel's side."""
    sys.path.insert(0, folder)
    clock = time.process_time if cpu_time else time.perf_counter
    try:
        import torch

        torch.set_num_threads(threads)
        package = import_module("mm_libtorch_encoder")
        planner = package.MediaPlanner(checkpoint, MODEL)
        first: dict[str, Any] = {}
    except Exception as error:
        first = {"absent": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"}
    media = None
    for number, line in enumerate(sys.stdin):
        question = json.loads(line)
        reply: dict[str, Any] = first if number == 0 else {}
        if "load" in question:
            media = package.ResolvedMedia(Path(question["load"]).read_bytes())
        if "run" in question:
            start = clock()
            result = planner.prepare_inputs(media)
            reply = {"seconds": clock() - start}
            del result
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "1")
