"""Licence texts of all that a wheel carries beside our own code: Rust crates, grafted system libraries."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import unquote

LICENCE_FILES = ("LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "UNLICENSE", "NOTICE")


class Missing(Exception):
    """A licence text that cannot be found; the text is a sentence."""


def linked_crates(metadata: dict[str, Any]) -> list[dict[str, Any]]:
    """Packages of `cargo metadata` that end up in the library: without build and test dependencies."""
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    root = metadata["resolve"]["root"]
    seen: set[str] = set()
    waiting = [root]
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        for dependency in nodes[current]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                waiting.append(dependency["pkg"])
    return sorted(
        (packages[name] for name in seen - {root}), key=lambda crate: (crate["name"], crate["version"])
    )


def crate_texts(crates: list[dict[str, Any]]) -> str:
    """One document: each crate with its licence expression, each distinct text once with its crates."""
    users: dict[str, list[str]] = {}
    lines = ["Rust crates linked into this library, and their licences.", ""]
    for crate in crates:
        title = f"{crate['name']} {crate['version']}"
        lines.append(f"{title}: {crate['license'] or 'see the text below'}")
        folder = Path(crate["manifest_path"]).parent
        # At any depth: a crate may carry a C library with a licence of its own.
        texts = [path for path in sorted(folder.rglob("*")) if path.name.upper().startswith(LICENCE_FILES)]
        if not crate["license"] and not texts:
            raise Missing(f"The crate {title} names no licence and carries no licence text.")
        for path in texts:
            if path.is_file():
                users.setdefault(path.read_text("utf-8", "replace").strip(), []).append(
                    f"{title} ({path.relative_to(folder)})"
                )
    for text, names in users.items():
        lines += ["", "=" * 100, *names, "=" * 100, "", text]
    return "\n".join(lines) + "\n"


def grafted_packages(sbom: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """System packages that auditwheel took libraries from, by its SBOM: name -> (kind, version)."""
    found: dict[str, tuple[str, str]] = {}
    for component in sbom.get("components", []):
        kind, _, rest = component.get("purl", "").removeprefix("pkg:").partition("/")
        if kind in ("deb", "rpm"):
            name, _, version = rest.partition("?")[0].rpartition("/")[2].partition("@")
            found[unquote(name)] = (kind, unquote(version))
    return found


def system_licence(name: str, kind: str) -> str:
    """The licence text that the distribution installed with package `name`."""
    texts: list[Path] = []
    if kind == "deb":
        texts = [Path("/usr/share/doc", name, "copyright")]
    elif shutil.which("rpm"):
        done = subprocess.run(
            ["rpm", "-q", "--licensefiles", name], check=False, capture_output=True, text=True
        )
        texts = [Path(line) for line in done.stdout.splitlines() if line.startswith("/")]
    parts = [path.read_text("utf-8", "replace") for path in texts if path.is_file()]
    if not parts:
        raise Missing(
            f"No licence text of the system package {name} is installed, so its library cannot be shipped."
        )
    return "\n".join(parts)


def cargo_metadata(root: Path, target: str) -> dict[str, Any]:
    """`cargo metadata` of the crate with the wheel's features, for one target."""
    command = [
        "cargo",
        "metadata",
        "--format-version=1",
        "--locked",
        "--features=python",
        f"--filter-platform={target}",
    ]
    done = subprocess.run(command, cwd=root, check=False, capture_output=True, text=True)
    if done.returncode:
        raise Missing("`cargo metadata` failed, so the licences of the crates are unknown.")
    metadata: dict[str, Any] = json.loads(done.stdout)
    return metadata
