"""Programs that run in a process of their own, for what a test must not do to its own process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

TIMEOUT = 120  # seconds; a loaded machine needs many to import Torch alone

# The beginning of a program that forks: `forked(work)`.
FORKED = """
import os, signal, sys, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads
def forked(work, patience=60):
    "Runs `work` in a forked child that exits as an interpreter does; its exit code, or 'hangs'."
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        work()
        sys.exit(0)
    end = time.monotonic() + patience
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done: return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL); os.waitpid(child, 0)
    return "hangs"
"""


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


def environment(**more: str) -> dict[str, str]:
    """This process's environment, in which a child finds what this process imports, and `more`."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **more}


def start(program: str, *arguments: str | Path, stdin: bool = False, **environ: str) -> subprocess.Popen[str]:
    """Starts a Python program with pipes; warnings of Python itself are errors of ours, so they show."""
    command = [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)]
    pipe = subprocess.PIPE
    read = pipe if stdin else None
    return subprocess.Popen(
        command, stdin=read, stdout=pipe, stderr=pipe, text=True, env=environment(**environ)
    )


def finish(process: subprocess.Popen[str], timeout: float = TIMEOUT) -> Outcome:
    """Waits for the program; one that hangs is killed and fails the test with what it had printed."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"still running after {timeout} s\n{out}\n{err}") from None
    return Outcome(process.returncode, out, err)


def run(program: str, *arguments: str | Path, timeout: float = TIMEOUT, **environ: str) -> Outcome:
    return finish(start(program, *arguments, **environ), timeout)


def resident() -> int:
    """Bytes of memory this process has resident."""
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
