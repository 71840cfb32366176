"""Muse Spark and Muse Glimmer against transformers, and Muse Spark's pixels against Pillow and SGLang."""

from __future__ import annotations

import importlib.util
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

from mm_libtorch_encoder import CheckpointError, Encoder, _native

muse = pytest.importorskip("reference.muse", reason="needs transformers and torchvision")

FAMILIES = ("muse_vision", "muse_glimmer")
QUICK_PIXELS = 60_000
CheckpointOf = Callable[[str], Path]
families = pytest.mark.parametrize("family", FAMILIES)
backends = pytest.mark.parametrize("backend", ["pillow-12.1", "torchvision"])
# Windows of 32 patches: one, several in a row, several in both directions, ragged.
MEDIA = (
    Spec(30, 60, 1),
    Spec(640, 427, 2),
    Spec(1, 1, 3),
    Spec(30, 1700, 4),
    Spec(1100, 23, 5),
    Spec(448, 448, 6, "RGBA"),
    Spec(150, 410, 7, "L"),
    Spec(1000, 980, 8, "P"),
)
# (width, height): rows and columns of tokens; in most of them candidates tie and the order of a set decides.
TIES = {(100, 100): (4, 4), (160, 160): (6, 6), (180, 180): (6, 6), (70, 70): (3, 3)}


