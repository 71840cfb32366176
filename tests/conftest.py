"""What every test shares. The package under test is the installed one, never python/ of the source tree."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# For `import build_wheel`, `install_wheel` and `tools`; the package itself is in python/, which stays out.
sys.path.insert(0, str(ROOT))


def package_folder() -> Path | None:
    """Where `import mm_libtorch_encoder` would find it."""
    spec = importlib.util.find_spec("mm_libtorch_encoder")
    return Path(spec.origin).parent if spec and spec.origin else None


def pytest_configure(config: pytest.Config) -> None:
    folder = package_folder()
    if os.environ.get("MM_TEST_INSTALLED") and (folder is None or folder.is_relative_to(ROOT / "python")):
        pytest.exit(f"The tests are to run against an installed wheel, but the package is at {folder}.", returncode=3)


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
