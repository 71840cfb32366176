"""DeepSeek-V4.1-Flash against SGLang's implementation and, where that is not installed, against Pillow."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import checkpoints
import goldens
import images
import parity
import pytest
import torch
from images import Spec
from reference import deepseek

from mm_libtorch_encoder import CheckpointError, Encoder, MediaError, _native

FAMILY = "deepseek41"
PATCH = 14
needs_sglang = pytest.mark.skipif(
    importlib.util.find_spec("sglang") is None,
    reason="not run: needs sglang 0.5.23, the reference of this family",
)
CheckpointOf = Callable[[str], Path]

# (width, height): canvas, content, top and left, grid of patches, tokens. Published settings; the rows up to 839x2
# also are published results of running the release's own code.
PLANS = {
    (1, 1): (546, 546, 546, 546, 0, 0, 39, 39, 184),
    (544, 544): (546, 546, 546, 546, 0, 0, 39, 39, 184),
    (640, 480): (490, 644, 483, 644, 4, 0, 35, 46, 206),
    (1024, 768): (770, 1036, 770, 1027, 0, 4, 55, 74, 496),
    (768, 1024): (1036, 770, 1027, 770, 4, 0, 74, 55, 502),
    (1444, 1240): (1218, 1414, 1214, 1414, 2, 0, 87, 101, 1017),
    (1600, 1200): (1134, 1512, 1134, 1512, 0, 0, 81, 108, 1001),
    (4775, 476): (406, 4200, 406, 4073, 0, 64, 29, 300, 1012),
    (594, 4390): (3402, 462, 3402, 460, 0, 1, 243, 33, 974),
    (10000, 10): (28, 17206, 17, 17206, 6, 0, 2, 1229, 413),
    (10, 10000): (17206, 28, 17206, 17, 0, 6, 1229, 2, 822),
    (839, 2): (28, 11144, 27, 11144, 0, 0, 2, 796, 269),
    (13, 9): (462, 658, 456, 658, 3, 0, 33, 47, 189),
    (64, 48): (476, 630, 472, 630, 2, 0, 34, 45, 194),
    (3000, 40): (70, 4718, 63, 4718, 4, 0, 5, 337, 230),
    (31, 2200): (4592, 70, 4592, 65, 0, 2, 328, 5, 332),
    (1, 20000): (21462, 42, 21462, 1, 0, 20, 1533, 3, 1024),
    (20000, 1): (42, 42882, 2, 42882, 20, 0, 3, 3063, 1024),
}
# (width, height): canvas, where the checkpoint caps wide images at four to one.
CAPPED = {
    (800, 200): (280, 1092),
    (2000, 100): (280, 1092),
    (799, 200): (280, 1092),
    (4000, 900): (630, 2520),
    (6000, 1400): (630, 2520),
}
MEDIA = (
    Spec(640, 480, 1),
    Spec(13, 9, 2),
    Spec(1, 1, 3),
    Spec(31, 1200, 4),
    Spec(900, 40, 5),
    Spec(321, 203, 6, "RGBA"),
    Spec(150, 410, 7, "L"),
    Spec(768, 1024, 8),
)


@pytest.fixture(scope="module")
def processor(demo_checkpoint: CheckpointOf) -> _native.Processor:
    return _native.Processor(demo_checkpoint(FAMILY), "", FAMILY)


@pytest.mark.parametrize("size", PLANS)
def test_plans_and_pixels_are_the_published_ones(size: tuple[int, int], processor: _native.Processor) -> None:
    *canvas, rows, columns, tokens = PLANS[size]
    assert processor.plan(*size) == ((1, rows, columns), tokens)
    data = images.png(*size, sum(size), grain_only=True)

    def upstream(data: bytes) -> tuple[torch.Tensor, torch.Tensor]:
        return deepseek.pillow_pixels(data, tuple(canvas), PATCH), torch.tensor([[1, rows, columns]])

    parity.check_pixels(processor, data, upstream, size)


def test_values_are_rounded_to_bfloat16_in_every_dtype(processor: _native.Processor) -> None:
    data = images.png(70, 50, 1)
    half, _ = processor.pixel_values(data, "bfloat16")
    full, _ = processor.pixel_values(data, "float32")
    assert (full.view("uint32") == half.astype("uint32") << 16).all()


def test_content_that_rounds_to_nothing_leaves_padding(processor: _native.Processor) -> None:
    """65535 times as high as wide: the content's width rounds to 0."""
    data = images.png(1, 65_535)
    pixels, (_, rows, columns) = processor.pixel_values(data, "bfloat16")
    assert pixels.shape == (rows * columns, 3 * PATCH * PATCH)
    assert (pixels == 0xBB81).all()


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory, demo_checkpoint: CheckpointOf) -> Path:
    """A checkpoint that caps wide images at four to one."""
    folder = tmp_path_factory.mktemp("wide") / "checkpoint"
    return parity.checkpoint(
        FAMILY,
        folder,
        1,
        demo_checkpoint(FAMILY),
        lambda config: config["vision_config"].update(max_wh_ratio=4),
    )


