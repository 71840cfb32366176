"""What sets the generations of Qwen-VL apart: windows, deepstack, the names of their tensors and settings."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import checkpoints
import goldens
import images
import numpy as np
import parity
import PIL.Image
import PIL.ImageOps
import pytest
import torch
from images import Spec

from mm_libtorch_encoder import CheckpointError, Encoder, _native

upstream = pytest.importorskip("reference.qwen_glm", reason="needs transformers and torchvision")

CheckpointOf = Callable[[str], Path]
FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen35")
PATCH = {"qwen2_vl": 14, "qwen2_5_vl": 14, "qwen3_vl": 16, "qwen35": 16}
families = pytest.mark.parametrize("family", FAMILIES)
MEDIA = (
    Spec(640, 427, 1),
    Spec(83, 57, 2),
    Spec(1, 1, 3),
    Spec(30, 1700, 4),
    Spec(1100, 23, 5),
    Spec(224, 224, 6),
    Spec(321, 203, 7, "RGBA"),
    Spec(333, 600, 8),
)


def vision(**values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda config: config["vision_config"].update(values)


def embeddings(
    folder: Path, pixels: torch.Tensor, grids: torch.Tensor, dtype: str, name: str = "embeddings"
) -> torch.Tensor:
    return upstream.forward(folder, pixels, grids, dtype)[name]


def compare(family: str, folder: Path) -> None:
    parity.compare(
        family, folder, partial(upstream.preprocess, folder), partial(embeddings, folder), MEDIA, bound=1e-5
    )
    upstream.tower.cache_clear()


@families
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_embeddings(family: str, seed: int, tmp_path: Path, demo_checkpoint: CheckpointOf) -> None:
    compare(family, parity.checkpoint(family, tmp_path / "tiny", seed, demo_checkpoint(family)))


@pytest.mark.slow
@families
@pytest.mark.parametrize("seed", [1, 2])
def test_embeddings_of_published_width(family: str, seed: int, tmp_path: Path) -> None:
    compare(family, checkpoints.published_width(family, tmp_path / "wide", seed, depth=2))


@families
def test_float16(family: str, shared_encoder: Callable[..., Encoder]) -> None:
    parity.check_float16(partial(shared_encoder, family), MEDIA[:3])


@families
def test_several_images_in_one_forward(
    family: str, demo_checkpoint: CheckpointOf, shared_encoder: Callable[..., Encoder]
) -> None:
    processor = _native.Processor(demo_checkpoint(family), "", family)
    parity.check_batch(shared_encoder(family), processor, [images.png(200, 90, 1), images.png(30, 200, 2)])


@families
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_clips_and_images_together(
    family: str, dtype: str, demo_checkpoint: CheckpointOf, shared_encoder: Callable[..., Encoder]
) -> None:
    """Frames of a clip do not see each other; windows are ragged at the right and bottom."""
    grids = torch.tensor([(3, 10, 14), (1, 2, 2), (1, 16, 8), (2, 18, 6)])
    columns = 3 * 2 * PATCH[family] ** 2
    count = int(grids.prod(1).sum())
    pixels = torch.from_numpy(images.noise(columns, count, 5, 1)[..., 0].astype(np.float32) / 127.5 - 1)
    exact = upstream.forward(demo_checkpoint(family), pixels, grids, "float32")
    theirs = upstream.forward(demo_checkpoint(family), pixels, grids, dtype)
    ours = shared_encoder(family, dtype).encode_pixels(pixels, grids.tolist())
    assert ours["embedding_offsets"].tolist() == [0, 105, 106, 138, 192]
    for name in theirs:
        wanted = exact[name].numpy()
        distance = goldens.relative(ours[name].float().numpy(), wanted)
        bound = 1e-5 if dtype == "float32" else 1.05 * goldens.relative(theirs[name].float().numpy(), wanted)
        assert distance <= bound, name


# Deepstack


@pytest.fixture
def prepared(demo_checkpoint: CheckpointOf) -> tuple[torch.Tensor, torch.Tensor]:
    return upstream.preprocess(demo_checkpoint("qwen3_vl"), images.png(400, 300, 4))


def test_deepstack_in_bfloat16(
    prepared: tuple[torch.Tensor, torch.Tensor],
    demo_checkpoint: CheckpointOf,
    shared_encoder: Callable[..., Encoder],
) -> None:
    folder = demo_checkpoint("qwen3_vl")
    exact, theirs = (
        embeddings(folder, *prepared, dtype, "deepstack").float().numpy() for dtype in ("float32", "bfloat16")
    )
    ours = shared_encoder("qwen3_vl", "bfloat16").encode_pixels(prepared[0], prepared[1].tolist())[
        "deepstack"
    ]
    assert ours.shape == exact.shape and ours.dtype == torch.bfloat16
    for level in range(len(exact)):
        distance = goldens.relative(ours[level].float().numpy(), exact[level])
        assert distance <= 1.05 * goldens.relative(theirs[level], exact[level])
        assert goldens.cosine(ours[level].float().numpy(), exact[level]) >= 0.9999


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_concatenated_deepstack(dtype: str, shared_encoder: Callable[..., Encoder]) -> None:
    """SGLang's form holds the same values: main columns, then level by level."""
    source = images.png(222, 111, 3)
    apart = shared_encoder("qwen3_vl", dtype).encode_image(source)
    joined = shared_encoder("qwen3_vl", dtype, deepstack="concatenated")
    assert torch.equal(
        joined.encode_image(source)["embeddings"],
        torch.cat([apart["embeddings"], *apart["deepstack"]], dim=1),
    )
    assert "deepstack" not in joined.encode_image(source)
    (result,) = joined.generate(source)
    assert result.metadata.shape == tuple(result.tensor.shape) == (len(apart["embeddings"]), 3 * 96)


