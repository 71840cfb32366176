"""How a command ends: its output, a sentence for the user, an exit code."""

from __future__ import annotations

import errno
from dataclasses import dataclass

OK, FAILED, USAGE, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141

_REASONS = {
    errno.ENOENT: "there is no such file or folder",
    errno.ENOTDIR: "there is no such file or folder",
    errno.EACCES: "there is no permission for it",
    errno.EPERM: "there is no permission for it",
    errno.EISDIR: "it is a folder",
    errno.ENOSPC: "the disk is full",
    errno.EROFS: "it is on a read-only file system",
    errno.ENAMETOOLONG: "its name is too long",
    errno.ELOOP: "it is a circle of links",
}


@dataclass(frozen=True)
class Outcome:
    """What a command that ran to its end prints on standard output, and what went wrong, if anything."""

    text: str
    problem: str = ""


class Failure(Exception):
    """A command or an item that cannot go on. The text is a sentence; `code` is the exit code."""

    def __init__(self, sentence: str, code: int = FAILED) -> None:
        super().__init__(sentence)
        self.code = code


def reason(error: OSError) -> str:
    """An operating-system error as the end of a sentence about a file."""
    code = error.errno or 0
    return _REASONS.get(code, f"the system says {errno.errorcode.get(code, 'nothing more')}")
