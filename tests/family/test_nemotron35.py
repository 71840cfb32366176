"""Nemotron 3.5 Super VL against transformers, under the names of the release and of ModelOpt's exports."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import checkpoints
import images
import parity
import pytest
import torch
from images import Spec

from mm_libtorch_encoder import CheckpointError, Encoder, MediaError, _native

nemotron = pytest.importorskip("reference.nemotron", reason="needs transformers and torchvision")

FAMILY = "nemotron35"
QUICK_PIXELS = 40_000
RADIO = "vision_model.radio_model.model."
CheckpointOf = Callable[[str], Path]

# (width, height): rows and columns of patches, as the published package plans them.
PLANS = {
    (224, 224): (32, 32),
    (64, 32): (24, 46),
    (48, 32): (24, 46),
    (512, 512): (32, 32),
    (1000, 500): (32, 64),
    (1024, 1024): (64, 64),
    (640, 427): (28, 40),
    (1023, 769): (50, 64),
    (1920, 1080): (68, 120),
    (4000, 3): (4, 506),
}
MEDIA = (
    Spec(640, 427, 1),
    Spec(83, 57, 2),
    Spec(1, 1, 3),
    Spec(30, 1200, 4),
    Spec(900, 23, 5),
    Spec(256, 384, 6, "RGBA"),
    Spec(512, 512, 7, "L"),
    Spec(240, 240, 8, "P"),
)


@pytest.fixture(scope="module")
def processor(demo_checkpoint: CheckpointOf) -> _native.Processor:
    return _native.Processor(demo_checkpoint(FAMILY), "", FAMILY)


def test_plans_are_the_published_ones(processor: _native.Processor) -> None:
    for size, (rows, columns) in PLANS.items():
        assert processor.plan(*size) == ((1, rows, columns), rows * columns // 4), size


def with_processor(source: Path, folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    checkpoints.edit(checkpoints.copied(source, folder), "preprocessor_config.json", change)
    return folder


@pytest.mark.parametrize(
    "budget",
    [{}, {"max_model_len": 400}, {"min_num_patches": 64}, {"max_num_patches": 1024}, {"max_model_len": 3}],
    ids=str,
)
def test_grids_of_random_sizes(budget: dict[str, int], tmp_path: Path, demo_checkpoint: CheckpointOf) -> None:
    folder = with_processor(
        demo_checkpoint(FAMILY), tmp_path / "changed", lambda config: config.update(budget)
    )
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    processor = _native.Processor(folder, "", FAMILY)
    too_thin = 0
    for width, height in [(60_000, 1), (1, 60_000), *images.sizes(4_000 if budget else 20_000, 77, 11_000)]:
        try:
            rows, columns = nemotron.grid(settings, height, width)
        except ZeroDivisionError:
            too_thin += 1
            with pytest.raises(MediaError, match="aspect ratio"):
                processor.plan(width, height)
            continue
        if rows == 0 or columns == 0:  # where nothing is enlarged, transformers goes on with no patch
            too_thin += 1
            with pytest.raises(MediaError, match="aspect ratio"):
                processor.plan(width, height)
            continue
        assert processor.plan(width, height) == ((1, rows, columns), rows * columns // 4), (width, height)
    assert too_thin == 0 or budget


def check_sizes(folder: Path, big: bool) -> None:
    processor = _native.Processor(folder, "", FAMILY)
    for seed, (width, height) in enumerate([(512, 512), (240, 240), (1, 1), *images.sizes(197, 2024, 4000)]):
        if (width * height > QUICK_PIXELS) == big:
            data = images.encode(
                images.picture(width, height, seed, grain_only=seed % 2 == 0), compress_level=0
            )
            parity.check_pixels(processor, data, partial(nemotron.preprocess, folder), (width, height))


def test_pixel_values_of_small_random_sizes(demo_checkpoint: CheckpointOf) -> None:
    check_sizes(demo_checkpoint(FAMILY), big=False)


@pytest.mark.slow
def test_pixel_values_of_big_random_sizes(demo_checkpoint: CheckpointOf) -> None:
    check_sizes(demo_checkpoint(FAMILY), big=True)


def test_special_inputs(demo_checkpoint: CheckpointOf, processor: _native.Processor) -> None:
    """Alpha is dropped and orientation ignored, as serving engines do."""
    special = {mode: images.png(150, 90, 3, mode) for mode in ("L", "LA", "P", "RGBA")}
    special["orientation"] = images.oriented(images.picture(90, 151, 13), 6)
    special["CMYK JPEG"] = images.jpeg(201, 143, 11, "CMYK")
    special["4:2:0 JPEG"] = images.jpeg(201, 143, 9)
    special["colour key"] = images.encode(images.picture(61, 99, 12), transparency=(1, 2, 3))
    for name, data in special.items():
        parity.check_pixels(processor, data, partial(nemotron.preprocess, demo_checkpoint(FAMILY)), name)


def test_reduced_precision_pixels_are_rounded_once(processor: _native.Processor) -> None:
    data = images.png(70, 50, 1)
    full, _ = processor.pixel_values(data, "float32")
    half, _ = processor.pixel_values(data, "bfloat16")
    assert torch.equal(torch.from_numpy(full).bfloat16().view(torch.uint16), torch.from_numpy(half))


def compare(folder: Path, media: tuple[Spec, ...]) -> None:
    # A restatement in plain Torch equals transformers bit for bit.
    parity.compare(
        FAMILY,
        folder,
        partial(nemotron.preprocess, folder),
        partial(nemotron.forward, folder),
        media,
        bound=1e-6,
    )
    nemotron.tower.cache_clear()


def test_embeddings(demo_checkpoint: CheckpointOf) -> None:
    compare(demo_checkpoint(FAMILY), MEDIA)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
def test_embeddings_of_other_seeds(seed: int, tmp_path: Path, demo_checkpoint: CheckpointOf) -> None:
    compare(parity.checkpoint(FAMILY, tmp_path / "tiny", seed, demo_checkpoint(FAMILY)), MEDIA)


@pytest.mark.slow
def test_embeddings_without_the_final_norm(tmp_path: Path, demo_checkpoint: CheckpointOf) -> None:
    def change(config: dict[str, Any]) -> None:
        config["llm_config"]["num_nextn_predict_layers"] = 0

    compare(parity.checkpoint(FAMILY, tmp_path / "plain", 5, demo_checkpoint(FAMILY), change), MEDIA[:3])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_embeddings_of_published_width(seed: int, tmp_path: Path) -> None:
    compare(checkpoints.published_width(FAMILY, tmp_path / "wide", seed, depth=2), MEDIA)


def test_float16(shared_encoder: Callable[..., Encoder]) -> None:
    parity.check_float16(partial(shared_encoder, FAMILY), MEDIA[:3])


def test_several_images_in_one_forward(
    processor: _native.Processor, shared_encoder: Callable[..., Encoder]
) -> None:
    parity.check_batch(shared_encoder(FAMILY), processor, [images.png(60, 40, 1), images.png(30, 200, 2)])


# Names of the weights


@pytest.fixture
def folder(demo_checkpoint: CheckpointOf, tmp_path: Path) -> Path:
    return checkpoints.copied(demo_checkpoint(FAMILY), tmp_path / "checkpoint")


def export(folder: Path, change: Callable[[dict[str, torch.Tensor]], object] = lambda tensors: None) -> Path:
    """The same weights as ModelOpt names them, and then changed."""

    def rename(tensors: dict[str, torch.Tensor]) -> None:
        renamed = nemotron.exported(dict(tensors))
        tensors.clear()
        tensors.update(renamed)
        tensors["vision_model.summary_idxs"] = torch.tensor([0, 1])
        tensors["vision_model.embeddings.video_patch_projection.weight"] = torch.zeros(64, 1536)
        change(tensors)

    checkpoints.edit_tensors(folder, rename)
    return folder


def test_exported_names_give_the_same_tower(folder: Path, shared_encoder: Callable[..., Encoder]) -> None:
    data = images.png(100, 70)
    with Encoder(export(folder), "demo", "cpu", dtype="float32") as encoder:
        got, wanted = (one.encode_image(data)["embeddings"] for one in (encoder, shared_encoder(FAMILY)))
    assert torch.equal(got, wanted)


def test_unused_tensors_of_the_release_are_left_alone(folder: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in ("norm_mean", "norm_std"):
            tensors[f"vision_model.radio_model.input_conditioner.{name}"] = torch.zeros(3, 1, 1)
        tensors[f"{RADIO}patch_generator.video_embedder.weight"] = torch.zeros(64, 1536)
        tensors["language_model.backbone.embeddings.weight"] = torch.zeros(4, dtype=torch.int8)
        tensors["sound_encoder.x"] = torch.zeros(4, dtype=torch.int8)

    checkpoints.edit_tensors(folder, change)
    with Encoder(folder, "demo", "cpu") as encoder:
        assert encoder.family == FAMILY


LAYER = "vision_model.encoder.layer.0."
EXPORTS: dict[str, tuple[Callable[[dict[str, torch.Tensor]], object], str]] = {
    "a scale that is not one": (
        lambda tensors: tensors[f"{LAYER}layer_scale1.lambda1"].view(-1)[5].fill_(0.5),
        "not all ones",
    ),
    "a part missing": (
        lambda tensors: tensors.pop(f"{LAYER}attention.attention.key.weight"),
        "1 missing: .*attention.attention.key.weight",
    ),
    "a part of another shape": (
        lambda tensors: tensors.update({f"{LAYER}attention.attention.key.bias": torch.zeros(63)}),
        r"attention.attention.key.bias\" is \[63\] instead of \[64\]",
    ),
    "parts of different types": (
        lambda tensors: tensors.update({f"{LAYER}attention.attention.key.bias": torch.zeros(64)}),
        "1 in parts of different types: .*attn.qkv.bias",
    ),
    "a quantised part": (
        lambda tensors: tensors.update(
            {f"{LAYER}attention.attention.key.weight": torch.zeros(64, 64, dtype=torch.int8)}
        ),
        "1 quantised",
    ),
    "a scale beside a part": (
        lambda tensors: tensors.update({f"{LAYER}attention.attention.key.weight_scale": torch.ones(1)}),
        '1 quantised .*weight_scale" stands beside a weight',
    ),
    "both spellings": (
        lambda tensors: tensors.update({"mlp1.0.weight": torch.zeros(256)}),
        '1 unexpected: "mlp1.0.weight"',
    ),
    "a stranger": (
        lambda tensors: tensors.update({"vision_model.neck.weight": torch.zeros(3)}),
        '1 unexpected: "vision_model.neck.weight"',
    ),
}


@pytest.mark.parametrize("name", EXPORTS)
def test_wrong_exports(name: str, folder: Path) -> None:
    change, text = EXPORTS[name]
    with pytest.raises(CheckpointError, match=text):
        Encoder(export(folder, change), "demo", "cpu")


def test_a_final_norm_that_is_missing(folder: Path) -> None:
    norm = "vision_projector.vision_final_layernorm"
    checkpoints.edit_tensors(
        folder, lambda tensors: [tensors.pop(f"{norm}.{part}") for part in ("weight", "bias")]
    )
    with pytest.raises(CheckpointError, match=r"2 missing: .*vision_final_layernorm"):
        Encoder(folder, "demo", "cpu")


# Configurations


def vision(**values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda config: config["vision_config"].update(values)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda config: config.update(downsample_ratio=0.25),
            "downsample_ratio must be a number from 0.5 to 0.5",
        ),
        (lambda config: config.pop("downsample_ratio"), "downsample_ratio is missing"),
        (
            lambda config: config.update(vit_hidden_size=65),
            "vit_hidden_size must be an integer from 64 to 64",
        ),
        (lambda config: config.pop("llm_config"), "llm_config is missing"),
        (vision(patch_size=14), "not a multiple of patch_size 14"),
        (vision(patch_size=None), "vision_config.patch_size is missing"),
        (vision(hidden_size=None), "vision_config.hidden_size is missing"),
        (vision(use_swiglu_ffn=True), "use_swiglu_ffn"),
        (vision(layerscale_value=0.1), "layerscale_value must be a number from 1.0 to 1.0"),
        (vision(hidden_act="relu"), "hidden_act"),
        (vision(num_attention_heads=5), "among 5 heads"),
        (vision(model_type="siglip"), "model_type"),
        (vision(max_img_size=777), "max_img_size 777"),
    ],
)
def test_wrong_configurations(change: Callable[[dict[str, Any]], object], text: str, folder: Path) -> None:
    checkpoints.edit(folder, "config.json", change)
    with pytest.raises(CheckpointError, match=text):
        _native.Processor(folder, "")


@pytest.mark.parametrize("max_img_size", [512, 1024])
def test_a_table_of_another_size(max_img_size: int, folder: Path) -> None:
    checkpoints.edit(folder, "config.json", vision(max_img_size=max_img_size))
    with pytest.raises(CheckpointError, match=r"pos_embed.* instead of"):
        Encoder(folder, "", "cpu")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"patch_size": 14}, "patch_size 14, but the tower of config.json has 16"),
        ({"patch_size": None}, "patch_size is missing"),
        ({"downsample_ratio": 1.0}, "downsample_ratio"),
        ({"min_num_patches": 0}, "min_num_patches must be an integer"),
        ({"max_num_patches": 13312.0}, "max_num_patches must be an integer"),
        ({"min_num_patches": 2000, "max_num_patches": 1000}, "at least 2000 but at most 1000"),
        ({"max_model_len": None}, "max_model_len is missing"),
        ({"norm_mean": [0.5, 0.5]}, "norm_mean must be a list of 3"),
        ({"norm_std": [0.5, 0.5, 0]}, "norm_std"),
        ({"norm_mean": None}, "image_mean is missing|norm_mean is missing"),
    ],
)
def test_wrong_processor_files(change: dict[str, Any], text: str, folder: Path) -> None:
    checkpoints.edit(folder, "preprocessor_config.json", lambda config: config.update(change))
    with pytest.raises(CheckpointError, match=text):
        _native.Processor(folder, "")


def test_transformers_names_of_the_normalisation(folder: Path, processor: _native.Processor) -> None:
    def rename(config: dict[str, Any]) -> None:
        config["image_mean"], config["image_std"] = config.pop("norm_mean"), config.pop("norm_std")

    checkpoints.edit(folder, "preprocessor_config.json", rename)
    data = images.png(50, 40)
    ours, theirs = (one.pixel_values(data)[0] for one in (_native.Processor(folder, ""), processor))
    assert (ours == theirs).all()


def test_pillow_is_no_backend(demo_checkpoint: CheckpointOf) -> None:
    with pytest.raises(ValueError, match="float32"):
        _native.Processor(demo_checkpoint(FAMILY), "", backend="pillow")


@pytest.mark.parametrize("name", ["BF16", "NVFP4"])
def test_the_model_id_alone_is_enough(name: str, folder: Path) -> None:
    checkpoints.edit(
        folder, "config.json", lambda config: (config.pop("model_type"), config.pop("architectures"))
    )
    model = f"nvidia/NVIDIA-Nemotron-3.5-Super-VL-120B-A12B-{name}"
    assert _native.Processor(folder, model).family == FAMILY


def test_grids_that_cannot_be(shared_encoder: Callable[..., Encoder]) -> None:
    encoder = shared_encoder(FAMILY)
    matrix = torch.zeros(4, 768)
    for grid in [(1, 1, 4), (2, 2, 1), (2, 1, 2), (1, 0, 4), (1, 2, 4)]:
        with pytest.raises(ValueError, match=r"grid|pixel_values"):
            encoder.encode_pixels(matrix, [grid])
    assert encoder.encode_pixels(matrix, [(1, 2, 2)])["embeddings"].shape == (1, 48)
