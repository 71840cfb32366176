"""Inkling against transformers' encoder, and its pixels against Pillow, transformers and SGLang."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import checkpoints
import images
import numpy as np
import parity
import pytest
import torch
from images import Spec

from mm_libtorch_encoder import CheckpointError, Encoder, MediaError, _native

inkling = pytest.importorskip("reference.inkling", reason="needs transformers and torchvision")

FAMILY = "inkling"
QUICK_PIXELS = 60_000
needs_sglang = pytest.mark.skipif(
    importlib.util.find_spec("sglang") is None,
    reason="not run: needs sglang 0.5.23, the reference of the pixels",
)
CheckpointOf = Callable[[str], Path]
MEDIA = (
    Spec(640, 427, 1),
    Spec(83, 57, 2),
    Spec(1, 1, 3),
    Spec(30, 1200, 4),
    Spec(900, 23, 5),
    Spec(80, 40, 6, "RGBA"),
    Spec(40, 80, 7, "L"),
    Spec(212, 212, 8, "P"),
)
# (factor, cap): as a checkpoint may say; SGLang's server takes the second.
SCALINGS = ((None, None), (2.0, 2048), (0.5, None), (1.37, 700), (3.0, 100))


@pytest.fixture(scope="module")
def processor(demo_checkpoint: CheckpointOf) -> _native.Processor:
    return _native.Processor(demo_checkpoint(FAMILY), "", FAMILY)


def with_processor(source: Path, folder: Path, **values: Any) -> Path:
    target = checkpoints.copied(source, folder)
    checkpoints.edit(target, "processor_config.json", lambda config: config["image_processor"].update(values))
    return target


def scaled(source: Path, folder: Path, factor: float | None, cap: int | None) -> Path:
    return with_processor(source, folder, rescale_image_frac=factor, rescale_image_max_upscaled_long_edge=cap)


def test_a_width_of_whole_patches_gets_one_column_more(processor: _native.Processor) -> None:
    for size, grid in {(80, 40): (1, 3), (40, 80): (2, 2), (79, 41): (2, 2), (1, 1): (1, 1)}.items():
        assert processor.plan(*size) == ((1, *grid), grid[0] * grid[1])


@pytest.mark.parametrize("scaling", SCALINGS)
def test_grids_of_random_sizes(
    scaling: tuple[Any, Any], tmp_path: Path, demo_checkpoint: CheckpointOf
) -> None:
    processor = _native.Processor(scaled(demo_checkpoint(FAMILY), tmp_path / "changed", *scaling), "", FAMILY)
    for width, height in images.sizes(20_000 if scaling == (None, None) else 4_000, 77, 5_000):
        rows, columns = inkling.grid(*inkling.scaled(width, height, *scaling))
        assert processor.plan(width, height) == ((1, rows, columns), rows * columns), (width, height)


def check_sizes(folder: Path, backend: str, big: bool) -> None:
    processor = _native.Processor(folder, "", FAMILY, backend=backend)
    for seed, (width, height) in enumerate([(80, 40), (40, 80), (1, 1), *images.sizes(197, 2024, 3000)]):
        if (width * height > QUICK_PIXELS) == big:
            data = images.encode(
                images.picture(width, height, seed, grain_only=seed % 2 == 0), compress_level=0
            )
            upstream = partial(inkling.preprocess, folder, backend=backend)
            parity.check_pixels(processor, data, upstream, (width, height))


@pytest.mark.parametrize("backend", inkling.BACKENDS)
@pytest.mark.parametrize("scaling", SCALINGS[:2])
def test_pixel_values_of_small_random_sizes(
    backend: str, scaling: tuple[Any, Any], tmp_path: Path, demo_checkpoint: CheckpointOf
) -> None:
    folder = scaled(demo_checkpoint(FAMILY), tmp_path / "changed", *scaling)
    if scaling == (None, None):
        check_sizes(folder, backend, big=False)
        return
    processor = _native.Processor(folder, "", FAMILY, backend=backend)
    for seed, (width, height) in enumerate(images.sizes(24, 5, 300)):
        data = images.png(width, height, seed, grain_only=True)
        parity.check_pixels(
            processor, data, partial(inkling.preprocess, folder, backend=backend), (width, height)
        )


@pytest.mark.slow
@pytest.mark.parametrize("backend", inkling.BACKENDS)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_pixel_values_of_big_random_sizes(
    backend: str, scaling: tuple[Any, Any], tmp_path: Path, demo_checkpoint: CheckpointOf
) -> None:
    check_sizes(scaled(demo_checkpoint(FAMILY), tmp_path / "changed", *scaling), backend, big=True)


@pytest.mark.slow
@needs_sglang
@pytest.mark.parametrize("scaling", SCALINGS)
def test_pixel_values_against_sglang(
    scaling: tuple[Any, Any], tmp_path: Path, demo_checkpoint: CheckpointOf
) -> None:
    factor, cap = scaling
    processor = _native.Processor(
        scaled(demo_checkpoint(FAMILY), tmp_path / "changed", factor, cap), "", FAMILY
    )
    for seed, (width, height) in enumerate(images.sizes(200, 2024, 1500)):
        data = images.encode(images.picture(width, height, seed, grain_only=seed % 2 == 0), compress_level=0)
        upstream = partial(inkling.sglang_pixels, factor=factor, cap=cap)
        parity.check_pixels(processor, data, upstream, (width, height))


def test_special_inputs(demo_checkpoint: CheckpointOf, processor: _native.Processor) -> None:
    special = {mode: images.png(150, 90, 3, mode) for mode in ("L", "LA", "P", "RGBA")}
    special["orientation"] = images.oriented(images.picture(90, 151, 13), 6)
    special["CMYK JPEG"] = images.jpeg(201, 143, 11, "CMYK")
    special["4:2:0 JPEG"] = images.jpeg(201, 143, 9)
    for name, data in special.items():
        parity.check_pixels(processor, data, partial(inkling.preprocess, demo_checkpoint(FAMILY)), name)


def test_values_are_rounded_to_bfloat16_in_every_dtype(processor: _native.Processor) -> None:
    data = images.png(70, 50, 1)
    half, _ = processor.pixel_values(data, "bfloat16")
    full, _ = processor.pixel_values(data, "float32")
    assert np.array_equal(full.view(np.uint32), half.astype(np.uint32) << 16)


def test_the_callers_factor_goes_before_the_checkpoints(
    tmp_path: Path, demo_checkpoint: CheckpointOf
) -> None:
    """The cap stays the checkpoint's."""
    folder = scaled(demo_checkpoint(FAMILY), tmp_path / "changed", 0.5, 300)
    processor = _native.Processor(folder, "", FAMILY, rescale=2.0)
    for size in [(97, 61), (200, 100), (1, 400)]:
        assert processor.plan(*size)[0][1:] == inkling.grid(*inkling.scaled(*size, 2.0, 300))
    with Encoder(folder, "demo", "cpu", rescale=2.0) as encoder:
        assert encoder.encode_image(images.png(97, 61))["grid_thws"].tolist() == [[1, 4, 5]]
    for factor in (0.0, -1.0, float("nan"), float("inf"), 1e9):
        with pytest.raises(ValueError, match="rescale must be a number"):
            _native.Processor(folder, "", FAMILY, rescale=factor)


