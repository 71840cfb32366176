"""Checkpoints wrong in one place: a sentence names the place, at once and without memory."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import checkpoints
import images
import pytest
import torch
from scripts import resident

from mm_libtorch_encoder import CheckpointError, Encoder, _native

CheckpointOf = Callable[[str], Path]
FAMILIES = ("qwen35", "glm53")
PROCESSOR_FILE = {"qwen35": "preprocessor_config.json", "glm53": "processor_config.json"}
# What an error may cost: reading a file of 8 MiB as JSON, on a machine that does other things too.
SECONDS, BYTES = 10.0, 64 << 20
NAN, INFINITY = float("nan"), float("inf")

families = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture
def folder(family: str, demo_checkpoint: CheckpointOf, tmp_path: Path) -> Path:
    return checkpoints.copied(demo_checkpoint(family), tmp_path / "checkpoint")


def refused(folder: Path, *words: str) -> str:
    """The sentence with which the folder is refused, quickly and without much memory; it contains `words`."""
    before, begin = resident(), time.monotonic()
    with pytest.raises(CheckpointError) as error:
        Encoder(folder, "demo", "cpu")
    assert time.monotonic() - begin < SECONDS
    assert resident() - before < BYTES
    text = str(error.value)
    assert 10 < len(text) < 5000 and "\n" not in text, text
    for leak in ("panick", "serde", "unwrap", "os error", "src/", "Utf8Error"):
        assert leak not in text, text
    missing = [word for word in words if word not in text]
    assert not missing, f"{missing} not in: {text}"
    return text


def processor_object(config: dict[str, Any]) -> dict[str, Any]:
    return config.get("image_processor", config)


# config.json: values


ABSURD = [
    0,
    -1,
    -(2**63),
    10**9,
    2**31,
    2**32,
    2**63,
    10**30,
    1.5,
    1e300,
    "3",
    True,
    None,
    [3],
    {"n": 3},
    NAN,
    INFINITY,
    -INFINITY,
]
SIZES = {
    "qwen35": ["depth", "hidden_size", "num_heads", "intermediate_size", "out_hidden_size",
               "num_position_embeddings", "patch_size", "temporal_patch_size", "spatial_merge_size"],
    "glm53": ["depth", "hidden_size", "num_heads", "intermediate_size", "out_hidden_size", "patch_size",
              "projection_intermediate_size", "temporal_patch_size", "spatial_merge_size"],
}  # fmt: skip


@families
@pytest.mark.parametrize("value", ABSURD, ids=str)
def test_absurd_sizes_in_config(family: str, folder: Path, value: Any) -> None:
    """NaN and infinities, which Python writes and reads, are no JSON: then the file is refused as a whole."""
    original = (folder / "config.json").read_text()
    for key in SIZES[family]:
        if value is None and key == "projection_intermediate_size":
            continue  # null stands for the default
        checkpoints.edit(folder, "config.json", lambda config: config["vision_config"].update({key: value}))  # noqa: B023
        special = (isinstance(value, float) and value in (NAN, INFINITY, -INFINITY)) or value != value
        refused(folder, "config.json", *([] if special else [key]))
        (folder / "config.json").write_text(original)


@families
def test_every_size_is_needed(family: str, folder: Path) -> None:
    original = (folder / "config.json").read_text()
    for key in [*SIZES[family], "hidden_act"]:
        checkpoints.edit(folder, "config.json", lambda config: config["vision_config"].pop(key))  # noqa: B023
        if (
            key == "projection_intermediate_size"
        ):  # transformers' default is the intermediate size: the weights differ
            refused(folder, "merger.gate_proj.weight")
        else:
            refused(folder, "vision_config", key)
        (folder / "config.json").write_text(original)


VISION_EDITS = [
    ("hidden_size", 97, "a width of 97"),
    ("num_heads", 7, "among 7 heads"),
    ("hidden_act", "quick_gelu", "quick_gelu"),
    ("hidden_act", 5, "hidden_act"),
    ("in_channels", 4, "in_channels"),
    ("model_type", "clip_vision_model", "clip_vision_model"),
    ("model_type", 5, "model_type"),
    ("rope_theta", -1, "rope_theta"),
    ("rope_parameters", {"rope_type": "yarn"}, "yarn"),
    ("rope_parameters", [], "rope_parameters"),
    ("depth", 2, "blocks.2."),
    ("depth", 4, "blocks.3."),
    ("out_hidden_size", 128, "[128"),
    ("patch_size", 15, "patch_size"),
    ("spatial_merge_size", 4, "merge_size"),
    ("temporal_patch_size", 1, "temporal_patch_size"),
]
FAMILY_EDITS = {
    "qwen35": [
        ("num_position_embeddings", 143, "143"),
        ("num_position_embeddings", 169, "pos_embed"),
        ("deepstack_visual_indexes", [1], "deepstack"),
        ("deepstack_visual_indexes", "none", "deepstack"),
    ],
    "glm53": [
        ("rms_norm_eps", 0, "rms_norm_eps"),
        ("rms_norm_eps", -1e-5, "rms_norm_eps"),
        ("rms_norm_eps", "1e-5", "rms_norm_eps"),
        ("swiglu_limit", 0, "swiglu_limit"),
        ("swiglu_limit", -10, "swiglu_limit"),
        ("attention_bias", False, "attn.qkv.bias"),
        ("attention_bias", "yes", "attention_bias"),
        ("attention_dropout", 0.5, "attention_dropout"),
        ("projection_intermediate_size", 161, "merger"),
    ],
}


@pytest.mark.parametrize(
    ("family", "key", "value", "word"),
    [(family, *edit) for family in FAMILIES for edit in VISION_EDITS + FAMILY_EDITS[family]],
)
def test_a_wrong_value_in_vision_config(family: str, folder: Path, key: str, value: Any, word: str) -> None:
    checkpoints.edit(folder, "config.json", lambda config: config["vision_config"].update({key: value}))
    refused(folder, word)


TOP_EDITS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no vision_config": (lambda config: config.pop("vision_config"), "vision_config"),
    "vision_config null": (lambda config: config.update(vision_config=None), "vision_config"),
    "vision_config a list": (lambda config: config.update(vision_config=[1]), "vision_config"),
    "vision_config a text": (lambda config: config.update(vision_config="{}"), "vision_config"),
    "vision_config empty": (lambda config: config.update(vision_config={}), "vision_config"),
    "unknown model_type": (
        lambda config: config.update(model_type="llama", architectures=["Llama"]),
        "llama",
    ),
    "model_type a number": (lambda config: config.update(model_type=5), "model_type"),
    "architectures a text": (lambda config: config.update(architectures="Glm"), "architectures"),
    "architectures of numbers": (lambda config: config.update(architectures=[5]), "architectures"),
    "very many architectures": (lambda config: config.update(architectures=["x"] * 10_000), "architectures"),
    "nothing says the family": (
        lambda config: (config.pop("model_type"), config.pop("architectures")),
        "family",
    ),
    "model_type and architecture disagree": (
        lambda config: config.update(
            model_type="qwen3_5", architectures=["Glm5NextForConditionalGeneration"]
        ),
        "different families",
    ),
    "dtype a number": (lambda config: config.update(dtype=5), "dtype"),
}


@families
@pytest.mark.parametrize("name", TOP_EDITS)
def test_a_wrong_top_level(family: str, folder: Path, name: str) -> None:
    change, word = TOP_EDITS[name]
    checkpoints.edit(folder, "config.json", change)
    refused(folder, word)


# JSON files as files


def texts() -> Iterator[tuple[str, bytes]]:
    yield "empty", b""
    yield "spaces", b"  \n"
    yield "cut", b'{"model_type": "glm5_next", "vision_config": {'
    yield "a list", b"[]"
    yield "null", b"null"
    yield "a number", b"5"
    yield "two objects", b"{}{}"
    yield "a comment", b'{} // "x"'
    yield "not UTF-8", b'{"model_type": "\xff\xfe"}'
    yield "UTF-16", '{"model_type": "glm5_next"}'.encode("utf-16")
    yield "zero bytes", bytes(1000)
    yield "binary", os.urandom(4096)
    yield "a key twice", b'{"model_type": "glm5_next", "model_type": "qwen3_5"}'
    yield "deep lists", b"[" * 1_000_000
    yield "deep objects", b'{"a":' * 1_000_000
    yield "deep and closed", b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    yield "a lone surrogate", b'{"model_type": "\\ud800"}'
    yield "a number of a million digits", b'{"model_type": ' + b"9" * 1_000_000 + b"}"
    yield "a long text", b'{"model_type": "' + b"x" * 4_000_000 + b'"}'


TEXTS = dict(texts())


@families
@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("which", ["config", "processor"])
def test_json_files_that_are_none(family: str, folder: Path, name: str, which: str) -> None:
    file = "config.json" if which == "config" else PROCESSOR_FILE[family]
    (folder / file).write_bytes(TEXTS[name])
    refused(folder)


@families
def test_a_huge_json_file(family: str, folder: Path) -> None:
    for file in ("config.json", PROCESSOR_FILE[family]):
        original = (folder / file).read_bytes()
        with (folder / file).open("wb") as sparse:
            sparse.truncate(1 << 40)
        refused(folder, file)
        (folder / file).write_bytes(original)


def replace_by_pipe(path: Path) -> None:
    os.mkfifo(path)


def replace_by_folder(path: Path) -> None:
    path.mkdir()


def replace_by_loop(path: Path) -> None:
    path.symlink_to(path.name)


def replace_by_endless_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def replace_by_dangling_link(path: Path) -> None:
    path.symlink_to("nowhere")


@families
@pytest.mark.parametrize("file", ["config.json", "processor", "model.safetensors"])
@pytest.mark.parametrize(
    "replace",
    [
        replace_by_pipe,
        replace_by_folder,
        replace_by_loop,
        replace_by_endless_device,
        replace_by_dangling_link,
        None,
    ],
    ids=lambda replace: replace.__name__ if replace else "missing",
)
def test_files_that_are_no_files(
    family: str, folder: Path, file: str, replace: Callable[[Path], None] | None
) -> None:
    file = PROCESSOR_FILE[family] if file == "processor" else file
    (folder / file).unlink()
    if replace:
        replace(folder / file)
    refused(folder, file)


def test_links_are_followed(demo_checkpoint: CheckpointOf, tmp_path: Path) -> None:
    """As a hub's cache lays a checkpoint out."""
    (tmp_path / "links").mkdir()
    for file in demo_checkpoint("glm53").iterdir():
        (tmp_path / "links" / file.name).symlink_to(file)
    with Encoder(tmp_path / "links", "demo", "cpu") as encoder:
        assert encoder.generate(images.png(8, 8))