def test_a_tower_of_qwen3_without_levels(
    tmp_path: Path, demo_checkpoint: CheckpointOf, prepared: tuple[torch.Tensor, torch.Tensor]
) -> None:
    change = vision(deepstack_visual_indexes=[])
    folder = parity.checkpoint("qwen3_vl", tmp_path / "plain", 1, demo_checkpoint("qwen3_vl"), change)
    for deepstack in ("separate", "concatenated"):
        with Encoder(folder, "demo", "cpu", dtype="float32", deepstack=deepstack) as encoder:
            outputs = encoder.encode_pixels(prepared[0], prepared[1].tolist())
        assert outputs.keys() == {"embeddings", "grid_thws", "embedding_offsets"}
        assert outputs["embeddings"].shape[1] == 96


def test_only_qwen3_has_deepstack(demo_checkpoint: CheckpointOf) -> None:
    for family in ("qwen2_vl", "qwen2_5_vl", "qwen35", "glm53"):
        with pytest.raises(ValueError, match="no option deepstack"):
            Encoder(demo_checkpoint(family), "demo", "cpu", deepstack="separate")
    with pytest.raises(ValueError, match="separate or concatenated"):
        Encoder(demo_checkpoint("qwen3_vl"), "demo", "cpu", deepstack="stacked")


# Names and settings


