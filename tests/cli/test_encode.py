"""`mm-encoder encode`: its table, its document and its file say what the encoder says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import images
import pytest
import safetensors
import torch
from safetensors.torch import load_file
from sounds import Sound

from mm_libtorch_encoder import Encoder

Cli = Callable[..., Any]
NAMES = ("a.png", "b.jpg", "c.png")


def rows(table: str) -> dict[str, list[str]]:
    """The cells of each line by its first one."""
    return {line.split()[0]: re.split(r" {2,}", line.strip()) for line in table.splitlines() if line.strip()}


def test_the_table(cli: Cli, checkpoint: Path, photos: Path, shared_encoder: Callable[..., Encoder]) -> None:
    paths = [str(photos / name) for name in NAMES]
    done = cli("encode", checkpoint, *paths, "--device", "cpu", "--dtype", "float32", "--model", "demo")
    assert (done.code, done.err) == (0, "")
    table = rows(done.out)
    results = shared_encoder("qwen35").generate([(photos / name).read_bytes() for name in NAMES])
    for path, size, result in zip(paths, ("300x200", "97x301", "64x64"), results, strict=True):
        metadata = result.metadata
        _, height, width = metadata.grid_thws[0]
        resized, grid = f"{width * 16}x{height * 16}", f"{width}x{height}"
        assert table[path][1:6] == [size, resized, grid, str(metadata.length), "float32"]
        assert table[path][10] == metadata.mm_hash[:8]
        assert all(re.fullmatch(r"\d+\.\d", cell) for cell in table[path][6:10])
    assert table["total"][1] == str(sum(result.metadata.length for result in results))
    assert done.out.splitlines()[0].startswith(f"qwen35 tower of {checkpoint}, float32, on cpu; loaded in ")
    assert "Encoded: 3 of 3" in done.out


def test_the_document_has_the_facts_of_the_metadata(
    cli: Cli, checkpoint: Path, photos: Path, shared_encoder: Callable[..., Encoder]
) -> None:
    paths = [photos / name for name in NAMES]
    done = cli("encode", checkpoint, *paths, "--device=cpu", "--dtype=float32", "--model=demo", "--json")
    assert (done.code, done.err) == (0, "")
    document = json.loads(done.out)
    results = shared_encoder("qwen35").generate([path.read_bytes() for path in paths])
    for row, path, result in zip(document["images"], paths, results, strict=True):
        metadata = result.metadata
        assert row["file"] == str(path)
        assert row["mm_hash"] == metadata.mm_hash
        assert row["grid_thws"] == [list(grid) for grid in metadata.grid_thws]
        assert (row["tokens"], row["shape"]) == (metadata.length, list(metadata.shape))
        assert "torch." + row["dtype"] == metadata.dtype
        assert set(row["milliseconds"]) == {"decode", "resize", "queue", "forward"}
        assert row["milliseconds"]["forward"] > 0
    assert [row["size"] for row in document["images"]] == [[300, 200], [97, 301], [64, 64]]
    totals = document["totals"]
    assert (totals["encoded"], totals["failed"]) == (3, 0)
    assert totals["tokens"] == sum(row["tokens"] for row in document["images"])
    assert {key: document[key] for key in ("model", "family", "device", "dtype", "out")} == {
        "model": "demo",
        "family": "qwen35",
        "device": "cpu",
        "dtype": "float32",
        "out": None,
    }


def test_a_padded_canvas_is_not_the_resized_size(
    cli: Cli, demo_checkpoint: Callable[[str], Path], photos: Path
) -> None:
    done = cli("encode", demo_checkpoint("glm53"), photos / "a.png", "--device=cpu", "--json")
    (row,) = json.loads(done.out)["images"]
    assert (row["size"], row["resized"], row["canvas"]) == ([300, 200], [300, 200], [308, 224])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_file_has_every_tensor_bit_for_bit(
    cli: Cli,
    checkpoint: Path,
    photos: Path,
    tmp_path: Path,
    dtype: str,
    shared_encoder: Callable[..., Encoder],
) -> None:
    out = tmp_path / "embeddings.safetensors"
    out.write_text("what stood there before")
    paths = [photos / name for name in (*NAMES, "a.png")]
    done = cli(
        "encode", checkpoint, *paths, "--device", "cpu", "--dtype", dtype, "--model", "demo", "--out", out
    )
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == f"Embeddings: {out}"
    tensors = load_file(out)
    encoder = shared_encoder("qwen35", dtype)
    names = [*map(str, paths[:3]), f"{paths[0]}#2"]
    for name, path in zip(names, paths, strict=True):
        outputs = encoder.encode_image(path.read_bytes())
        assert tensors[name].dtype == getattr(torch, dtype)
        assert torch.equal(tensors.pop(name), outputs.pop("embeddings"))
        for output, tensor in outputs.items():
            assert torch.equal(tensors.pop(f"{name}/{output}"), tensor)
    assert tensors == {}
    with safetensors.safe_open(out, "pt") as file:
        metadata = file.metadata()
    assert (metadata["model"], metadata["family"]) == ("demo", "qwen35")
    assert [row["file"] for row in json.loads(metadata["images"])] == names
    assert [path.name for path in tmp_path.iterdir()] == [out.name]
    first = out.read_bytes()
    cli("encode", checkpoint, *paths, "--device", "cpu", "--dtype", dtype, "--model", "demo", "--out", out)
    assert out.read_bytes() == first


def test_a_bad_file_fails_alone(cli: Cli, checkpoint: Path, photos: Path, tmp_path: Path) -> None:
    whole = (photos / "b.jpg").read_bytes()
    bad = {"cut.jpg": whole[: len(whole) // 2], "text.png": b"not an image", "empty.png": b""}
    for name, data in bad.items():
        (tmp_path / name).write_bytes(data)
    out = tmp_path / "out.safetensors"
    arguments = [
        photos / "a.png",
        *(tmp_path / name for name in bad),
        tmp_path / "none.png",
        tmp_path,
        photos / "c.png",
    ]
    done = cli("encode", checkpoint, *arguments, "--device=cpu", "--out", out)
    assert done.code == 1
    assert done.err == "mm-encoder: 5 of 7 images could not be encoded\n"
    lines = re.sub(r" {2,}", "  ", done.out)
    assert f"{tmp_path / 'cut.jpg'}  jpeg image is cut short" in lines
    assert f"{tmp_path / 'none.png'}  the file cannot be read: there is no such file or folder" in lines
    assert f"{tmp_path}  this is a folder: give the files in it" in lines
    assert "Encoded: 2 of 7" in lines
    embeddings = [name for name in load_file(out) if not name.endswith(("/grid_thws", "/embedding_offsets"))]
    assert embeddings == [str(photos / "a.png"), str(photos / "c.png")]


def test_sounds_are_called_sounds(cli: Cli, demo_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "good.wav").write_bytes(Sound(3_000).data())
    (tmp_path / "bad.wav").write_bytes(b"RIFF")
    paths = [tmp_path / "good.wav", tmp_path / "bad.wav"]
    done = cli("encode", demo_checkpoint("muse_audio"), *paths, "--device=cpu", "--family=muse_audio")
    assert (done.code, done.err) == (1, "mm-encoder: 1 of 2 sounds could not be encoded\n")
    assert done.out.endswith(" s.\n") and "\nTimes are milliseconds. Encoded: 1 of 2, in " in done.out
    assert "image" not in done.out.partition("\n")[2]


def test_bad_files_in_the_document(cli: Cli, checkpoint: Path, photos: Path, tmp_path: Path) -> None:
    done = cli("encode", checkpoint, tmp_path / "none.png", photos / "a.png", "--device=cpu", "--json")
    assert done.code == 1
    first, second = json.loads(done.out)["images"]
    assert first == {
        "file": str(tmp_path / "none.png"),
        "error": "the file cannot be read: there is no such file or folder",
    }
    assert second["tokens"] > 0


def test_order_is_kept_over_many_files(cli: Cli, checkpoint: Path, tmp_path: Path) -> None:
    sizes = [(40 + 37 * (index * 7 % 11), 30 + 29 * (index * 5 % 13)) for index in range(24)]
    for index, (width, height) in enumerate(sizes):
        (tmp_path / f"{index}.png").write_bytes(images.png(width, height, index))
    paths = [tmp_path / f"{index}.png" for index in range(len(sizes))]
    document: dict[str, Any] = json.loads(cli("encode", checkpoint, *paths, "--device=cpu", "--json").out)
    assert [row["size"] for row in document["images"]] == [list(size) for size in sizes]
    assert [row["file"] for row in document["images"]] == [str(path) for path in paths]


def test_without_a_device_the_choice_is_told(cli: Cli, checkpoint: Path, photos: Path) -> None:
    heading = cli("encode", checkpoint, photos / "c.png").out.splitlines()[0]
    if torch.cuda.is_available():
        assert re.search(r"on (cuda:0|cpu) \(.+\);", heading)
    else:
        assert re.search(r"on cpu \((this wheel has no CUDA library|Torch sees no CUDA device)\);", heading)


def test_a_model_name_is_taken_from_the_path(
    cli: Cli, checkpoint: Path, photos: Path, tmp_path: Path
) -> None:
    snapshot = tmp_path / "models--Qwen--Qwen3.5-4B" / "snapshots" / "0123abcd"
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(checkpoint)
    for path, model in ((snapshot, "Qwen/Qwen3.5-4B"), (checkpoint, checkpoint.name)):
        assert (
            json.loads(cli("encode", path, photos / "c.png", "--json", "--device=cpu").out)["model"] == model
        )


def test_the_backend_reaches_the_encoder(cli: Cli, checkpoint: Path, photos: Path, tmp_path: Path) -> None:
    outs = []
    for backend in ("torchvision", "pillow"):
        out = tmp_path / backend
        options = ("--device=cpu", "--dtype=float32", "--backend", backend, "--out", out)
        assert cli("encode", checkpoint, photos / "a.png", *options).code == 0
        outs.append(load_file(out)[str(photos / "a.png")])
    assert not torch.equal(*outs)
    assert torch.nn.functional.cosine_similarity(*outs, dim=1).min() > 0.9