# The processor's file


PROCESSOR_EDITS: list[tuple[str, Any, str]] = [
    ("patch_size", 13, "patch_size 13"),
    ("patch_size", 0, "patch_size"),
    ("patch_size", "16", "patch_size"),
    ("merge_size", 3, "merge_size 3"),
    ("temporal_patch_size", 1, "temporal_patch_size 1"),
    ("image_mean", [0.5, 0.5], "image_mean"),
    ("image_mean", [0.5] * 4, "image_mean"),
    ("image_mean", ["a", "b", "c"], "image_mean"),
    ("image_mean", "0.5", "image_mean"),
    ("image_std", [0.0, 0.5, 0.5], "image_std"),
    ("image_std", [-0.5, 0.5, 0.5], "image_std"),
    ("rescale_factor", 0, "rescale_factor"),
    ("rescale_factor", -1, "rescale_factor"),
    ("rescale_factor", "1/255", "rescale_factor"),
    ("resample", 99, "resample"),
    ("resample", -1, "resample"),
    ("resample", "bicubic", "resample"),
    ("do_resize", False, "do_resize"),
    ("do_rescale", False, "do_rescale"),
    ("do_normalize", False, "do_normalize"),
    ("do_normalize", "no", "do_normalize"),
]
FAMILY_PROCESSOR_EDITS: dict[str, list[tuple[str, Any, str]]] = {
    "qwen35": [
        ("size", {"shortest_edge": 65536}, "longest_edge"),
        ("size", {"longest_edge": 65536}, "shortest_edge"),
        ("size", {}, "shortest_edge"),
        ("size", {"height": 224, "width": 224}, "shortest_edge"),
        ("size", 224, "size"),
        ("size", {"shortest_edge": 70000, "longest_edge": 65536}, "at least 70000"),
        ("size", {"shortest_edge": -5, "longest_edge": 65536}, "shortest_edge"),
        ("size", {"shortest_edge": 1, "longest_edge": 10**18}, "longest_edge"),
        ("min_pixels", 10**8, "at least"),
        ("min_pixels", 0, "min_pixels"),
        ("max_pixels", 5, "at most 5"),
        ("max_pixels", 2**31, "max_pixels"),
    ],
    "glm53": [
        ("min_image_tokens", 9000, "at least 9000"),
        ("min_image_tokens", -1, "min_image_tokens"),
        ("max_image_tokens", 0, "max_image_tokens"),
        ("max_image_tokens", 10**12, "max_image_tokens"),
        ("patch_expand_factor", 0, "patch_expand_factor"),
        ("patch_expand_factor", 10**6, "patch_expand_factor"),
    ],
}