@families
@pytest.mark.parametrize("prefix", ["visual.", "model.visual."])
def test_both_spellings_of_the_prefix(
    family: str,
    prefix: str,
    tmp_path: Path,
    demo_checkpoint: CheckpointOf,
    shared_encoder: Callable[..., Encoder],
) -> None:
    def respell(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[prefix + name.removeprefix("model.").removeprefix("visual.")] = tensors.pop(name)

    folder = checkpoints.copied(demo_checkpoint(family), tmp_path / "respelled")
    checkpoints.edit_tensors(folder, respell)
    source = images.png(100, 60)
    with Encoder(folder, "demo", "cpu", dtype="float32") as encoder:
        got = encoder.encode_image(source)["embeddings"]
    assert torch.equal(got, shared_encoder(family).encode_image(source)["embeddings"])


@pytest.mark.parametrize(
    ("family", "model_type", "architecture", "vision_type", "model"),
    [
        ("qwen2_vl", "qwen2_vl", "Qwen2VLForConditionalGeneration", "qwen2_vl", "Qwen/Qwen2-VL-7B-Instruct"),
        ("qwen2_vl", "qwen2_vl", "Qwen2VLForConditionalGeneration", "qwen2_vl_vision", ""),
        ("qwen2_5_vl", "qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", "Qwen/Qwen2.5-VL-7B-Instruct"),
        ("qwen2_5_vl", "qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl_vision", ""),
        ("qwen3_vl", "qwen3_vl", "Qwen3VLForConditionalGeneration", "qwen3_vl_vision", "Qwen/Qwen3-VL-8B-Thinking"),
        ("qwen3_vl", "qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe",
         "Qwen/Qwen3-VL-30B-A3B-Instruct"),
        ("qwen3_vl", "qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe_vision", ""),
        ("qwen35", "qwen3_5", "Qwen3_5ForConditionalGeneration", "qwen3_5_vision", "Qwen/Qwen3.5-9B"),
        ("qwen35", "qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe", "Qwen/Qwen3.5-35B-A3B"),
    ],
)  # fmt: skip
def test_published_names(
    family: str,
    model_type: str,
    architecture: str,
    vision_type: str,
    model: str,
    tmp_path: Path,
    demo_checkpoint: CheckpointOf,
) -> None:
    def rename(config: dict[str, Any]) -> None:
        config.update(model_type=model_type, architectures=[architecture])
        config["vision_config"]["model_type"] = vision_type

    folder = parity.changed(demo_checkpoint(family), tmp_path / "renamed", rename)
    assert _native.Processor(folder, model).family == family
    if model:

        def anonymous(config: dict[str, Any]) -> None:
            del config["model_type"], config["architectures"]

        checkpoints.edit(folder, "config.json", anonymous)
        assert _native.Processor(folder, model).family == family


def test_a_checkpoint_of_another_generation(demo_checkpoint: CheckpointOf) -> None:
    with pytest.raises(CheckpointError, match=r"of the family qwen3_vl, but the model id says qwen2_5_vl"):
        _native.Processor(demo_checkpoint("qwen3_vl"), "Qwen/Qwen2.5-VL-7B-Instruct")
    with pytest.raises(CheckpointError, match=r"of the family qwen2_vl, not of qwen35"):
        _native.Processor(demo_checkpoint("qwen2_vl"), "", "qwen35")


NEEDED = {
    "qwen2_vl": ["depth", "embed_dim", "hidden_size", "mlp_ratio", "num_heads", "patch_size",
                 "spatial_merge_size", "temporal_patch_size"],
    "qwen2_5_vl": ["depth", "hidden_size", "intermediate_size", "num_heads", "out_hidden_size", "patch_size",
                   "spatial_merge_size", "temporal_patch_size", "window_size", "fullatt_block_indexes"],
    "qwen3_vl": ["depth", "hidden_size", "intermediate_size", "num_heads", "out_hidden_size", "patch_size",
                 "spatial_merge_size", "temporal_patch_size", "num_position_embeddings", "hidden_act",
                 "deepstack_visual_indexes"],
}  # fmt: skip


@pytest.mark.parametrize(("family", "key"), [(family, key) for family in NEEDED for key in NEEDED[family]])
@pytest.mark.parametrize("value", [None, 0, -1, 2**31, 1.5, "3", True, {"n": 3}], ids=str)
def test_needed_settings(
    family: str, key: str, value: Any, tmp_path: Path, demo_checkpoint: CheckpointOf
) -> None:
    if (key, value) == ("mlp_ratio", 1.5):
        return
    folder = parity.changed(demo_checkpoint(family), tmp_path / "changed", vision(**{key: value}))
    with pytest.raises(CheckpointError, match=rf"config.json: vision_config.{key} (is missing|must be)"):
        _native.Processor(folder, "")


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("qwen2_vl", {"hidden_act": "silu"}, 'hidden_act must be "quick_gelu", got "silu"'),
    ("qwen2_vl", {"model_type": "qwen3_vl"}, "model_type must be one of qwen2_vl, qwen2_vl_vision"),
    ("qwen2_vl", {"embed_dim": 66}, "a width of 66 among 4 heads"),
    ("qwen2_vl", {"in_chans": 4}, "in_chans must be an integer from 3 to 3"),
    ("qwen2_vl", {"mlp_ratio": 1000}, "mlp_ratio must be a number"),
    ("qwen2_5_vl", {"hidden_act": "gelu"}, "hidden_act"),
    ("qwen2_5_vl", {"window_size": 27}, "has window_size 27, less than one block"),
    ("qwen2_5_vl", {"fullatt_block_indexes": [4]}, r"fullatt_block_indexes\[0\] must be an integer from 0 to 3"),
    ("qwen2_5_vl", {"fullatt_block_indexes": "all"}, "fullatt_block_indexes must be a list"),
    ("qwen2_5_vl", {"hidden_size": 60}, "a width of 60 among 4 heads"),
    ("qwen3_vl", {"hidden_act": "gelu"}, 'hidden_act must be "gelu_pytorch_tanh"'),
    ("qwen3_vl", {"deepstack_visual_indexes": [2, 0]}, "must ascend"),
    ("qwen3_vl", {"deepstack_visual_indexes": [1, 1]}, "must ascend"),
    ("qwen3_vl", {"deepstack_visual_indexes": [0, 4]}, r"deepstack_visual_indexes\[1\] must be an integer from 0 to 3"),
    ("qwen3_vl", {"num_position_embeddings": 143}, "143, which is not a square"),
    ("qwen3_vl", {"model_type": "qwen3_5"}, "model_type must be one of qwen3_vl"),
    ("qwen3_vl", {"rope_parameters": {"rope_type": "yarn"}}, "yarn"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "values", "text"), WRONG)
