"""What a shared object asks of its host: the facts of its dynamic section."""

from __future__ import annotations

import re
import struct
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


@dataclass(frozen=True)
class GpuCode:
    """What a library holds for GPUs: architectures such as "90", each once and in order."""

    machine: tuple[str, ...]  # cubins
    intermediate: tuple[str, ...]  # PTX


# The container of GPU code: a header, then entries, each with a header of its own. All little-endian.
_CONTAINER = struct.Struct("<IHHQ")  # magic, version, bytes of this header, bytes of all entries
_CONTAINER_MAGIC = 0xBA55ED50
_ENTRY = struct.Struct(
    "<HHIQ12xI"
)  # kind, version, bytes of this header, bytes of the code, .., architecture
_INTERMEDIATE, _MACHINE = 1, 2


def gpu_code(path: Path) -> GpuCode:
    """Reads the section .nv_fatbin of `path`; a ValueError where it is damaged."""
    found: dict[int, set[int]] = {_INTERMEDIATE: set(), _MACHINE: set()}
    with path.open("rb") as file:
        section = ELFFile(file).get_section_by_name(".nv_fatbin")
        data = section.data() if section else b""
    at = 0
    try:
        while at < len(data):
            magic, _, header, size = _CONTAINER.unpack_from(data, at)
            if magic != _CONTAINER_MAGIC:
                if any(data[at:]):
                    raise ValueError(f"{path.name}: its GPU code cannot be read")
                break  # filling at the end of the section
            entry, at = at + header, at + header + size
            while entry < at:
                kind, _, header, size, architecture = _ENTRY.unpack_from(data, entry)
                found.setdefault(kind, set()).add(architecture)
                entry += header + size
                if header + size == 0:
                    raise ValueError(f"{path.name}: its GPU code cannot be read")
            at += -at % 8
    except struct.error:
        raise ValueError(f"{path.name}: its GPU code cannot be read") from None
    ordered = {kind: tuple(str(number) for number in sorted(numbers)) for kind, numbers in found.items()}
    return GpuCode(machine=ordered[_MACHINE], intermediate=ordered[_INTERMEDIATE])
