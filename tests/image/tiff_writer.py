"""TIFF files."""
from collections.abc import Callable, Iterator


def files() -> Iterator[tuple[str, Callable[[], bytes]]]:
    return iter(())