def test_a_scaled_size_is_bounded_before_it_is_made(tmp_path: Path, demo_checkpoint: CheckpointOf) -> None:
    folder = scaled(demo_checkpoint(FAMILY), tmp_path / "changed", 1024.0, None)
    processor = _native.Processor(folder, "", FAMILY)
    with pytest.raises((MediaError, ValueError), match="the longest side allowed is"):
        processor.pixel_values(images.png(500, 20))


def test_other_families_have_no_such_factor(demo_checkpoint: CheckpointOf) -> None:
    with pytest.raises(ValueError, match="has no option rescale"):
        _native.Processor(demo_checkpoint("deepseek41"), "", "deepseek41", rescale=2.0)


def compare(folder: Path, media: tuple[Spec, ...]) -> None:
    # A restatement in plain Torch equals transformers bit for bit.
    parity.compare(
        FAMILY,
        folder,
        partial(inkling.preprocess, folder),
        partial(inkling.forward, folder),
        media,
        bound=1e-6,
    )
    inkling.tower.cache_clear()


def test_embeddings(demo_checkpoint: CheckpointOf) -> None:
    compare(demo_checkpoint(FAMILY), MEDIA)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 3))
@pytest.mark.parametrize("width", [64, 4096, 6144])
def test_embeddings_of_published_width(
    seed: int, width: int, tmp_path: Path, demo_checkpoint: CheckpointOf
) -> None:
    def change(config: dict[str, Any]) -> None:
        config["vision_config"]["decoder_dmodel"] = config["text_config"]["hidden_size"] = width

    compare(parity.checkpoint(FAMILY, tmp_path / "wide", seed, demo_checkpoint(FAMILY), change), MEDIA)


def test_float16(shared_encoder: Callable[..., Encoder]) -> None:
    parity.check_float16(partial(shared_encoder, FAMILY), MEDIA[:3])


def test_several_images_in_one_forward(
    processor: _native.Processor, shared_encoder: Callable[..., Encoder]
) -> None:
    """More patches than go through the layers at once."""
    sources = [images.png(60, 40, 1), images.png(900, 1100, 2)]
    parity.check_batch(shared_encoder(FAMILY), processor, sources)