@pytest.mark.parametrize(
    ("family", "key", "value", "word"),
    [(family, *edit) for family in FAMILIES for edit in PROCESSOR_EDITS + FAMILY_PROCESSOR_EDITS[family]],
)
def test_a_wrong_value_in_the_processors_file(
    family: str, folder: Path, key: str, value: Any, word: str
) -> None:
    checkpoints.edit(
        folder, PROCESSOR_FILE[family], lambda config: processor_object(config).update({key: value})
    )
    refused(folder, word)
    with pytest.raises(CheckpointError):
        _native.Processor(folder, "", family)


@families
@pytest.mark.parametrize("layout", ["flat", "nested", "both"])
def test_layouts_of_the_processors_file(
    family: str, folder: Path, demo_checkpoint: CheckpointOf, layout: str
) -> None:
    """Where both exist the nested one counts, as in transformers."""
    settings = processor_object(json.loads((folder / PROCESSOR_FILE[family]).read_text()))
    (folder / PROCESSOR_FILE[family]).unlink()
    if layout != "flat":
        (folder / "processor_config.json").write_text(json.dumps({"image_processor": settings}))
    if layout != "nested":
        changed = settings if layout == "flat" else {**settings, "image_mean": [0.1, 0.1, 0.1]}
        (folder / "preprocessor_config.json").write_text(json.dumps(changed))
    source = images.png(200, 100)
    wanted, _ = _native.Processor(demo_checkpoint(family), "", family).pixel_values(source)
    got, _ = _native.Processor(folder, "", family).pixel_values(source)
    assert (got == wanted).all()