def test_wrong_settings(
    family: str, values: dict[str, Any], text: str, tmp_path: Path, demo_checkpoint: CheckpointOf
) -> None:
    folder = parity.changed(demo_checkpoint(family), tmp_path / "changed", vision(**values))
    with pytest.raises(CheckpointError, match=text):
        _native.Processor(folder, "")


@pytest.mark.parametrize(
    ("family", "values", "text"),
    [
        ("qwen2_vl", {"depth": 4}, "blocks.3."),
        ("qwen2_vl", {"mlp_ratio": 3}, "of another shape"),
        ("qwen2_5_vl", {"intermediate_size": 147}, "of another shape"),
        ("qwen3_vl", {"deepstack_visual_indexes": [0]}, "unexpected.*deepstack_merger_list.1"),
        ("qwen3_vl", {"deepstack_visual_indexes": [0, 1, 2]}, "missing.*deepstack_merger_list.2"),
        ("qwen3_vl", {"num_position_embeddings": 169}, "pos_embed.weight"),
    ],
)
def test_weights_that_do_not_fit_the_settings(
    family: str, values: dict[str, Any], text: str, tmp_path: Path, demo_checkpoint: CheckpointOf
) -> None:
    folder = parity.changed(demo_checkpoint(family), tmp_path / "changed", vision(**values))
    with pytest.raises(CheckpointError, match=text):
        Encoder(folder, "", "cpu")


@families
def test_grids_that_cannot_be(family: str, shared_encoder: Callable[..., Encoder]) -> None:
    encoder = shared_encoder(family)
    matrix = torch.zeros(4, 3 * 2 * PATCH[family] ** 2)
    for grid in [(0, 2, 2), (1, 0, 4), (1, 4, 1), (1, 2, 4), (1, 2**31, 2**31)]:
        with pytest.raises(ValueError, match=r"grid|pixel_values"):
            encoder.encode_pixels(matrix, [grid])
    assert encoder.encode_pixels(matrix, [(1, 2, 2)])["embeddings"].shape[0] == 1


@pytest.mark.parametrize("policy", ["sglang", "hf", "vllm"])
def test_decode_policies_of_other_engines(policy: str, demo_checkpoint: CheckpointOf) -> None:
    """Who heeds orientation and alpha differs; the processor behind is the same."""
    folder = demo_checkpoint("qwen35")
    processor = _native.Processor(folder, "", decode_policy=policy)
    transparent = images.png(120, 90, 1, "RGBA")
    turned = images.oriented(images.picture(90, 151, 13), 6)
    for data in (transparent, turned):
        image = PIL.Image.open(io.BytesIO(data))
        if policy == "hf":
            image = PIL.ImageOps.exif_transpose(image)
        if policy != "vllm" or image.mode != "RGBA":
            image = image.convert("RGB")
        wanted = upstream.processor(folder)(images=[image], return_tensors="pt")["pixel_values"].numpy()
        assert np.array_equal(processor.pixel_values(data)[0], wanted)


def test_an_unknown_decode_policy(demo_checkpoint: CheckpointOf) -> None:
    with pytest.raises(ValueError, match='decode policy "best" is unknown'):
        Encoder(demo_checkpoint("qwen35"), "demo", "cpu", decode_policy="best")


def test_pixel_limits_of_older_files(tmp_path: Path, demo_checkpoint: CheckpointOf) -> None:
    """min_pixels and max_pixels count before `size`, and transformers' defaults where neither is there."""
    folder = checkpoints.copied(demo_checkpoint("qwen2_vl"), tmp_path / "changed")

    def limits(**values: Any) -> tuple[int, int, int]:
        def change(settings: dict[str, Any]) -> None:
            for key in ("min_pixels", "max_pixels", "size"):
                settings.pop(key, None)
            settings.update(values)

        checkpoints.edit(folder, "preprocessor_config.json", change)
        grid, _ = _native.Processor(folder, "").plan(2000, 2000)
        (_, *theirs) = upstream.processor(folder)(images=[images.picture(2000, 2000)], return_tensors="pt")[
            "image_grid_thw"
        ][0].tolist()
        assert list(grid) == [1, *theirs], values
        return grid

    size = {"shortest_edge": 3136, "longest_edge": 784 * 100}
    assert limits() == (1, 70, 70)
    assert limits(size=size) == (1, 20, 20)
    assert limits(size=size, max_pixels=784 * 400) == (1, 40, 40)
    assert limits(min_pixels=784 * 90_00, max_pixels=784 * 10_000) == (1, 190, 190)