@families
@backends
def test_grids_of_random_sizes(family: str, backend: str, demo_checkpoint: CheckpointOf) -> None:
    folder = demo_checkpoint(family)
    processor = _native.Processor(folder, "", family, backend=backend)
    squares = [(side, side) for side in range(1, 2500, 7)]
    multiples = [(3 * side, 2 * side) for side in range(1, 900, 5)]
    for width, height in [*TIES, *squares, *multiples, *images.sizes(20_000, 77, 11_000)]:
        to_height, to_width = muse.target(folder, width, height, backend)
        rows, columns = to_height // 14, to_width // 14
        assert processor.plan(width, height) == ((1, rows, columns), rows * columns // 4), (width, height)
    for size, (rows, columns) in TIES.items():
        assert processor.plan(*size)[0] == (1, 2 * rows, 2 * columns)


def check_sizes(family: str, folder: Path, backend: str, big: bool) -> None:
    processor = _native.Processor(folder, "", family, backend=backend)
    for seed, (width, height) in enumerate([(28, 28), (1, 1), (56, 28), *images.sizes(197, 2024, 3000)]):
        if (width * height > QUICK_PIXELS) == big:
            data = images.encode(
                images.picture(width, height, seed, grain_only=seed % 2 == 0), compress_level=0
            )
            upstream = partial(muse.preprocess, folder, backend=backend)
            parity.check_pixels(processor, data, upstream, (width, height))


@backends
def test_pixel_values_of_small_random_sizes(backend: str, demo_checkpoint: CheckpointOf) -> None:
    check_sizes("muse_vision", demo_checkpoint("muse_vision"), backend, big=False)


@pytest.mark.slow
@families
@backends
def test_pixel_values_of_big_random_sizes(family: str, backend: str, demo_checkpoint: CheckpointOf) -> None:
    check_sizes(family, demo_checkpoint(family), backend, big=True)


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("sglang") is None, reason="not run: needs sglang 0.5.23, which serves it"
)
class TestAgainstSglang:
    """What serves Muse Spark."""

    def test_grids(self, demo_checkpoint: CheckpointOf) -> None:
        processor = _native.Processor(demo_checkpoint("muse_vision"), "", "muse_vision")
        small = [(width, height) for width in range(1, 60) for height in range(1, 60)]
        for width, height in [*TIES, *small, *images.sizes(20_000, 78, 11_000)]:
            to_height, to_width = muse.sglang_target(width, height)
            assert processor.plan(width, height)[0] == (1, to_height // 14, to_width // 14), (width, height)

    def test_pixel_values(self, demo_checkpoint: CheckpointOf) -> None:
        folder = demo_checkpoint("muse_vision")
        processor = _native.Processor(folder, "", "muse_vision")
        for seed, (width, height) in enumerate([(1, 1), (3, 40), *images.sizes(198, 2025, 2500)]):
            data = images.encode(images.picture(width, height, seed, grain_only=True), compress_level=0)
            parity.check_pixels(processor, data, partial(muse.sglang_pixels, folder), (width, height))


@families
def test_special_inputs(family: str, demo_checkpoint: CheckpointOf) -> None:
    folder = demo_checkpoint(family)
    processor = _native.Processor(folder, "", family)
    special = {mode: images.png(150, 90, 3, mode) for mode in ("L", "LA", "P", "RGBA")}
    special["orientation"] = images.oriented(images.picture(90, 151, 13), 6)
    special["CMYK JPEG"] = images.jpeg(201, 143, 11, "CMYK")
    special["4:2:0 JPEG"] = images.jpeg(201, 143, 9)
    special["colour key"] = images.encode(images.picture(61, 99, 12), transparency=(1, 2, 3))
    for name, data in special.items():
        upstream = partial(muse.preprocess, folder, backend=muse.BACKENDS[family][0])
        parity.check_pixels(processor, data, upstream, name)


def compare(family: str, folder: Path, media: tuple[Spec, ...]) -> None:
    parity.compare(
        family,
        folder,
        partial(muse.preprocess, folder, backend=muse.BACKENDS[family][0]),
        partial(muse.forward, folder),
        media,
        bound=1e-5,
    )
    muse.tower.cache_clear()


@families
def test_embeddings(family: str, demo_checkpoint: CheckpointOf) -> None:
    compare(family, demo_checkpoint(family), MEDIA)


@pytest.mark.slow
@families
@pytest.mark.parametrize("seed", range(1, 3))
def test_embeddings_of_other_seeds(
    family: str, seed: int, tmp_path: Path, demo_checkpoint: CheckpointOf
) -> None:
    compare(family, parity.checkpoint(family, tmp_path / "tiny", seed, demo_checkpoint(family)), MEDIA)


@pytest.mark.slow
@families
@pytest.mark.parametrize("seed", range(2))
def test_embeddings_of_published_width(family: str, seed: int, tmp_path: Path) -> None:
    compare(family, checkpoints.published_width(family, tmp_path / "wide", seed), MEDIA)


def test_float16(shared_encoder: Callable[..., Encoder]) -> None:
    parity.check_float16(partial(shared_encoder, "muse_vision"), MEDIA[:3])


def test_several_images_in_one_forward(
    demo_checkpoint: CheckpointOf, shared_encoder: Callable[..., Encoder]
) -> None:
    processor = _native.Processor(demo_checkpoint("muse_vision"), "", "muse_vision")
    sources = [images.png(60, 40, 1), images.png(800, 500, 2), images.png(20, 700, 3)]
    parity.check_batch(shared_encoder("muse_vision"), processor, sources)


# Checkpoints


@pytest.fixture
def folder(demo_checkpoint: CheckpointOf, tmp_path: Path) -> Path:
    return checkpoints.copied(demo_checkpoint("muse_vision"), tmp_path / "checkpoint")


def vision(**values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda config: config["vision_config"].update(values)


def top(**values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda config: config.update(values)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (vision(hidden_act="relu"), "hidden_act"),
        (top(projector_hidden_act="silu"), "projector_hidden_act"),
        (vision(layer_types=None), "layer_types is missing"),
        (vision(layer_types=["full_attention"] * 4), "layer_types must be a list of 5"),
        (vision(layer_types=["sliding_attention"] * 5), r"layer_types\[0\] must be one of"),
        (vision(layer_types=[1] * 5), r"layer_types\[0\] must be a string"),
        (vision(rope_parameters={"rope_type": "yarn"}), "only axial"),
        (vision(rope_parameters={"rope_type": "axial", "rope_theta": 0}), "rope_theta"),
        (vision(layer_norm_eps=0), "layer_norm_eps"),
        (vision(pos_emb_width=16), "pos_emb_width must be an integer from 32 to 32"),
        (vision(num_attention_heads=5), "among 5 heads"),
        (vision(num_attention_heads=32), "multiple of 4"),
        (vision(patch_size=16), "patch_size 14, but the tower of config.json has 16"),
        (top(out_hidden_size=255), "out_hidden_size must be an integer from 256 to 256"),
        (top(projector_hidden_size=None), "projector_hidden_size is missing"),
        (top(text_config={}), "text_config.hidden_size is missing"),
    ],
)
def test_wrong_configurations(change: Callable[[dict[str, Any]], object], text: str, folder: Path) -> None:
    checkpoints.edit(folder, "config.json", change)
    with pytest.raises(CheckpointError, match=text):
        _native.Processor(folder, "", "muse_vision")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"patch_size": 16}, "patch_size 16, but the tower"),
        ({"temporal_patch_size": 1}, "temporal_patch_size 1, but the tower"),
        ({"max_image_tokens": 0}, "max_image_tokens must be an integer"),
        ({"rescale_factor": 1.0}, "rescale_factor"),
        ({"do_normalize": False}, "do_normalize is false"),
    ],
)
def test_wrong_processor_files(values: dict[str, Any], text: str, folder: Path) -> None:
    checkpoints.edit(folder, "processor_config.json", lambda config: config["image_processor"].update(values))
    with pytest.raises(CheckpointError, match=text):
        _native.Processor(folder, "", "muse_vision")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda tensors: tensors.pop("model.vision_projection.weight"), "1 missing: .*vision_projection"),
        (lambda tensors: tensors.update({"model.vision_adapter.fc3.weight": torch.zeros(2)}), "1 unexpected"),
        (
            lambda tensors: tensors.update(
                {
                    "model.vision_tower.layers.0.attn.q_proj.weight": torch.zeros(64, 64).to(
                        torch.float8_e4m3fn
                    )
                }
            ),
            "1 quantised",
        ),
        (lambda tensors: tensors["model.vision_tower.ln_pre.bias"].fill_(float("inf")), "NaN or infinity"),
    ],
)
def test_wrong_weights(change: Callable[[dict[str, torch.Tensor]], object], text: str, folder: Path) -> None:
    checkpoints.edit_tensors(folder, change)
    with pytest.raises(CheckpointError, match=text):
        Encoder(folder, "", "cpu", "muse_vision")