def test_frames_may_differ(demo_checkpoint: CheckpointOf, shared_encoder: Callable[..., Encoder]) -> None:
    pixels = torch.from_numpy(np.random.default_rng(1).standard_normal((6, 9600), np.float32))
    wanted = inkling.forward(demo_checkpoint(FAMILY), pixels, torch.tensor([[1, 2, 3]]), "float32")
    got = shared_encoder(FAMILY).encode_pixels(pixels, [(1, 2, 3)])["embeddings"]
    assert torch.allclose(got, wanted, rtol=0, atol=1e-5)


# Checkpoints


@pytest.fixture
def folder(demo_checkpoint: CheckpointOf, tmp_path: Path) -> Path:
    return checkpoints.copied(demo_checkpoint(FAMILY), tmp_path / "checkpoint")


@pytest.mark.parametrize("prefix", ["visual.model.", "visual.vision_encoder."])
def test_prefixes_of_older_exports(prefix: str, folder: Path, shared_encoder: Callable[..., Encoder]) -> None:
    def rename(tensors: dict[str, torch.Tensor]) -> None:
        renamed = {prefix + name.removeprefix("model.visual."): value for name, value in tensors.items()}
        tensors.clear()
        tensors.update(renamed)

    checkpoints.edit_tensors(folder, rename)
    data = images.png(50, 40)
    with Encoder(folder, "demo", "cpu", dtype="float32") as encoder:
        got, wanted = (one.encode_image(data)["embeddings"] for one in (encoder, shared_encoder(FAMILY)))
    assert torch.equal(got, wanted)


def vision(**values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda config: config["vision_config"].update(values)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (vision(vision_encoder_type="vit"), 'vision_encoder_type "vit": only hmlp'),
        (vision(vision_encoder_type=None), "vision_encoder_type is missing"),
        (vision(decoder_dmodel=None), "has no image encoder"),
        (vision(decoder_dmodel=65), "hidden_size 64"),
        (vision(decoder_dmodel=64.0), "decoder_dmodel must be an integer"),
        (vision(patch_size=32), "patch_size must be an integer from 40 to 40"),
        (vision(temporal_patch_size=1), "temporal_patch_size must be"),
        (vision(n_channels=1), "n_channels must be"),
        (vision(n_layers=24), "n_layers must be an integer from 4 to 4"),
        (vision(use_vision_norm=False), "use_vision_norm false"),
        (
            lambda config: config.update(model_type="inkling2", architectures=["Inkling2"]),
            "no family of this build",
        ),
    ],
)
def test_wrong_configurations(change: Callable[[dict[str, Any]], object], text: str, folder: Path) -> None:
    checkpoints.edit(folder, "config.json", change)
    with pytest.raises(CheckpointError, match=text):
        _native.Processor(folder, "")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"size": {"height": 40, "width": 80}}, "size.width must be an integer from 40 to 40"),
        ({"size": {"height": 40}}, "size.width is missing"),
        ({"do_resize": False}, "do_resize is false"),
        ({"rescale_factor": 1.0}, "rescale_factor"),
        ({"rescale_image_frac": 0}, "rescale_image_frac must be a number"),
        ({"rescale_image_frac": -2.0}, "rescale_image_frac must be a number"),
        ({"rescale_image_frac": "2"}, "rescale_image_frac must be a number"),
        ({"rescale_image_max_upscaled_long_edge": 0}, "rescale_image_max_upscaled_long_edge must be"),
        ({"image_std": [0, 1, 1]}, "image_std"),
    ],
)
def test_wrong_processor_files(
    values: dict[str, Any], text: str, tmp_path: Path, demo_checkpoint: CheckpointOf
) -> None:
    folder = with_processor(demo_checkpoint(FAMILY), tmp_path / "changed", **values)
    with pytest.raises(CheckpointError, match=text):
        _native.Processor(folder, "")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda tensors: tensors.pop("model.visual.layers.norm_1.weight"), "1 missing: .*norm_1"),
        (
            lambda tensors: tensors.update({"model.visual.layers.linear_4.weight": torch.zeros(2)}),
            "1 unexpected",
        ),
        (
            lambda tensors: tensors.update(
                {"model.visual.layers.linear_0.weight": torch.zeros(128, 75).char()}
            ),
            "1 quantised",
        ),
        (lambda tensors: tensors["model.visual.final_norm.weight"].fill_(float("nan")), "NaN or infinity"),
    ],
)
def test_wrong_weights(change: Callable[[dict[str, torch.Tensor]], object], text: str, folder: Path) -> None:
    checkpoints.edit_tensors(folder, change)
    with pytest.raises(CheckpointError, match=text):
        Encoder(folder, "", "cpu")


def test_grids_that_cannot_be(shared_encoder: Callable[..., Encoder]) -> None:
    encoder = shared_encoder(FAMILY)
    matrix = torch.zeros(4, 9600)
    for grid in [(2, 2, 1), (1, 0, 4), (1, 2, 3)]:
        with pytest.raises(ValueError, match=r"grid|pixel_values"):
            encoder.encode_pixels(matrix, [grid])
