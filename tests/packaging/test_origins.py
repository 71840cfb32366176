"""tools/origins.py: the package of a grafted library on a machine that has it for two architectures."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from tools import licences, origins

NAME = "libjpeg.so.62.3.0"


@pytest.fixture
def listing(tmp_path: Path) -> str:
    """What `dpkg -S` says of a library that is installed for two architectures."""
    lines = ["diversion by other from: /usr/lib/libjpeg.so.62.3.0"]
    for architecture in ("i386", "amd64", "arm64"):
        path = tmp_path / architecture / NAME
        path.parent.mkdir()
        path.write_bytes(architecture.encode())
        lines.append(f"libjpeg62-turbo:{architecture}: {path}")
    lines.append(f"gone:amd64: {tmp_path / 'gone' / NAME}")
    return "\n".join(lines) + "\n"


def digest(architecture: str) -> str:
    return hashlib.sha256(architecture.encode()).hexdigest()[:8]


def test_the_name_of_a_graft() -> None:
    assert origins.original("libjpeg-dad87949.so.62.3.0") == (NAME, "dad87949")
    assert origins.original("libodd-name-00000000.so") == ("libodd-name.so", "00000000")
    assert origins.original("libmm_torch.so") is None


@pytest.mark.parametrize("architecture", ["i386", "amd64", "arm64"])
def test_the_package_is_the_one_of_the_very_file(listing: str, architecture: str) -> None:
    assert origins.owner(listing, NAME, digest(architecture)) == f"libjpeg62-turbo:{architecture}"


def test_a_file_that_is_no_longer_there_has_no_package(listing: str) -> None:
    assert origins.owner(listing, NAME, digest("riscv64")) is None
    assert origins.owner(listing, "libjpeg.so.8", digest("amd64")) is None
    assert origins.owner("", NAME, digest("amd64")) is None


def test_shared_packages_are_named_by_the_first(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"amd64")
    listing = f"one:amd64, two:amd64: {tmp_path / NAME}"
    assert origins.owner(listing, NAME, digest("amd64")) == "one:amd64"


@pytest.fixture
def two_architectures(listing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dpkg that answers as Debian's does there: a bare package name is ambiguous."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (tmp_path / "listing").write_text(listing)
    answers = {
        "dpkg": f'[ "$1" = -S ] && cat {tmp_path}/listing',
        "dpkg-query": 'case "$3" in *:amd64) printf 1:2.1.5-2 ;; *) exit 2 ;; esac',
    }
    for name, answer in answers.items():
        (programs / name).write_text(f"#!/bin/sh\n{answer}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.usefixtures("two_architectures")
def test_the_bill_of_materials_gets_what_auditwheel_left_out(tmp_path: Path) -> None:
    origins.complete(tmp_path, [f"libjpeg-{digest('amd64')}.so.62.3.0"])
    bill = json.loads((tmp_path / "sboms" / origins.BILL).read_text())
    assert bill["bomFormat"] == "CycloneDX"
    assert licences.grafted_packages(bill) == {"libjpeg62-turbo": ("deb", "1:2.1.5-2")}


@pytest.mark.usefixtures("two_architectures")
def test_what_auditwheel_named_stays_as_it_is(tmp_path: Path) -> None:
    place = tmp_path / "sboms" / origins.BILL
    place.parent.mkdir()
    text = json.dumps({"components": [{"purl": "pkg:deb/debian/libjpeg62-turbo@1%3A2.1.5-2"}]})
    place.write_text(text)
    origins.complete(tmp_path, [f"libjpeg-{digest('amd64')}.so.62.3.0"])
    assert place.read_text() == text


def test_without_grafts_no_bill_is_made(tmp_path: Path) -> None:
    origins.complete(tmp_path, [])
    assert list(tmp_path.iterdir()) == []
