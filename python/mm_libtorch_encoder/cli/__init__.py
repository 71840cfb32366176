"""The command line, `mm-encoder` and `python -m mm_libtorch_encoder`. docs/cli.md describes it."""

from .main import main

__all__ = ["main"]
