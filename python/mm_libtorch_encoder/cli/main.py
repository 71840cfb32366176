"""Arguments, exit codes, and the one place where text is printed and an exception becomes a sentence."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from .. import _native
from .failure import BROKEN_PIPE, FAILED, INTERRUPTED, OK, USAGE, Failure, reason
from .text import shown

PROGRAM = "mm-encoder"
# With this set, a fault of our own shows its traceback.
TRACEBACK = "MM_ENCODER_TRACEBACK"
EXIT_CODES = (
    "Exit codes: 0 done; 1 an item or a check failed; 2 wrong usage; 130 Ctrl-C; 141 the reader left."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    _prepare_streams()
    try:
        text, problem, code = _run(arguments)
        try:
            if text:
                print(text)
            sys.stdout.flush()
        except BrokenPipeError:
            return _leave(BROKEN_PIPE)
        except OSError as error:
            _say(f"standard output cannot be written: {reason(error)}")
            return _leave(FAILED)
        if problem:
            _say(problem)
        return code
    except KeyboardInterrupt:
        _say("interrupted")
        return _leave(INTERRUPTED)


def parser() -> argparse.ArgumentParser:
    """All commands and options."""
    # Here, not above: so that Ctrl-C while NumPy loads ends as it does later.
    from . import checkpoint, doctor, encode, show

    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Native multimodal encoder: encoded images or sounds in, embeddings of a checkpoint's tower out.",
        epilog=EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"mm-libtorch-encoder {_native.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in (encode, show, doctor, checkpoint):
        command.add_parser(commands)
    return parser


def _run(arguments: Sequence[str] | None) -> tuple[str, str, int]:
    """Text for standard output, a sentence for standard error, the exit code."""
    try:
        options = parser().parse_args(arguments)
        outcome = options.run(options)
        return outcome.text, outcome.problem, FAILED if outcome.problem else OK
    except SystemExit as end:  # argparse has said what there is to say
        return "", "", end.code if isinstance(end.code, int) else FAILED
    except Failure as failure:
        return "", str(failure), failure.code
    except (
        _native.CheckpointError,
        _native.MediaError,
        _native.RuntimeMismatch,
        _native.DeviceOutOfMemory,
    ) as error:
        return "", str(error), FAILED
    except MemoryError:
        return "", "there is not enough memory", FAILED
    except Exception as error:
        if type(error) is ValueError:  # an argument that the native side refuses
            return "", str(error), USAGE
        if os.environ.get(TRACEBACK):
            raise
        sentence = f"internal error, {type(error).__name__}: {error} (set {TRACEBACK}=1 to see where)"
        return "", sentence, FAILED


def _say(sentence: str) -> None:
    try:
        print(f"{PROGRAM}: {shown(sentence)}", file=sys.stderr, flush=True)
    except OSError:
        return  # nobody listens; the exit code still tells


def _prepare_streams() -> None:
    """Output fails neither on a character nor on a stream that was closed before we started."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  (for the rest of the process)
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _leave(code: int) -> int:
    """Ends the process: a normal exit would flush what nobody reads and wait for the image in the tower."""
    os._exit(code)
