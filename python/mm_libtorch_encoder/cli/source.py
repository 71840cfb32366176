"""Reading the images that a command line names."""

from __future__ import annotations

import os
import stat
import sys
from typing import BinaryIO

from .failure import Failure, reason

# 256 MiB: the decoder's own limit on the bytes of one image. A longer file is not read to its end.
MAX_IMAGE_BYTES = 256 << 20
STEP_BYTES = 1 << 20
STANDARD_INPUT = "-"
_TOO_LARGE = f"the file is over the limit of {MAX_IMAGE_BYTES} bytes: give a smaller one"


def read_image(path: str) -> bytes:
    """The bytes of the file `path`, or of standard input for "-". A Failure says why it cannot be read."""
    try:
        if path == STANDARD_INPUT:
            if sys.stdin is None:
                raise Failure("standard input is closed: give a file, or pipe one in")
            return _read(sys.stdin.buffer)
        with open(path, "rb") as file:
            state = os.fstat(file.fileno())
            if stat.S_ISREG(state.st_mode) and state.st_size > MAX_IMAGE_BYTES:
                raise Failure(_TOO_LARGE)
            return _read(file)
    except IsADirectoryError:
        raise Failure("this is a folder: give the files in it") from None
    except OSError as error:
        raise Failure(f"the file cannot be read: {reason(error)}") from None


def _read(file: BinaryIO) -> bytes:
    pieces, length = [], 0
    while piece := file.read(STEP_BYTES):
        pieces.append(piece)
        length += len(piece)
        if length > MAX_IMAGE_BYTES:
            raise Failure(_TOO_LARGE)
    return b"".join(pieces)
