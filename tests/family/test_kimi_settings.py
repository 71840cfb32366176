"""Names and settings of Kimi's checkpoints: every published form is read, and every wrong one refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoints
import images
import parity
import pytest
import torch

from mm_libtorch_encoder import CheckpointError, Encoder, _native

CheckpointOf = Callable[[str], Path]
GENERATIONS = ("kimi_k25", "kimi")


def vision(**values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda config: config["vision_config"].update(values)


def media(**values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda settings: settings["media_proc_cfg"].update(values)


def test_aliases_of_the_projectors_layers(
    tmp_path: Path, demo_checkpoint: CheckpointOf, shared_encoder: Callable[..., Encoder]
) -> None:
    def respell(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            spelled = name.replace("proj.0.", "linear_1.").replace("proj.2.", "linear_2.")
            tensors[spelled] = tensors.pop(name)

    source = images.png(100, 60)
    for generation in GENERATIONS:
        folder = checkpoints.copied(demo_checkpoint(generation), tmp_path / generation)
        checkpoints.edit_tensors(folder, respell)
        with Encoder(folder, "demo", "cpu", dtype="float32") as encoder:
            got = encoder.encode_image(source)["embeddings"]
        assert torch.equal(got, shared_encoder(generation).encode_image(source)["embeddings"])


def test_names_without_their_prefix_in_vision_config(
    tmp_path: Path, demo_checkpoint: CheckpointOf, shared_encoder: Callable[..., Encoder]
) -> None:
    """And the width of the language model from its own object."""

    def rename(config: dict[str, Any]) -> None:
        values = config["vision_config"]
        for key in [key for key in values if key.startswith("vt_")]:
            values[key.removeprefix("vt_")] = values.pop(key)
        del values["text_hidden_size"]

    source = images.png(100, 60)
    folder = parity.changed(demo_checkpoint("kimi_k25"), tmp_path / "renamed", rename)
    with Encoder(folder, "demo", "cpu", dtype="float32") as encoder:
        got = encoder.encode_image(source)["embeddings"]
    assert torch.equal(got, shared_encoder("kimi_k25").encode_image(source)["embeddings"])


def test_defaults_of_vision_config_are_those_of_k25(
    tmp_path: Path, demo_checkpoint: CheckpointOf, shared_encoder: Callable[..., Encoder]
) -> None:
    def strip(config: dict[str, Any]) -> None:
        values = config["vision_config"]
        for key in ("patch_size", "merge_kernel_size", "mm_hidden_size", "merge_type", "pos_emb_type",
                    "mm_projector_type", "projector_hidden_act", "projector_ln_eps", "init_pos_emb_time",
                    "video_attn_type", "_attn_implementation"):  # fmt: skip
            del values[key]

    source = images.png(100, 60)
    folder = parity.changed(demo_checkpoint("kimi_k25"), tmp_path / "stripped", strip)
    with Encoder(folder, "demo", "cpu", dtype="float32") as encoder:
        got = encoder.encode_image(source)["embeddings"]
    assert torch.equal(got, shared_encoder("kimi_k25").encode_image(source)["embeddings"])


@pytest.mark.parametrize(
    ("generation", "model"),
    [
        ("kimi_k25", "moonshotai/Kimi-K2.5"),
        ("kimi_k25", "moonshotai/kimi-k2.6"),
        ("kimi_k25", "moonshotai/Kimi-K2.7-Code"),
        ("kimi", "moonshotai/Kimi-K3"),
    ],
)
def test_the_model_id_alone_is_enough(
    generation: str, model: str, tmp_path: Path, demo_checkpoint: CheckpointOf
) -> None:
    def anonymous(config: dict[str, Any]) -> None:
        del config["model_type"], config["architectures"]

    folder = parity.changed(demo_checkpoint(generation), tmp_path / "changed", anonymous)
    assert _native.Processor(folder, model).family == "kimi"
    with pytest.raises(CheckpointError, match="name the family"):
        _native.Processor(folder, "somebody/else")


SIZES = [
    "vt_hidden_size", "vt_num_hidden_layers", "vt_num_attention_heads", "vt_intermediate_size", "text_hidden_size",
    "qkv_hidden_size", "mm_hidden_size", "patch_size", "init_pos_emb_height", "init_pos_emb_width",
    "init_pos_emb_time",
]  # fmt: skip


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize("value", [0, -1, 2**31, 1.5, "3", True, [3]], ids=str)
def test_wrong_sizes(key: str, value: Any, tmp_path: Path, demo_checkpoint: CheckpointOf) -> None:
    folder = parity.changed(demo_checkpoint("kimi"), tmp_path / "changed", vision(**{key: value}))
    with pytest.raises(CheckpointError, match=rf"config.json: vision_config.{key} must be an integer"):
        _native.Processor(folder, "")


@pytest.mark.parametrize("key", SIZES[:4])
def test_missing_sizes(key: str, tmp_path: Path, demo_checkpoint: CheckpointOf) -> None:
    folder = parity.changed(demo_checkpoint("kimi"), tmp_path / "changed", vision(**{key: None}))
    with pytest.raises(CheckpointError, match=rf"config.json: vision_config.{key} is missing"):
        _native.Processor(folder, "")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"pos_emb_type": "rope"}, 'pos_emb_type must be "divided_fixed"'),
    ({"merge_type": "sd2"}, 'merge_type must be "sd2_tpool"'),
    ({"norm_type": "batchnorm"}, "norm_type must be one of layernorm, rmsnorm"),
    ({"mlp_type": "moe"}, 'mlp_type must be "mlp2"'),
    ({"activation_func": "relu"}, "activation_func must be one of gelu_pytorch_tanh, gelu"),
    ({"mm_projector_type": "linear"}, "mm_projector_type must be one of patchmerger, patchmergerv2"),
    ({"projector_hidden_act": "silu"}, 'projector_hidden_act must be "gelu"'),
    (
        {"pos_emb_interpolation_mode": "nearest"},
        "pos_emb_interpolation_mode must be one of bicubic, bilinear",
    ),
    ({"video_attn_type": "spatial"}, 'video_attn_type must be "spatial_temporal"'),
    ({"attn_bias": "no"}, "attn_bias must be true or false"),
    ({"projector_ln_eps": 0}, "projector_ln_eps must be a number"),
    ({"merge_kernel_size": 2}, "merge_kernel_size must be a list of 2"),
    ({"merge_kernel_size": [2, 3]}, "merge_kernel_size must be two equal numbers"),
    ({"merge_kernel_size": [3, 3]}, "merge_kernel_size 2, but the tower of config.json has 3"),
    ({"mm_hidden_size": 128}, "mm_hidden_size 128"),
    ({"vt_num_attention_heads": 5}, "divides a width of 384 among 5 heads"),
    ({"qkv_hidden_size": 378}, "multiple of 4"),
    ({"patch_size": 16}, "patch_size 14, but the tower of config.json has 16"),
    ({"init_pos_emb_time": 5}, "init_pos_emb_time must be an integer from 1 to 4"),
]


@pytest.mark.parametrize(("values", "text"), WRONG)
def test_wrong_settings(
    values: dict[str, Any], text: str, tmp_path: Path, demo_checkpoint: CheckpointOf
) -> None:
    folder = parity.changed(demo_checkpoint("kimi"), tmp_path / "changed", vision(**values))
    with pytest.raises(CheckpointError, match=text):
        _native.Processor(folder, "")


CHESSBOARD = {"pattern": "chessboard", "chessboard_square_size": 8, "chessboard_gray_value": 180}
WRONG_MEDIA: list[tuple[dict[str, Any], str]] = [
    ({"patch_size": None}, "media_proc_cfg.patch_size is missing"),
    ({"patch_size": 14.0}, "patch_size must be an integer"),
    ({"merge_kernel_size": [2, 2]}, "merge_kernel_size must be an integer"),
    ({"merge_kernel_size": 4}, "merge_kernel_size 4, but the tower of config.json has 2"),
    ({"in_patch_limit": 0}, "in_patch_limit must be an integer"),
    ({"in_patch_limit": 1024.0}, "in_patch_limit must be an integer"),
    ({"in_patch_limit": 2**31}, "in_patch_limit must be an integer"),
    ({"patch_limit_on_one_side": 513}, "patch_limit_on_one_side must be an integer from 1 to 512"),
    ({"image_mean": [0.5, 0.5]}, "image_mean must be a list of 3"),
    ({"image_mean": None}, "image_mean is missing"),
    ({"image_std": [0.5, 0.0, 0.5]}, "image_std.* must be a number"),
    ({"fixed_output_tokens": 64}, "fixed_output_tokens must be null, got 64"),
    ({"transparent_bg_config": {"pattern": "dots"}}, "pattern must be one of black, white, gray, chessboard"),
    ({"transparent_bg_config": {**CHESSBOARD, "chessboard_square_size": 0}}, "chessboard_square_size"),
    ({"transparent_bg_config": {**CHESSBOARD, "chessboard_gray_value": 256}}, "chessboard_gray_value"),
    ({"transparent_bg_fill_stage": "never"}, "transparent_bg_fill_stage must be one of"),
]


@pytest.mark.parametrize(("values", "text"), WRONG_MEDIA)
def test_wrong_settings_of_the_processor(
    values: dict[str, Any], text: str, tmp_path: Path, demo_checkpoint: CheckpointOf
) -> None:
    folder = checkpoints.copied(demo_checkpoint("kimi"), tmp_path / "changed")
    checkpoints.edit(folder, "preprocessor_config.json", media(**values))
    with pytest.raises(CheckpointError, match=text):
        _native.Processor(folder, "")


def test_a_processors_file_without_its_object(tmp_path: Path, demo_checkpoint: CheckpointOf) -> None:
    folder = checkpoints.copied(demo_checkpoint("kimi"), tmp_path / "changed")
    file = folder / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text())["media_proc_cfg"]))
    with pytest.raises(CheckpointError, match="media_proc_cfg is missing"):
        _native.Processor(folder, "")
    file.unlink()
    with pytest.raises(
        CheckpointError, match=r"neither processor_config\.json nor preprocessor_config\.json"
    ):
        _native.Processor(folder, "")


NORM = "vision_tower.encoder.blocks.0.norm0.weight"
WEIGHTS: dict[str, tuple[str, Callable[[dict[str, torch.Tensor]], object], str]] = {
    "a missing tensor": ("kimi", lambda tensors: tensors.pop(NORM), f'1 missing: "{NORM}"'),
    "a surplus tensor": (
        "kimi",
        lambda tensors: tensors.update({"vision_tower.extra": torch.ones(2)}),
        '1 unexpected: "vision_tower.extra"',
    ),
    "a bias that K3 has not": (
        "kimi",
        lambda tensors: tensors.update({"mm_projector.proj.0.bias": torch.ones(1024)}),
        '1 unexpected: "mm_projector.proj.0.bias"',
    ),
    "a bias that K2.5 needs": (
        "kimi_k25",
        lambda tensors: tensors.pop("mm_projector.proj.2.bias"),
        '1 missing: "mm_projector.proj.2.bias"',
    ),
    "both names of a layer": (
        "kimi",
        lambda tensors: tensors.update(
            {"mm_projector.linear_1.weight": tensors["mm_projector.proj.0.weight"].clone()}
        ),
        '1 unexpected: "mm_projector.linear_1.weight"',
    ),
    "a misshapen tensor": ("kimi", lambda tensors: tensors.update({NORM: torch.ones(5)}), "of another shape"),
    "a packed tensor": (
        "kimi",
        lambda tensors: tensors.update({NORM: torch.ones(256, dtype=torch.int8)}),
        "float32, bfloat16 or float16",
    ),
    "a scale beside a weight": (
        "kimi",
        lambda tensors: tensors.update({NORM + "_scale": torch.ones(1)}),
        "stands beside a weight",
    ),
    "no number": ("kimi", lambda tensors: tensors[NORM][3].fill_(float("nan")), "NaN"),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_wrong_weights(name: str, tmp_path: Path, demo_checkpoint: CheckpointOf) -> None:
    generation, change, text = WEIGHTS[name]
    folder = checkpoints.copied(demo_checkpoint(generation), tmp_path / "changed")
    checkpoints.edit_tensors(folder, change)
    with pytest.raises(CheckpointError, match=text):
        Encoder(folder, "", "cpu")


def test_packed_experts_of_the_language_model_do_not_matter(
    tmp_path: Path, demo_checkpoint: CheckpointOf
) -> None:
    """Nor does a quantization_config that does not leave the tower out by name."""
    folder = parity.changed(
        demo_checkpoint("kimi_k25"),
        tmp_path / "changed",
        lambda config: config.update(
            quantization_config={"quant_method": "compressed-tensors", "ignore": []}
        ),
    )
    extra = {
        "language_model.model.layers.1.mlp.experts.0.up_proj.weight_packed": torch.zeros(
            3, 2, dtype=torch.int32
        ),
        "language_model.model.layers.1.mlp.experts.0.up_proj.weight_scale": torch.zeros(3, 2),
        "language_model.model.norm.weight": torch.zeros(3),
    }
    checkpoints.edit_tensors(folder, lambda tensors: tensors.update(extra))
    with Encoder(folder, "", "cpu") as encoder:
        assert encoder.family == "kimi"
