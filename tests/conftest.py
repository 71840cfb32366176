"""What every test shares. The package under test is the installed one, never python/ of the source tree."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
# For `import build_wheel`, `install_wheel` and `tools`; the package itself is in python/, which stays out.
sys.path.insert(0, str(ROOT))


def package_folder() -> Path | None:
    """Where `import mm_libtorch_encoder` would find it."""
    spec = importlib.util.find_spec("mm_libtorch_encoder")
    return Path(spec.origin).parent if spec and spec.origin else None


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts what it puts into the background with Ctrl-C ignored, which the tests' own programs would inherit.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = package_folder()
    if os.environ.get("MM_TEST_INSTALLED") and (folder is None or folder.is_relative_to(ROOT / "python")):
        pytest.exit(
            f"The tests are to run against an installed wheel, but the package is at {folder}.", returncode=3
        )


def pytest_report_header(config: pytest.Config) -> str:
    return f"mm_libtorch_encoder: {package_folder() or 'not installed'}"


@pytest.fixture(scope="session")
def root() -> Path:
    """The source tree."""
    return ROOT


@pytest.fixture(scope="session")
def package() -> Path:
    """The folder of the package under test."""
    folder = package_folder()
    assert folder is not None, "mm_libtorch_encoder is not installed: make test installs it"
    return folder


@pytest.fixture(scope="session")
def demo_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """By family, the checkpoint that goldens are recorded on. Read-only: tests copy what they change."""
    import goldens

    from mm_libtorch_encoder import _native

    made: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in made:
            folder = tmp_path_factory.mktemp("checkpoints") / family
            _native.make_checkpoint(family, folder, goldens.SEED)
            made[family] = folder
        return made[family]

    return make


@pytest.fixture(scope="session")
def shared_encoder(demo_checkpoint: Callable[[str], Path]) -> Iterator[Callable[..., Any]]:
    """By family, dtype and options, an encoder of the demonstration checkpoint that stays open for the session."""
    import goldens

    from mm_libtorch_encoder import Encoder

    opened: dict[tuple[Any, ...], Encoder] = {}

    def open_encoder(family: str, dtype: str = "float32", **options: Any) -> Encoder:
        key = (family, dtype, *sorted(options.items()))
        if key not in opened:
            opened[key] = Encoder(
                demo_checkpoint(family), "demo", "cpu", goldens.family_of(family), dtype=dtype, **options
            )
        return opened[key]

    yield open_encoder
    for encoder in opened.values():
        encoder.close()


_figures: list[str] = []


@pytest.fixture(scope="session")
def figures() -> Callable[[str], None]:
    """Takes lines of measured figures; they are printed at the end of the run."""
    return _figures.append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _figures:
        terminalreporter.section("figures")
        for line in _figures:
            terminalreporter.write_line(line)
