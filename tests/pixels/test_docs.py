"""What docs/preprocess.md says: its code runs, and its functions equal SGLang's on the same pixels."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import images
import numpy as np
import PIL.Image
import pytest

from mm_libtorch_encoder import preprocess

CLIP_MEAN = [0.48145466, 0.4578275, 0.40821073]
CLIP_STD = [0.26862954, 0.26130258, 0.27577711]


@pytest.fixture(scope="module")
def page(root: Path) -> dict[str, Any]:
    """The names that the page's code defines, from one picture as `data`."""
    text = (root / "docs" / "preprocess.md").read_text("utf-8")
    names: dict[str, Any] = {"data": images.png(100, 80), "np": np}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, names)
    return names


@pytest.fixture(scope="module")
def sglang() -> Any:
    return pytest.importorskip("sglang.srt.rust_extensions._multimodal", reason="needs SGLang 0.5.23")


def test_the_code_on_the_page_runs(page: dict[str, Any]) -> None:
    assert page["rows"].shape[1] == 1536
    assert page["rows"].dtype == np.uint16
    assert page["rows"].shape[0] * 256 == np.prod(page["size"])


def test_every_name_is_on_the_page(root: Path) -> None:
    text = (root / "docs" / "preprocess.md").read_text("utf-8")
    missing = [name for name in preprocess.__all__ if name.islower() and f"`{name}`" not in text]
    assert not missing


@pytest.mark.parametrize(
    ("theirs", "name", "arithmetic"),
    [
        ("pil_bicubic", "bicubic", "pillow-12.1"),
        ("pil_lanczos", "lanczos", "pillow-12.1"),
        ("aten_u8", "bicubic", "torchvision"),
    ],
)
def test_resize_rgb(sglang: Any, theirs: str, name: Any, arithmetic: Any) -> None:
    for seed, (width, height) in enumerate([(300, 200), (64, 400), (33, 31)]):
        image = images.noise(width, height, seed)
        wanted = np.asarray(sglang.common.resize_rgb(image, 90, 70, theirs)).reshape(70, 90, 3)
        assert np.array_equal(preprocess.resize(image, 90, 70, name, arithmetic), wanted)


def test_sizes_hash_and_base64(sglang: Any) -> None:
    for case in [(97, 61, 2.0, 2048), (1200, 900, 2.0, 2048), (2100, 300, 2.0, 2048), (500, 300, 0.37, None)]:
        assert preprocess.scaled_dimensions(*case) == sglang.common.scaled_dims(*case)
    for height, width in [(5, 144), (1080, 1920), (10, 1999), (33, 65)]:
        arguments = (height, width, 28, 3136, 12_845_056)
        assert preprocess.smart_resize(*arguments, "sglang") == tuple(
            sglang.qwen_vl.smart_resize_py(*arguments)
        )
    data = images.png(30, 20)
    assert preprocess.content_hash_u64(data) == sglang.common.content_hash(data)
    text = preprocess.base64_encode(data)
    assert preprocess.base64_decode(text) == bytes(sglang.common.base64_decode(text)) == data
    assert np.array_equal(
        preprocess.decode(data), np.asarray(sglang.common.image_decode_rgb(data)[2]).reshape(20, 30, 3)
    )


@pytest.mark.parametrize(("ours", "theirs"), [("torchvision", "aten_u8"), ("pillow-12.1", "pil")])
def test_qwen_vl(sglang: Any, ours: Any, theirs: str) -> None:
    spec = {
        "family": "qwen_vl", "feature_shm": False, "image_token_id": 1, "patch_size": 14, "merge_size": 2,
        "temporal_patch_size": 2, "min_pixels": 3136, "max_pixels": 100_000, "image_mean": CLIP_MEAN,
        "image_std": CLIP_STD, "resample": theirs,
    }  # fmt: skip
    kind = "torchvision" if ours == "torchvision" else "pil"
    normalization = preprocess.Normalization.named(kind, 1 / 255, CLIP_MEAN, CLIP_STD)
    recipe = preprocess.Recipe(normalization, 14, frames=2, merge=2, arithmetic=ours)
    for seed, (width, height) in enumerate([(300, 200), (640, 480), (31, 90)]):
        data = images.encode(PIL.Image.fromarray(images.noise(width, height, seed)))
        image = preprocess.decode(data)
        size = preprocess.smart_resize(height, width, 28, 3136, 100_000, "sglang")
        rows = preprocess.prepare(image, recipe, preprocess.Canvas.full(*size))
        wanted, grid = sglang.qwen_vl.preprocess(data, json.dumps(spec))
        assert tuple(grid) == (1, size[0] // 14, size[1] // 14)
        assert np.array_equal(rows.reshape(-1).view(np.uint32), np.asarray(wanted).view(np.uint32))


def test_inkling(sglang: Any, page: dict[str, Any]) -> None:
    for width, height, factor, cap in [
        (97, 61, None, None),
        (80, 40, None, None),
        (97, 61, 2.0, 150),
        (300, 200, 0.5, None),
    ]:
        image, data = images.noise(width, height, width), b"the source's bytes"
        wanted = sglang.inkling.rescale_patchify_hash(image, data, 40, factor, cap)
        rows = page["inkling"](image, 40, factor, cap)
        assert np.array_equal(rows.reshape(-1), np.asarray(wanted[2]))
        assert preprocess.scaled_dimensions(width, height, factor, cap) == (wanted[1], wanted[0])
        assert preprocess.content_hash_u64(data) == wanted[3]
        if factor is None:
            assert np.array_equal(rows.reshape(-1), np.asarray(sglang.inkling.patchify_rgb(image, 40)))


def test_deepseek(sglang: Any, page: dict[str, Any]) -> None:
    for size, inner, start in [
        ((490, 644), (483, 644), (4, 0)),
        ((770, 1036), (770, 1027), (0, 4)),
        ((28, 42), (5, 7), (3, 9)),
    ]:
        image = images.noise(640, 480, size[0])
        wanted = np.asarray(sglang.dsv41.resize_patchify(image, size, inner, start, 14))
        assert np.array_equal(page["deepseek"](image, size, inner, start).reshape(-1), wanted)