def test_capped_wide_images_are_stretched(wide: Path) -> None:
    processor = _native.Processor(wide, "", FAMILY)
    for (width, height), (to_height, to_width) in CAPPED.items():
        (_, rows, columns), _ = processor.plan(width, height)
        assert (rows * PATCH, columns * PATCH) == (to_height, to_width), (width, height)
        if width >= 4 * height:
            data = images.png(width, height, 3)
            box = (to_height, to_width, to_height, to_width, 0, 0)
            grids = torch.tensor([[1, rows, columns]])
            parity.check_pixels(
                processor,
                data,
                lambda data, b=box, g=grids: (deepseek.pillow_pixels(data, b, PATCH), g),
                width,
            )


def test_float16(shared_encoder: Callable[..., Encoder]) -> None:
    parity.check_float16(partial(shared_encoder, FAMILY), MEDIA[:3])


def test_several_images_in_one_forward(
    processor: _native.Processor, shared_encoder: Callable[..., Encoder]
) -> None:
    """Each as if alone, with its own start and end."""
    parity.check_batch(shared_encoder(FAMILY), processor, [images.png(60, 40, 1), images.png(30, 200, 2)])


def test_attention_in_float32_is_near_the_fused_one(
    demo_checkpoint: CheckpointOf, shared_encoder: Callable[..., Encoder]
) -> None:
    """In float32 the two differ in the order of sums alone; in bfloat16 the rounded-once form is no worse."""
    data = images.png(200, 150, 3)
    exact = shared_encoder(FAMILY).encode_image(data)["embeddings"].numpy()
    math = shared_encoder(FAMILY, attention="math").encode_image(data)["embeddings"].numpy()
    assert 0 < goldens.relative(math, exact) <= 2e-6
    low = (
        shared_encoder(FAMILY, "bfloat16", attention="math").encode_image(data)["embeddings"].float().numpy()
    )
    assert goldens.relative(low, exact) <= 1.5e-2
    with pytest.raises(ValueError, match="fused or math"):
        Encoder(demo_checkpoint(FAMILY), "", "cpu", attention="flash")
    with pytest.raises(ValueError, match="has no option attention"):
        Encoder(demo_checkpoint("glm53"), "", "cpu", attention="math")


def special_inputs() -> Iterator[tuple[str, bytes]]:
    for mode in ("L", "LA", "P", "RGBA"):
        yield mode, images.png(150, 90, 3, mode)
    for orientation in (3, 6):
        yield f"orientation {orientation}", images.oriented(images.picture(90, 151, 13), orientation)
    yield "CMYK JPEG", images.jpeg(201, 143, 11, "CMYK")
    yield "grey JPEG", images.jpeg(201, 143, 10, "L")
    yield "4:2:0 JPEG", images.jpeg(201, 143, 9)
    yield "WebP with alpha", images.encode(images.picture(61, 99, 12, "RGBA"), "WEBP", lossless=True)


