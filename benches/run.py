"""Every figure beside its peer: runs each bench in a process of its own and writes one markdown report.

python benches/run.py [--out docs/figures.md] [NAME ...]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
HELPERS = {"run", "measure", "peers"}


def main() -> int:
    names = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in HELPERS)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which benches; all: {', '.join(names)}")
    parser.add_argument("--out", type=Path, help="a file for the report; standard output always shows it")
    args = parser.parse_args()
    report = []
    failed = []
    for name in args.names or names:
        print(f"running {name} ...", file=sys.stderr, flush=True)
        command = [sys.executable, str(HERE / f"{name}.py")]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        print(done.stdout, flush=True)
        report.append(f"{done.stdout}\n`python benches/{name}.py`\n")
        if done.returncode:
            failed.append(name)
    if args.out:
        args.out.write_text("# Figures\n\n" + "\n".join(report), "utf-8")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
