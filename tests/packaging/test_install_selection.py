"""install_wheel.py: exactly one wheel is chosen, and nothing in a wheelhouse can fool or harm it."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import install_wheel

MakeWheel = Callable[..., Path]
NAME = "mm_libtorch_encoder-0.3.0-cp311-abi3-{}.whl"


@pytest.fixture
def select(
    tmp_path: Path, host: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[], tuple[int, str, str]]:
    """A dry run on the wheelhouse for `host`: (exit code, stdout, stderr)."""
    monkeypatch.setattr(install_wheel, "probe", lambda python: host)

    def run() -> tuple[int, str, str]:
        code = install_wheel.main([str(tmp_path / "wheelhouse"), "--dry-run"])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_the_only_fitting_wheel_is_chosen(make_wheel: MakeWheel, select: Any) -> None:
    make_wheel(folder="wheelhouse/a/cu12", cuda="12.8", key="torch-stable-2.11-cu12-x86_64")
    wanted = make_wheel(folder="wheelhouse/b/cu13")
    make_wheel(folder="wheelhouse/c/exact", policy="exact", torch="2.14.0+cu130")
    code, out, _ = select()
    assert code == 0
    assert str(wanted) in out
    assert "nothing was installed" in out


def test_an_exact_wheel_is_chosen_by_its_record(make_wheel: MakeWheel, select: Any) -> None:
    wanted = make_wheel(NAME.format("linux_x86_64"), policy="exact", libc="glibc 2.36")
    code, out, _ = select()
    assert (code, str(wanted) in out) == (0, True)


def test_none_fits_and_every_wheel_is_listed_with_its_reason(make_wheel: MakeWheel, select: Any) -> None:
    make_wheel(folder="wheelhouse/1", cuda="12.8", key="torch-stable-2.11-cu12-x86_64")
    make_wheel(folder="wheelhouse/2", libc="glibc 2.38")
    make_wheel(folder="wheelhouse/3", policy="exact", torch="2.14.0+cu130", key="torch-2.14.0-cu130-x86_64-1")
    make_wheel("torch-2.14.1-cp311-cp311-manylinux_2_28_x86_64.whl", folder="wheelhouse/4")
    make_wheel(folder="wheelhouse/5", record=b"{}")
    make_wheel(NAME.format("manylinux_2_39_x86_64"), folder="wheelhouse/6")
    code, out, err = select()
    assert code == 1
    lines = out.splitlines()[3:]
    assert len(lines) == 7  # the third has two reasons
    assert "cuda: built for 12.x, host has 13.0" in lines[0]
    assert "torch-stable-2.11-cu12-x86_64" in lines[0]
    assert "libc: built for glibc 2.38 or newer, host has glibc 2.36" in lines[1]
    assert "torch: built for 2.14.0+cu130, host has 2.14.1+cu130" in lines[2]
    assert "libc: built for glibc 2.34, host has glibc 2.36" in lines[3]
    assert "is not a wheel of mm-libtorch-encoder" in lines[4]
    assert "its runtime record is not of format 1" in lines[5]
    assert "built for manylinux_2_39_x86_64, host has x86_64 with glibc 2.36" in lines[6]
    assert "None of 6 wheels fit" in err
    assert "torch-stable-2.11-cpu-x86_64 or torch-stable-2.11-cu13-x86_64 would fit" in err


def test_several_fit_and_none_is_taken(make_wheel: MakeWheel, select: Any) -> None:
    make_wheel()
    make_wheel("mm_libtorch_encoder-0.3.1-cp311-abi3-manylinux_2_34_x86_64.whl", package="0.3.1")
    code, out, err = select()
    assert code == 1
    assert out.count("  fits") == 2
    assert "2 of 2 wheels fit; exactly one has to" in err


def test_an_empty_wheelhouse(tmp_path: Path, select: Any) -> None:
    (tmp_path / "wheelhouse").mkdir()
    code, _, err = select()
    assert (code, "wheelhouse holds no wheel (*.whl). A wheel with runtime key" in err) == (1, True)


def test_a_wheelhouse_that_is_no_folder(select: Any) -> None:
    code, _, err = select()
    assert (code, "is not a folder" in err) == (1, True)


def test_without_torch_the_advice_is_to_install_it_oneself(
    make_wheel: MakeWheel, host: Any, select: Any
) -> None:
    host.update(dict.fromkeys(("torch", "torch_revision", "torch_build", "torch_cuda", "cxx11_abi")))
    make_wheel()
    code, out, err = select()
    assert code == 1
    assert "torch: built for 2.11 or newer, host has none" in out
    assert "Install Torch 2.11 or newer first; this program never does." in err


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        (NAME.format("musllinux_1_2_x86_64"), {}, "built for musllinux_1_2_x86_64"),
        (NAME.format("manylinux_2_34_aarch64"), {}, "built for manylinux_2_34_aarch64"),
        ("mm_libtorch_encoder-0.3.0-cp312-abi3-manylinux_2_34_x86_64.whl", {}, "its name says cp312-abi3"),
        (
            "mm_libtorch_encoder-0.3.0-cp312-cp312-manylinux_2_34_x86_64.whl",
            {},
            "built for cp312, host has cp311",
        ),
        (
            "mm_libtorch_encoder-0.3.0-cp311-abi3-manylinux_2_34_x86_64.whl",
            {"package": "0.4.0"},
            "its name says version",
        ),
        ("mm_libtorch_encoder-0.3.0.whl", {}, "is not a wheel of"),
        ("mm_libtorch_encoder-\x1b[31m\n.whl", {}, "is not a wheel of"),
    ],
)
def test_names_that_contradict(
    make_wheel: MakeWheel, select: Any, name: str, changes: dict[str, Any], reason: str
) -> None:
    make_wheel(name, **changes)
    code, out, _ = select()
    assert code == 1
    assert reason in out
    assert "\x1b" not in out
    assert len(out.splitlines()) == 4


def empty(path: Path) -> None:
    path.write_bytes(b"")


def not_a_zip(path: Path) -> None:
    path.write_bytes(b"PK\x03\x04" + bytes(range(256)) * 10)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def with_comment(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = b"x" * 100


def zip64_locator(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-22] + struct.pack("<4sLQL", b"PK\x06\x07", 0, 0, 1) + data[-22:])


def huge_directory(path: Path) -> None:
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, len(data) - 10, 0xFFFF_FFFE)
    path.write_bytes(data)


def twice(path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("mm_libtorch_encoder/_runtime.json", b"{}")


def absent(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mm_libtorch_encoder/__init__.py", b"")


def bomb(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mm_libtorch_encoder/_runtime.json", b" " * 100_000_000)


def lying_bomb(path: Path) -> None:
    """The table of contents promises 100 bytes, the stream holds 100 MB."""
    bomb(path)
    data = path.read_bytes()
    for signature, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        start = data.rindex(signature) + offset
        data = data[:start] + struct.pack("<I", 100) + data[start + 4 :]
    path.write_bytes(data)


def lzma(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("mm_libtorch_encoder/_runtime.json", b"{}")


def encrypted(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = data.find(signature)
        while start >= 0:
            data[start + offset] |= 1
            start = data.find(signature, start + 4)
    path.write_bytes(data)


def wrong_checksum(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        record = archive.read("mm_libtorch_encoder/_runtime.json")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("mm_libtorch_encoder/_runtime.json", record)
    path.write_bytes(path.read_bytes().replace(b'"2.14.1+cu130"', b'"2.14.2+cu130"'))


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/nonexistent/file.whl")


def device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (empty, "is not a valid wheel file"),
        (not_a_zip, "is not a valid wheel file"),
        (truncated, "is not a valid wheel file"),
        (with_comment, "is not a valid wheel file"),
        (zip64_locator, "is not a valid wheel file"),
        (huge_directory, "its table of contents is larger"),
        (twice, "holds several runtime records"),
        (absent, "holds no runtime record"),
        (bomb, "its runtime record is larger"),
        (lying_bomb, "is not a valid wheel file"),
        (lzma, "compressed in an unusual way"),
        (encrypted, "is not a valid wheel file"),
        (wrong_checksum, "is not a valid wheel file"),
        (pipe, "is not a regular file"),
        (dangling_link, "is not a regular file"),
        (device, "is not a regular file"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_hostile_files_are_listed_and_the_good_wheel_is_still_found(
    make_wheel: MakeWheel, select: Any, damage: Callable[[Path], None], reason: str
) -> None:
    damage(make_wheel(folder="wheelhouse/bad"))
    code, out, _ = select()
    assert code == 1
    assert reason in out
    good = make_wheel(folder="wheelhouse/good")
    code, out, _ = select()
    assert (code, str(good) in out) == (0, True)


def test_too_many_wheels(tmp_path: Path, select: Any) -> None:
    folder = tmp_path / "wheelhouse"
    folder.mkdir()
    for index in range(install_wheel.MAX_WHEELS + 1):
        (folder / f"{index}.whl").touch()
    code, _, err = select()
    assert (code, "holds more than 1000 wheels" in err) == (1, True)


def test_links_to_folders_are_not_followed(make_wheel: MakeWheel, select: Any, tmp_path: Path) -> None:
    make_wheel(folder="elsewhere")
    (tmp_path / "wheelhouse").mkdir()
    (tmp_path / "wheelhouse" / "link").symlink_to(tmp_path / "elsewhere")
    code, _, err = select()
    assert (code, "wheelhouse holds no wheel (*.whl). A wheel with runtime key" in err) == (1, True)


def test_the_interpreter_is_asked_without_this_project(tmp_path: Path) -> None:
    """A copy of the one file, on its own, under -I -S, judges with a probe of the running interpreter."""
    shutil.copy(install_wheel.__file__, tmp_path / "install_wheel.py")
    (tmp_path / "torch.py").write_text("raise SystemExit('a stray file was imported')")
    (tmp_path / "wheels").mkdir()
    command = [sys.executable, "-I", "-S", "install_wheel.py", "wheels", "--python", sys.executable]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    import torch

    assert done.returncode == 1
    assert f"Torch {torch.__version__}" in done.stdout
    assert "wheels holds no wheel" in done.stderr


@pytest.mark.parametrize("python", ["/nonexistent/python", "/bin/false"])
def test_an_interpreter_that_does_not_work(
    tmp_path: Path, python: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert install_wheel.main([str(tmp_path), "--python", python]) == 1
    assert python in capsys.readouterr().err


def test_installation_into_a_fresh_environment(make_wheel: MakeWheel, tmp_path: Path) -> None:
    """A real pip installs the chosen wheel, and the Torch there, a stand-in, keeps every byte."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    python = tmp_path / "env" / "bin" / "python"
    place = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(place, check=True, capture_output=True, text=True).stdout.strip())
    torch = packages / "torch" / "__init__.py"
    torch.parent.mkdir()
    torch.write_text(
        "from types import SimpleNamespace\n__version__ = '2.12.0+cpu'\n"
        "version = SimpleNamespace(git_version='abc', cuda=None)\n"
        "__config__ = SimpleNamespace(show=lambda: 'stand-in')\n"
        "def compiled_with_cxx11_abi(): return True\n"
    )
    before = hashlib.sha256(torch.read_bytes()).hexdigest()
    tag = "cp{}{}".format(*sys.version_info[:2])
    make_wheel(libc="glibc 2.17", folder="wheelhouse/one")
    make_wheel(libc="glibc 2.17", folder="wheelhouse/two", policy="exact")
    command = [sys.executable, install_wheel.__file__, tmp_path / "wheelhouse", "--python", python]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Torch 2.12.0+cpu, {tag}" in done.stdout
    assert (packages / "mm_libtorch_encoder" / "_runtime.json").is_file()
    assert hashlib.sha256(torch.read_bytes()).hexdigest() == before
    assert sorted(path.name for path in packages.glob("*torch*")) == [
        "mm_libtorch_encoder",
        "mm_libtorch_encoder-0.3.0.dist-info",
        "torch",
    ]