@pytest.mark.slow
@needs_sglang
class TestAgainstSglang:
    """The live reference."""

    def test_grids_of_random_sizes(self, demo_checkpoint: CheckpointOf, wide: Path) -> None:
        for folder, count in ((demo_checkpoint(FAMILY), 20_000), (wide, 4_000)):
            processor, arguments = _native.Processor(folder, "", FAMILY), deepseek.settings(folder)
            for width, height in images.sizes(count, 77, 11_000):
                (rows, columns), tokens = deepseek.plan(arguments, width, height)
                assert processor.plan(width, height) == ((1, rows, columns), tokens), (width, height)

    @pytest.mark.parametrize("backend", deepseek.BACKENDS)
    def test_pixel_values_of_random_sizes(self, backend: str, demo_checkpoint: CheckpointOf) -> None:
        folder = demo_checkpoint(FAMILY)
        processor = _native.Processor(folder, "", FAMILY, backend=backend)
        for seed, (width, height) in enumerate(images.sizes(200, 2024, 4000)):
            data = images.encode(
                images.picture(width, height, seed, grain_only=seed % 2 == 0), compress_level=0
            )
            parity.check_pixels(
                processor, data, lambda data: deepseek.preprocess(folder, data, backend), (width, height)
            )

    def test_attention_in_float32(self, tmp_path: Path, demo_checkpoint: CheckpointOf) -> None:
        """The option attention="math": what SGLang's code computes where Torch takes its unfused path.

        Perceptrons of zeros and plain operators leave attention alone to differ in bfloat16.
        """
        from torch.nn.attention import SDPBackend, sdpa_kernel

        def silence(tensors: dict[str, torch.Tensor]) -> None:
            for name, value in tensors.items():
                if name.endswith("mlp.w2.weight"):
                    value.zero_()

        folder = checkpoints.copied(demo_checkpoint(FAMILY), tmp_path / "silent")
        checkpoints.edit_tensors(folder, silence)
        inputs = [(spec.data(), *deepseek.preprocess(folder, spec.data())) for spec in MEDIA[:5]]
        fused = [deepseek.forward(folder, *each[1:], "bfloat16") for each in inputs]
        with sdpa_kernel([SDPBackend.MATH]):
            math = [deepseek.forward(folder, *each[1:], "bfloat16") for each in inputs]
        _native.set_plain_ops(True)
        try:
            with Encoder(folder, "demo", "cpu", dtype="bfloat16", attention="math") as encoder:
                ours = [encoder.encode_image(data)["embeddings"] for data, *_ in inputs]
        finally:
            _native.set_plain_ops(False)
        assert torch.equal(ours[0], math[0])
        for got, wanted, other in zip(ours, math, fused, strict=True):
            got, wanted, other = (each.float().numpy() for each in (got, wanted, other))
            assert goldens.relative(got, wanted) <= 0.5 * goldens.relative(got, other)

    @pytest.mark.parametrize(("name", "data"), list(special_inputs()))
    def test_special_inputs(self, name: str, data: bytes, demo_checkpoint: CheckpointOf) -> None:
        folder = demo_checkpoint(FAMILY)
        processor = _native.Processor(folder, "", FAMILY)
        parity.check_pixels(processor, data, partial(deepseek.preprocess, folder), name)

    @pytest.mark.parametrize("seed", range(3))
    def test_embeddings(self, seed: int, tmp_path: Path, demo_checkpoint: CheckpointOf) -> None:
        folder = parity.checkpoint(FAMILY, tmp_path / "tiny", seed, demo_checkpoint(FAMILY))
        compare(folder, MEDIA)

    @pytest.mark.parametrize("seed", range(2))
    def test_embeddings_of_published_width(self, seed: int, tmp_path: Path) -> None:
        compare(checkpoints.published_width(FAMILY, tmp_path / "wide", seed, depth=2), MEDIA)


def compare(folder: Path, media: tuple[Spec, ...]) -> None:
    # SGLang and the released wheel agree bit for bit in float32 here.
    parity.compare(
        FAMILY,
        folder,
        partial(deepseek.preprocess, folder),
        partial(deepseek.forward, folder),
        media,
        bound=1e-6,
    )


