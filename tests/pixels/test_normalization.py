"""Tables of all 256 levels against the arithmetic of each reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mm_libtorch_encoder.preprocess import Normalization

CONSTANTS = [
    ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
]
FACTORS = [1 / 255, 0.00392156862745098, 1 / 127.5, 1 / 256]

constants = pytest.mark.parametrize(("mean", "std"), CONSTANTS)
factors = pytest.mark.parametrize("factor", FACTORS)
Triple = tuple[float, float, float]


def ramp() -> NDArray[np.uint8]:
    """All levels in each of three channels, ``[3, 1, 256]``."""
    return np.broadcast_to(np.arange(256, dtype=np.uint8), (3, 1, 256)).copy()


def check(normalization: Normalization, wanted: Any) -> None:
    wanted = np.asarray(wanted, dtype=np.float32).reshape(3, 256)
    assert np.array_equal(normalization.table().view(np.uint32), wanted.view(np.uint32))


@constants
@factors
def test_pil_is_the_pillow_backend(factor: float, mean: Triple, std: Triple) -> None:
    transforms = pytest.importorskip("transformers.image_transforms")
    scaled = transforms.rescale(ramp(), factor)
    wanted = transforms.normalize(scaled, mean, std, input_data_format="channels_first")
    check(Normalization.named("pil", factor, mean, std), wanted)


@constants
@factors
def test_torchvision_is_the_torchvision_backend(factor: float, mean: Triple, std: Triple) -> None:
    torch = pytest.importorskip("torch")
    backends = pytest.importorskip("transformers.image_processing_backends")
    processor = backends.TorchvisionBackend()
    wanted = processor.rescale_and_normalize(torch.from_numpy(ramp()), True, factor, True, mean, std)
    check(Normalization.named("torchvision", factor, mean, std), wanted.numpy())


@constants
def test_the_forms_with_a_fixed_factor(mean: Triple, std: Triple) -> None:
    levels, m, s = ramp(), np.float32(mean)[:, None, None], np.float32(std)[:, None, None]
    check(Normalization.named("divided", 1 / 255, mean, std), (levels / np.float32(255) - m) / s)
    check(Normalization.named("multiplied", 1 / 255, mean, std), (levels * np.float32(1 / 255) - m) / s)
    exact_mean, inverse = np.array(mean)[:, None, None], 1.0 / np.array(std)[:, None, None]
    x = (levels / 255.0).astype(np.float32)
    x = (x - exact_mean).astype(np.float32)
    check(Normalization.named("double", 1 / 255, mean, std), (x * inverse).astype(np.float32))


def test_a_table_of_ones_own() -> None:
    table = np.arange(768, dtype=np.float32).reshape(3, 256)
    check(Normalization.from_table(table, (0, 0, 0)), table)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Normalization.named("pil", 1 / 255, (0, 0, 0), (1, 0, 1)), "std"),
        (lambda: Normalization.named("torchvision", 0.0, (0, 0, 0), (1, 1, 1)), "rescale factor"),
        (lambda: Normalization.named("other", 1 / 255, (0, 0, 0), (1, 1, 1)), "pil, torchvision"),
        (lambda: Normalization.from_table(np.zeros((3, 255), np.float32), (0, 0, 0)), r"\[3, 256\]"),
        (lambda: Normalization.from_table(np.zeros((256, 3), np.float32).T, (0, 0, 0)), "C-contiguous"),
    ],
)
def test_faults_say_what_is_wrong(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
