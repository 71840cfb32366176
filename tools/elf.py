"""What a shared object asks of its host: the facts of its dynamic section."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection


@dataclass(frozen=True)
class SharedObject:
    """Dynamic facts of one ELF file; versions are the highest that it needs, () where it needs none."""

    needed: tuple[str, ...]
    search_paths: tuple[str, ...]  # RPATH and RUNPATH
    glibc: tuple[int, ...]
    glibcxx: tuple[int, ...]


def read(path: Path) -> SharedObject:
    """Reads the dynamic section and the version requirements of `path`."""
    needed: list[str] = []
    search_paths: list[str] = []
    versions: dict[str, tuple[int, ...]] = {}
    with path.open("rb") as file:
        elf = ELFFile(file)
        for section in elf.iter_sections():
            if isinstance(section, DynamicSection):
                for tag in section.iter_tags():
                    if tag.entry.d_tag == "DT_NEEDED":
                        needed.append(tag.needed)
                    elif tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH"):
                        search_paths += (tag.rpath if tag.entry.d_tag == "DT_RPATH" else tag.runpath).split(
                            ":"
                        )
            elif isinstance(section, GNUVerNeedSection):
                for _, requirements in section.iter_versions():
                    for requirement in requirements:
                        found = re.fullmatch(r"(GLIBC|GLIBCXX)_(\d+(?:\.\d+)*)", requirement.name)
                        if found:
                            version = tuple(int(part) for part in found.group(2).split("."))
                            versions[found.group(1)] = max(version, versions.get(found.group(1), ()))
    return SharedObject(
        needed=tuple(needed),
        search_paths=tuple(search_paths),
        glibc=versions.get("GLIBC", ()),
        glibcxx=versions.get("GLIBCXX", ()),
    )