def vision(**values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda config: config["vision_config"].update(values)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (vision(patch_size=14.0), "vision_config.patch_size must be an integer"),
        (vision(downsample_ratio="3"), "vision_config.downsample_ratio must be an integer"),
        (vision(min_pixels=True), "vision_config.min_pixels must be an integer"),
        (vision(min_pixels=0), "vision_config.min_pixels must be an integer"),
        (vision(max_image_tokens=3), "max_image_tokens must be an integer from 4 to 65536"),
        (vision(max_image_tokens=65_537), "max_image_tokens must be an integer from 4 to 65536"),
        (vision(max_wh_ratio=0), "max_wh_ratio must be an integer"),
        (vision(max_wh_ratio=1.5), "max_wh_ratio must be an integer"),
        (vision(max_wh_ratio=False), "max_wh_ratio must be an integer"),
        (vision(model_type="deepseek_vl"), "not deepseek_v41_vision"),
        (vision(model_type=None), "vision_config.model_type is missing"),
        (vision(num_attention_heads=3), "multiple of 4"),
        (vision(num_attention_heads=32), "multiple of 4"),
        (vision(rope_theta=-1.0), "rope_theta must be a number"),
        (lambda config: config.pop("text_config"), "text_config is missing"),
        (lambda config: config["text_config"].pop("hidden_size"), "text_config.hidden_size is missing"),
        (lambda config: config.update(model_type="qwen3_5"), "different families: qwen35 and deepseek41"),
    ],
)
def test_wrong_configurations(
    change: Callable[[dict[str, Any]], object], text: str, tmp_path: Path, demo_checkpoint: CheckpointOf
) -> None:
    with pytest.raises(CheckpointError, match=text):
        folder = parity.changed(demo_checkpoint(FAMILY), tmp_path / "changed", change)
        _native.Processor(folder, "")


def test_the_retired_release_is_refused(tmp_path: Path, demo_checkpoint: CheckpointOf) -> None:
    """Its weights have one vector more."""
    folder = checkpoints.copied(demo_checkpoint(FAMILY), tmp_path / "changed")
    checkpoints.edit_tensors(
        folder, lambda tensors: tensors.update(image_pad=torch.zeros(96, dtype=torch.bfloat16))
    )
    with pytest.raises(CheckpointError, match='1 unexpected: "image_pad"'):
        Encoder(folder, "", "cpu")


def test_tensors_of_the_language_model_do_not_matter(tmp_path: Path, demo_checkpoint: CheckpointOf) -> None:
    folder = checkpoints.copied(demo_checkpoint(FAMILY), tmp_path / "changed")
    extra = {"layers.0.ffn.gate.bias_vl": torch.zeros(3), "embed.weight": torch.zeros(3, 2, dtype=torch.int8)}
    checkpoints.edit_tensors(folder, lambda tensors: tensors.update(extra))
    with Encoder(folder, "", "cpu") as encoder:
        assert encoder.family == FAMILY


@pytest.mark.parametrize("model", ["deepseek-ai/DeepSeek-V4.1-Flash", "deepseek-ai/deepseek-v4.1-flash-1017"])
def test_the_model_id_alone_is_enough(model: str, tmp_path: Path, demo_checkpoint: CheckpointOf) -> None:
    def anonymous(config: dict[str, Any]) -> None:
        del config["model_type"], config["architectures"]

    folder = parity.changed(demo_checkpoint(FAMILY), tmp_path / "changed", anonymous)
    assert _native.Processor(folder, model).family == FAMILY
    with pytest.raises(CheckpointError, match="name the family"):
        _native.Processor(folder, "somebody/else")


def test_torchvision_is_no_backend(demo_checkpoint: CheckpointOf) -> None:
    with pytest.raises(ValueError, match="no preprocessing on torchvision"):
        _native.Processor(demo_checkpoint(FAMILY), "", backend="torchvision")


def test_grids_that_cannot_be(shared_encoder: Callable[..., Encoder]) -> None:
    encoder = shared_encoder(FAMILY)
    matrix = torch.zeros(4, 3 * PATCH * PATCH)
    for grid in [(2, 2, 1), (1, 0, 4), (1, 2, 3), (1, 2**31, 2**31)]:
        with pytest.raises(ValueError, match=r"grid|pixel_values"):
            encoder.encode_pixels(matrix, [grid])
    assert encoder.encode_pixels(matrix, [(1, 4, 1)])["embeddings"].shape == (2 * 2 + 2, 96)


def test_an_image_over_the_budget_of_an_odd_checkpoint(tmp_path: Path, demo_checkpoint: CheckpointOf) -> None:
    """A budget of four tokens: one column, or an error that says so; never more tokens than allowed."""
    folder = parity.checkpoint(
        FAMILY, tmp_path / "small", 1, demo_checkpoint(FAMILY), vision(max_image_tokens=4)
    )
    processor = _native.Processor(folder, "", FAMILY)
    for width, height in images.sizes(500, 3, 3000):
        try:
            _, tokens = processor.plan(width, height)
        except MediaError as error:
            assert "canvas" in str(error) or "tokens" in str(error)
        else:
            assert tokens <= 4
