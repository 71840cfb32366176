"""Opens and closes wheels: the same content gives the same bytes."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import stat
import zipfile
from pathlib import Path

EPOCH = (1980, 1, 1, 0, 0, 0)  # the first moment a zip file can name


def unpack(wheel: Path, folder: Path) -> None:
    """Extracts `wheel`, which this build made itself, into `folder`."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)


def dist_info(folder: Path) -> Path:
    """The one *.dist-info folder of an unpacked wheel."""
    (found,) = folder.glob("*.dist-info")
    return found


def record_hash(content: bytes) -> str:
    """A file's hash as RECORD spells it."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def pack(folder: Path, wheel: Path) -> None:
    """Writes an unpacked wheel with a fresh RECORD; dates, order and permissions are the same everywhere."""
    record = dist_info(folder) / "RECORD"
    record.unlink(missing_ok=True)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    # Metadata last, as the wheel specification asks.
    files.sort(key=lambda path: path.is_relative_to(record.parent))
    rows = io.StringIO()
    writer = csv.writer(rows, lineterminator="\n")
    for path in files:
        content = path.read_bytes()
        writer.writerow([path.relative_to(folder).as_posix(), record_hash(content), len(content)])
    writer.writerow([record.relative_to(folder).as_posix(), "", ""])
    record.write_text(rows.getvalue(), "utf-8")
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in [*files, record]:
            entry = zipfile.ZipInfo(path.relative_to(folder).as_posix(), EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            mode = 0o755 if path.suffix == ".so" or ".so." in path.name else 0o644
            entry.external_attr = (stat.S_IFREG | mode) << 16
            archive.writestr(entry, path.read_bytes())