# Weights


NAME = {
    "qwen35": "model.visual.blocks.1.mlp.linear_fc1.weight",
    "glm53": "model.visual.blocks.1.mlp.up_proj.weight",
}


@families
def test_a_missing_tensor(family: str, folder: Path) -> None:
    checkpoints.edit_tensors(folder, lambda tensors: tensors.pop(NAME[family]))
    refused(folder, "1 missing", NAME[family].removeprefix("model.visual."))


@families
def test_a_surplus_tensor(family: str, folder: Path) -> None:
    checkpoints.edit_tensors(
        folder, lambda tensors: tensors.update({"model.visual.blocks.1.mlp.extra": torch.ones(2)})
    )
    refused(folder, "1 unexpected", "blocks.1.mlp.extra")


@families
def test_every_fault_is_listed(family: str, folder: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors.pop(NAME[family])
        tensors["model.visual.surplus"] = torch.ones(2)
        tensors["model.visual.blocks.0.norm1.weight"] = torch.ones(5)

    checkpoints.edit_tensors(folder, change)
    refused(folder, "1 missing", "1 unexpected", "1 of another shape", "[5]")


@families
@pytest.mark.parametrize("shape", [(5,), (), (0,), (1, 1, 1, 1), (2, 2)], ids=str)
def test_a_misshapen_tensor(family: str, folder: Path, shape: tuple[int, ...]) -> None:
    checkpoints.edit_tensors(folder, lambda tensors: tensors.update({NAME[family]: torch.ones(shape)}))
    refused(folder, NAME[family].removeprefix("model.visual."))


@families
def test_a_transposed_tensor(family: str, folder: Path) -> None:
    checkpoints.edit_tensors(folder, lambda tensors: tensors.update({NAME[family]: tensors[NAME[family]].T}))
    refused(folder, "of another shape")


@families
@pytest.mark.parametrize(
    "dtype",
    [torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2, torch.int32, torch.bool, torch.float64],
    ids=str,
)
def test_a_tensor_of_another_type(family: str, folder: Path, dtype: torch.dtype) -> None:
    checkpoints.edit_tensors(
        folder, lambda tensors: tensors.update({NAME[family]: tensors[NAME[family]].to(dtype)})
    )
    refused(folder, "float32, bfloat16 or float16", NAME[family].removeprefix("model.visual."))


@families
@pytest.mark.parametrize("suffix", ["_scale", "_scale_inv", ".scales"])
def test_a_scale_beside_a_weight(family: str, folder: Path, suffix: str) -> None:
    """A quantised layer whose weight has been stored in a type that we read."""
    checkpoints.edit_tensors(folder, lambda tensors: tensors.update({NAME[family] + suffix: torch.ones(1)}))
    refused(folder)


@families
def test_weights_of_the_language_model_are_left_alone(
    family: str, folder: Path, demo_checkpoint: CheckpointOf
) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = torch.ones(3, 3, dtype=torch.int8)
        tensors["model.language_model.layers.0.mlp.up_proj.weight"] = torch.ones(4, 4).to(torch.float8_e4m3fn)
        tensors["model.language_model.layers.0.mlp.up_proj.weight_scale_inv"] = torch.ones(1)

    checkpoints.edit_tensors(folder, change)
    source = images.png(100, 100)
    with Encoder(folder, "demo", "cpu") as changed, Encoder(demo_checkpoint(family), "demo", "cpu") as plain:
        assert torch.equal(changed.generate(source)[0].tensor, plain.generate(source)[0].tensor)


@families
@pytest.mark.parametrize("value", [NAN, INFINITY], ids=str)
def test_weights_that_are_not_numbers(family: str, folder: Path, value: float) -> None:
    checkpoints.edit_tensors(folder, lambda tensors: tensors[NAME[family]].fill_(value))
    with pytest.raises(CheckpointError, match="holds NaN or infinity"):
        Encoder(folder, "demo", "cpu")


@families
def test_a_truncated_file_of_weights(family: str, folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    header = int.from_bytes(whole[:8], "little")
    for length in (
        0,
        1,
        7,
        8,
        9,
        8 + header // 2,
        8 + header,
        8 + header + 1,
        len(whole) // 2,
        len(whole) - 1,
    ):
        (folder / "model.safetensors").write_bytes(whole[:length])
        refused(folder, "model.safetensors")


@families
@pytest.mark.parametrize("length", [0, 1, 2**31, 2**32, 2**63, 2**64 - 1])
def test_an_absurd_header_length(family: str, folder: Path, length: int) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(length.to_bytes(8, "little") + whole[8:])
    refused(folder, "model.safetensors")


def write_header(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + whole[8 + length :])


HEADERS: dict[str, Callable[[dict[str, Any]], object]] = {
    "offsets past the end": lambda entry: entry.update(data_offsets=[0, 2**62]),
    "offsets backwards": lambda entry: entry.update(data_offsets=[100, 50]),
    "negative offsets": lambda entry: entry.update(data_offsets=[-1, 50]),
    "one offset": lambda entry: entry.update(data_offsets=[0]),
    "offsets of another size": lambda entry: entry["data_offsets"].__setitem__(
        1, entry["data_offsets"][1] - 2
    ),
    "a shape whose product overflows": lambda entry: entry.update(shape=[2**32, 2**32, 2]),
    "a negative shape": lambda entry: entry.update(shape=[-4, -4]),
    "a shape that is a text": lambda entry: entry.update(shape="4x4"),
    "very many dimensions": lambda entry: entry.update(shape=[1] * 100_000),
    "no shape": lambda entry: entry.pop("shape"),
    "no dtype": lambda entry: entry.pop("dtype"),
    "an unknown dtype": lambda entry: entry.update(dtype="BF17"),
    "no offsets": lambda entry: entry.pop("data_offsets"),
}


@families
@pytest.mark.parametrize("name", HEADERS)
def test_a_wrong_entry_of_the_header(family: str, folder: Path, name: str) -> None:
    write_header(folder, lambda header: HEADERS[name](header[NAME[family]]))
    refused(folder)


# Sharded checkpoints


def shard(folder: Path, change: Callable[[dict[str, str]], object]) -> None:
    """Renames the one file to a shard and writes an index whose map `change` works on."""
    names = [name for name in header_names(folder / "model.safetensors") if name != "__metadata__"]
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    places = dict.fromkeys(names, "model-00001-of-00002.safetensors")
    change(places)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def header_names(path: Path) -> list[str]:
    with path.open("rb") as file:
        return list(json.loads(file.read(int.from_bytes(file.read(8), "little"))))


@families
def test_a_sharded_checkpoint_with_the_other_shard_absent(family: str, folder: Path) -> None:
    shard(folder, lambda places: places.update({"lm_head.weight": "model-00002-of-00002.safetensors"}))
    with Encoder(folder, "demo", "cpu") as encoder:
        assert encoder.generate(images.png(8, 8))


@families
@pytest.mark.parametrize(
    "place",
    [
        "",
        "../../etc/passwd.safetensors",
        "/etc/passwd",
        "a/b.safetensors",
        "absent.safetensors",
        "config.json",
        5,
        None,
        ["x"],
    ],
)
def test_a_wrong_place_in_the_index(family: str, folder: Path, place: Any) -> None:
    shard(folder, lambda places: places.update({NAME[family]: place}))
    refused(folder)


@families
@pytest.mark.parametrize(
    "text",
    [b"", b"{}", b'{"weight_map": []}', b'{"weight_map": {}}', b'{"weight_map": null}', b"[" * 100_000],
)
def test_an_index_that_is_none(family: str, folder: Path, text: bytes) -> None:
    shard(folder, lambda places: None)
    (folder / "model.safetensors.index.json").write_bytes(text)
    refused(folder)
