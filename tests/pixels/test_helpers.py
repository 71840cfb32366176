"""Target sizes, hashes, base64 and decoding as `preprocess` offers them."""

from __future__ import annotations

import base64
import hashlib
import math
import os
import random
import threading
from typing import Any

import images
import numpy as np
import PIL.Image
import pytest

from mm_libtorch_encoder import preprocess
from mm_libtorch_encoder.preprocess import MediaError

QWEN = pytest.importorskip("transformers.models.qwen2_vl.image_processing_qwen2_vl")


def test_smart_resize_is_transformers() -> None:
    rng = random.Random(7)
    checked = refused = 0
    for _ in range(20_000):
        height, width = (math.ceil(2 ** rng.uniform(0, 13.9)) for _ in range(2))
        arguments = (
            rng.choice((28, 32, 16)),
            rng.choice((3136, 65536)),
            rng.choice((1003520, 12845056, 100_000)),
        )
        try:
            wanted = QWEN.smart_resize(height, width, *arguments)
        except ValueError:
            refused += 1
            with pytest.raises(MediaError, match="above the limit of 200"):
                preprocess.smart_resize(height, width, *arguments)
            continue
        checked += 1
        assert preprocess.smart_resize(height, width, *arguments) == tuple(wanted), (height, width, arguments)
    assert checked > 15_000 and refused > 100


def test_the_limit_on_aspect_itself_passes() -> None:
    assert preprocess.smart_resize(2000, 10, 28, 3136, 12845056) == tuple(
        QWEN.smart_resize(2000, 10, 28, 3136, 12845056)
    )
    with pytest.raises(MediaError, match="aspect ratio of 201"):
        preprocess.smart_resize(2010, 10)


def test_sglang_rounds_a_thin_side_up() -> None:
    assert preprocess.smart_resize(5, 144, 28, 3136, 12845056) == (28, 308)
    assert preprocess.smart_resize(5, 144, 28, 3136, 12845056, "sglang") == (28, 140)


def test_scaled_dimensions() -> None:
    assert preprocess.scaled_dimensions(97, 61, 2.0, 2048) == (194, 122)
    assert preprocess.scaled_dimensions(1200, 900, 2.0, 2048) == (2048, 1536)
    assert preprocess.scaled_dimensions(2100, 300, 2.0, 2048) == (2100, 300)
    assert preprocess.scaled_dimensions(100, 50) == (100, 50)
    assert preprocess.scaled_dimensions(100, 50, 0.001) == (1, 1)
    assert preprocess.scaled_dimensions(5, 3, 0.5) == (3, 2)  # half up


@pytest.mark.parametrize(
    ("factor", "cap", "words"),
    [
        (math.inf, None, "finite"),
        (math.nan, None, "finite"),
        (0.0, None, "above 0"),
        (-1.0, None, "above 0"),
        (1e300, None, "longest side"),
        (0.5, 100, "cap"),
        (None, 100, "cap"),
        (2.0, 0, "cap"),
    ],
)
def test_scaled_dimensions_refuses(factor: float | None, cap: int | None, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        preprocess.scaled_dimensions(10, 10, factor, cap)


def test_content_hash_is_blake3() -> None:
    # From BLAKE3's own test vectors: the input is 0, 1, 2, ... modulo 251.
    data = bytes(i % 251 for i in range(1024))
    assert preprocess.content_hash(data).startswith("42214739f095a406f3fc83deb889744a")
    assert preprocess.content_hash_u64(data) == 0x42214739F095A406
    assert preprocess.content_hash(memoryview(data)) == preprocess.content_hash(bytearray(data))
    assert preprocess.content_hash(b"") != hashlib.sha256(b"").hexdigest()


def test_base64_goes_round() -> None:
    for length in [*range(70), 4096, 100_001]:
        data = os.urandom(length)
        text = preprocess.base64_encode(data)
        assert text == base64.b64encode(data).decode()
        urlsafe = base64.urlsafe_b64encode(data).decode()
        wrapped = base64.encodebytes(data).decode()
        spellings = [
            text,
            text.rstrip("="),
            urlsafe,
            urlsafe.rstrip("="),
            wrapped,
            wrapped.replace("\n", "\r\n"),
        ]
        heads = ["data:image/png;base64,", "data:image/png;charset=utf-8;base64,", "DATA:IMAGE/PNG;BASE64,"]
        for spelling in spellings + [head + text for head in heads]:
            assert preprocess.base64_decode(spelling) == data
            assert preprocess.base64_decode(spelling.encode()) == data


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("AA*A", "outside the alphabet at position 2"),
        ("A", "whole bytes"),
        ("data:image/png,AAAA", ";base64"),
        ("data:text/plain;charset=utf-8,hello", ";base64"),
        ("data:image/png;base64", "comma"),
        ("AAAA\N{SNOWMAN}", "outside the alphabet"),
        ("\ud800", "outside the alphabet"),
    ],
)
def test_broken_base64_says_why(text: str, words: str) -> None:
    with pytest.raises(MediaError, match=words):
        preprocess.base64_decode(text)


def test_decode_and_its_batch() -> None:
    pictures = [images.noise(20 + i, 30, i) for i in range(12)]
    files = [images.encode(PIL.Image.fromarray(picture)) for picture in pictures]
    assert np.array_equal(preprocess.decode(files[0]), pictures[0])
    together = preprocess.decode_batch([*files, bytearray(files[0])])
    assert all(
        np.array_equal(one, other) for one, other in zip(together, [*pictures, pictures[0]], strict=True)
    )
    with pytest.raises(MediaError, match="image 3: "):
        preprocess.decode_batch([*files[:3], b"no image"])


def test_calls_leave_the_gil_to_others() -> None:
    image = images.noise(2000, 2000)
    ticks = 0
    done = threading.Event()

    def count() -> None:
        nonlocal ticks
        while not done.is_set():
            ticks += 1

    def busy() -> int:
        before = ticks
        preprocess.resize(image, 1500, 1500, "lanczos")
        return ticks - before

    counter = threading.Thread(target=count)
    counter.start()
    try:
        assert max(busy() for _ in range(50)) > 50
    finally:
        done.set()
        counter.join()


def test_a_fork_starts_its_own_threads() -> None:
    image: Any = images.noise(64, 64)
    wanted = preprocess.resize_batch([image] * 4, [(32, 32)] * 4)
    child = os.fork()
    if child == 0:
        same = all(map(np.array_equal, preprocess.resize_batch([image] * 4, [(32, 32)] * 4), wanted))
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
