"""Which system package a grafted library comes from, where auditwheel does not find out.

auditwheel asks dpkg for a package without its architecture, and dpkg does not answer where the package is installed for
several. A graft's name has the first digits of its original's SHA-256, so that the original can be told for certain.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import quote

from . import licences

BILL = "auditwheel.cdx.json"
GRAFT = re.compile(r"(?P<base>[^.]+)-(?P<digest>[0-9a-f]{8})\.(?P<rest>so(\..+)?)")


def original(graft: str) -> tuple[str, str] | None:
    """The file name of a graft's original, and the first digits of its SHA-256."""
    found = GRAFT.fullmatch(graft)
    return (f"{found['base']}.{found['rest']}", found["digest"]) if found else None


def owner(listing: str, name: str, digest: str) -> str | None:
    """The package, with its architecture, that installed the file `name` of this digest, by a listing of `dpkg -S`."""
    for line in listing.splitlines():
        packages, _, file = line.partition(": ")
        path = Path(file)
        # "diversion by PACKAGE from" is a line of the listing, too.
        if " " in packages.replace(", ", ",") or path.name != name or not path.is_file():
            continue
        if hashlib.sha256(path.read_bytes()).hexdigest().startswith(digest):
            return packages.partition(",")[0]
    return None


def complete(information: Path, grafts: list[str]) -> None:
    """Adds to auditwheel's bill of materials in the .dist-info folder the packages of `grafts` that it lacks."""
    place = information / "sboms" / BILL
    bill: dict[str, Any] = {"bomFormat": "CycloneDX", "specVersion": "1.4", "version": 1, "components": []}
    if place.is_file():
        bill = json.loads(place.read_text("utf-8"))
    known = licences.grafted_packages(bill)
    if len(known) >= len(grafts) or shutil.which("dpkg") is None:
        return
    for name, digest in filter(None, map(original, grafts)):
        package = owner(_output("dpkg", "-S", f"*/{name}"), name, digest)
        version = _output("dpkg-query", "-W", "-f=${Version}", package) if package else ""
        if package and version and (plain := package.partition(":")[0]) not in known:
            system = quote(platform.freedesktop_os_release().get("ID", "linux"), safe="")
            purl = f"pkg:deb/{system}/{quote(plain, safe='')}@{quote(version, safe='')}"
            component = {"type": "library", "name": plain, "version": version, "purl": purl}
            bill["components"].append({**component, "bom-ref": purl})
    place.parent.mkdir(exist_ok=True)
    place.write_text(json.dumps(bill), "utf-8")


def _output(*command: str) -> str:
    return subprocess.run(
        command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL
    ).stdout