def test_tensors_of_audio_and_language_do_not_matter(folder: Path) -> None:
    extra = {
        "model.audio_tower.norm.weight": torch.zeros(3, dtype=torch.int8),
        "model.language_model.embed_tokens.weight": torch.zeros(3, 2, dtype=torch.int8),
        "lm_head.weight": torch.zeros(1),
    }
    checkpoints.edit_tensors(folder, lambda tensors: tensors.update(extra))
    with Encoder(folder, "", "cpu", "muse_vision") as encoder:
        assert encoder.family == "muse_vision"


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("meta-models/Muse-Spark-1.2-820B-A42B-NVFP4", "muse_vision"),
        ("meta-models/Muse-Glimmer-30B", "muse_glimmer"),
    ],
)
def test_the_model_id_alone_is_enough(model: str, family: str, folder: Path) -> None:
    checkpoints.edit(
        folder, "config.json", lambda config: (config.pop("model_type"), config.pop("architectures"))
    )
    assert _native.Processor(folder, model, family).family == family


def test_grids_that_cannot_be(shared_encoder: Callable[..., Encoder]) -> None:
    encoder = shared_encoder("muse_vision")
    matrix = torch.zeros(4, 1176)
    for grid in [(2, 2, 1), (1, 0, 4), (1, 1, 4), (1, 2, 4)]:
        with pytest.raises(ValueError, match=r"grid|pixel_values"):
            encoder.encode_pixels(matrix, [grid])
