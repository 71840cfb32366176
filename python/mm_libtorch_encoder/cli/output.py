"""Writing a command's result to a file: whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterable

from .failure import Failure, reason
from .text import shown


class Target:
    """A file to be written at `path`, over what stands there. A Failure says at once where that cannot be."""

    def __init__(self, path: str) -> None:
        self.name = shown(path)
        self._path = os.path.realpath(path)
        try:
            if not stat.S_ISREG(self._mode()):
                raise Failure(f"{self.name} cannot be written: it exists and is no file")
            self.scratch().close()
        except OSError as error:
            raise self.failure(error) from None

    def _mode(self) -> int:
        try:
            return os.stat(self._path).st_mode
        except FileNotFoundError:
            return stat.S_IFREG

    def failure(self, error: OSError) -> Failure:
        """What to raise for a failed write."""
        return Failure(f"{self.name} cannot be written: {reason(error)}")

    def scratch(self) -> tempfile._TemporaryFileWrapper[bytes]:
        """A nameless file beside the target: it vanishes with this process."""
        return tempfile.TemporaryFile(dir=os.path.dirname(self._path))  # type: ignore[return-value]

    def write(self, pieces: Iterable[bytes]) -> None:
        """Writes the pieces under another name and moves the file into its place."""
        part = f"{self._path}.{os.getpid()}.part"
        try:
            with open(part, "xb") as file:
                for piece in pieces:
                    file.write(piece)
            os.replace(part, self._path)
        except OSError as error:
            raise self.failure(error) from None
        finally:
            with contextlib.suppress(OSError):
                os.unlink(part)
