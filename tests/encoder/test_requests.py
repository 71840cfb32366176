"""What goes into `Encoder.generate` and what comes out: order, inputs, counts, failures kept apart."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import images
import numpy as np
import PIL.Image
import pytest
import torch

from mm_libtorch_encoder import Encoder, ImageResult, MediaError, _native

EncoderOf = Callable[..., Encoder]
GOOD = images.png(90, 60, 1)  # 16 tokens of glm53
BAD = b"this is no image"


@pytest.fixture
def encoder(shared_encoder: EncoderOf) -> Encoder:
    return shared_encoder("glm53")


def embeddings(encoder: Encoder, data: bytes) -> torch.Tensor:
    (result,) = encoder.generate(data)
    return result.tensor


# Order and inputs


def test_order_and_bits_of_single_calls(encoder: Encoder) -> None:
    sources = [
        images.png(60 + 50 * (index * 7 % 11), 40 + 30 * (index * 5 % 13), index) for index in range(24)
    ]
    results = encoder.generate(sources)
    assert len(results) == len(sources)
    for source, result in zip(sources, results, strict=True):
        assert type(result) is ImageResult
        assert torch.equal(result.tensor, embeddings(encoder, source))


def test_the_same_bits_again(encoder: Encoder) -> None:
    first = embeddings(encoder, GOOD)
    assert all(torch.equal(first, embeddings(encoder, GOOD)) for _ in range(5))


def test_a_generator_is_read_to_its_end_once(encoder: Encoder) -> None:
    drawn = []

    def sources() -> Iterator[bytes]:
        for index in range(3):
            drawn.append(index)
            yield images.png(64, 64, index)

    assert len(encoder.generate(sources())) == 3
    assert drawn == [0, 1, 2]


def test_a_generator_that_fails(encoder: Encoder) -> None:
    def sources() -> Iterator[bytes]:
        yield GOOD
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        encoder.generate(sources())
    assert len(encoder.generate([GOOD])) == 1


def test_a_generator_that_calls_the_encoder(encoder: Encoder) -> None:
    def sources() -> Iterator[bytes]:
        for _ in range(2):
            encoder.generate(GOOD)
            yield GOOD

    assert len(encoder.generate(sources())) == 2


@pytest.mark.parametrize("empty", [[], (), iter(())])
def test_nothing_in_nothing_out(encoder: Encoder, empty: Any) -> None:
    assert encoder.generate(empty) == []


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: memoryview(data + b"x")[:-1]])
@pytest.mark.parametrize("single", [True, False])
def test_kinds_of_bytes(encoder: Encoder, kind: Callable[[bytes], Any], single: bool) -> None:
    source = kind(GOOD)
    (result,) = encoder.generate(source if single else [source])
    assert torch.equal(result.tensor, embeddings(encoder, GOOD))
    assert torch.equal(encoder.encode_image(source)["embeddings"], result.tensor)


def test_views_of_other_layouts(encoder: Encoder) -> None:
    spread = bytearray(2 * len(GOOD))
    spread[::2] = GOOD
    strided = memoryview(bytes(spread))[::2]
    wide = memoryview(GOOD + bytes(-len(GOOD) % 4)).cast("I")
    assert torch.equal(encoder.generate(strided)[0].tensor, embeddings(encoder, GOOD))
    assert torch.equal(encoder.generate([wide])[0].tensor, embeddings(encoder, GOOD))


def test_a_subclass_of_bytes(encoder: Encoder) -> None:
    class Named(bytes):
        pass

    assert torch.equal(encoder.generate(Named(GOOD))[0].tensor, embeddings(encoder, GOOD))


def test_a_buffer_changed_meanwhile_is_safe(encoder: Encoder) -> None:
    """The bytes are copied before the first thread switch that native work allows."""
    buffer = bytearray(images.png(300, 200, 3))
    wanted = embeddings(encoder, bytes(buffer))
    stop = threading.Event()

    def scribble() -> None:
        while not stop.is_set():
            for place in range(100, len(buffer), 997):
                buffer[place] ^= 0xFF
                buffer[place] ^= 0xFF

    thread = threading.Thread(target=scribble)
    thread.start()
    try:
        outcomes = encoder.generate([buffer] * 4, return_errors=True)
    finally:
        stop.set()
        thread.join()
    for outcome in outcomes:
        # A copy taken between the two flips of a byte is another file, and may be a damaged one.
        if not isinstance(outcome, MediaError):
            assert outcome.tensor.shape == wanted.shape


@pytest.mark.parametrize(
    "wrong",
    ["text", ["text"], [GOOD, None], [1], [[GOOD]], [{"bytes": GOOD}], [np.zeros(4, np.uint8)], {"a": 1}],
)
def test_wrong_kinds_of_items(encoder: Encoder, wrong: Any) -> None:
    with pytest.raises(TypeError, match="an item must be given as bytes, not "):
        encoder.generate(wrong)


@pytest.mark.parametrize("wrong", [None, 5, 1.5, object()])
def test_what_is_not_iterable(encoder: Encoder, wrong: Any) -> None:
    with pytest.raises(TypeError):
        encoder.generate(wrong)
    with pytest.raises(TypeError, match="an item must be given as bytes, not "):
        encoder.encode_image(wrong)


# Expected tokens


def test_right_counts(encoder: Encoder) -> None:
    results = encoder.generate([GOOD, images.png(300, 200)], expected_tokens=iter([20, 88]))
    assert [result.metadata.length for result in results] == [20, 88]


@pytest.mark.parametrize("counts", [[], [20], [20, 20, 20]])
def test_a_wrong_number_of_counts(encoder: Encoder, counts: list[int]) -> None:
    with pytest.raises(ValueError, match=f"expected_tokens has {len(counts)} counts for 2 items"):
        encoder.generate([GOOD, GOOD], expected_tokens=counts)


@pytest.mark.parametrize("count", [0, -1, True, 20.0, "20", None, np.int64(20), -(2**80), 2**80, 2**63])
def test_what_is_no_count(encoder: Encoder, count: Any) -> None:
    with pytest.raises(ValueError, match="expected"):
        encoder.generate([GOOD], expected_tokens=[count])


def test_a_wrong_count_fails_its_item_alone(encoder: Encoder) -> None:
    first, second, third = encoder.generate([GOOD] * 3, expected_tokens=[20, 21, 20], return_errors=True)
    assert isinstance(second, MediaError)
    assert "21 tokens were expected" in str(second) and "20" in str(second)
    assert torch.equal(first.tensor, third.tensor)


def test_a_wrong_count_fails_before_pixels_are_touched(encoder: Encoder) -> None:
    """A header with nothing behind it: the count is compared before pixels are missed."""
    cut = images.encode(PIL.Image.new("RGB", (3000, 2000)))[:60]
    with pytest.raises(MediaError, match="tokens were expected"):
        encoder.generate([cut], expected_tokens=[5])


# Failures


BROKEN = {
    "empty": b"",
    "one byte": b"\xff",
    "text": BAD,
    "html": b"<!DOCTYPE html><html><body>404</body></html>",
    "zeros": bytes(1000),
    "half a PNG": images.png(200, 200)[:4000],
    "half a JPEG": images.jpeg(400, 400)[:4000],
    "JPEG without its end marker": images.jpeg(64, 64)[:-2],
    "PNG signature alone": GOOD[:8],
    "PNG of no width": GOOD[:16] + bytes(4) + GOOD[20:],
    "PNG of 2^31 - 1 rows": GOOD[:20] + b"\x7f\xff\xff\xff" + GOOD[24:],
    "PNG of 14000x14000": GOOD[:16] + (14_000).to_bytes(4, "big") * 2 + GOOD[24:],
    "zip": b"PK\x03\x04" + bytes(100),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_broken_input(encoder: Encoder, name: str) -> None:
    with pytest.raises(MediaError) as caught:
        encoder.generate(BROKEN[name])
    sentence = str(caught.value)
    assert 15 < len(sentence) < 300
    assert (
        "\n" not in sentence and "0x" not in sentence and "Error" not in sentence and "src/" not in sentence
    )
    assert encoder.generate(GOOD)[0].metadata.length == 20


def test_bad_ones_between_good_ones(encoder: Encoder) -> None:
    sources = [GOOD, *BROKEN.values(), images.png(300, 200), b"", GOOD]
    outcomes = encoder.generate(sources, return_errors=True)
    assert len(outcomes) == len(sources)
    for source, outcome in zip(sources, outcomes, strict=True):
        if source in BROKEN.values():
            assert isinstance(outcome, MediaError)
        else:
            assert torch.equal(outcome.tensor, embeddings(encoder, source))


def test_the_first_error_is_raised_with_its_place(encoder: Encoder) -> None:
    with pytest.raises(MediaError) as caught:
        encoder.generate([GOOD, BAD, b""])
    assert caught.value.__notes__ == ["This is image 1 of 3, counted from 0."]
    with pytest.raises(MediaError) as caught:
        encoder.generate([BAD])
    assert not hasattr(caught.value, "__notes__")


def test_returned_errors_carry_no_traceback_of_ours(encoder: Encoder) -> None:
    (outcome,) = encoder.generate([BAD], return_errors=True)
    assert isinstance(outcome, MediaError) and isinstance(outcome, ValueError)
    assert outcome.__traceback__ is None and outcome.__cause__ is None


# encode_image and encode_pixels


@pytest.mark.parametrize("family", ["qwen35", "glm53"])
def test_encode_image(shared_encoder: EncoderOf, family: str) -> None:
    encoder = shared_encoder(family)
    (result,) = encoder.generate(GOOD)
    outputs = encoder.encode_image(GOOD)
    assert set(outputs) == {"embeddings", "grid_thws", "embedding_offsets"}
    assert torch.equal(outputs["embeddings"], result.tensor)
    assert outputs["grid_thws"].dtype == outputs["embedding_offsets"].dtype == torch.int64
    assert outputs["grid_thws"].tolist() == [list(grid) for grid in result.metadata.grid_thws]
    assert outputs["embedding_offsets"].tolist() == [0, result.tensor.shape[0]]
    with pytest.raises(MediaError):
        encoder.encode_image(BAD)


@pytest.mark.parametrize("family", ["qwen35", "glm53"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_encode_pixels_equals_the_whole_way(
    shared_encoder: EncoderOf, demo_checkpoint: Callable[[str], Any], family: str, dtype: str
) -> None:
    encoder = shared_encoder(family, dtype)
    pixels, grid = _native.Processor(demo_checkpoint(family), "", family).pixel_values(GOOD)
    outputs = encoder.encode_pixels(torch.from_numpy(pixels), [grid])
    assert torch.equal(outputs["embeddings"], embeddings(encoder, GOOD))


@pytest.mark.parametrize("family", ["qwen35", "glm53"])
def test_several_items_share_one_forward_and_do_not_mix(
    shared_encoder: EncoderOf, demo_checkpoint: Callable[[str], Any], family: str
) -> None:
    encoder = shared_encoder(family)
    processor = _native.Processor(demo_checkpoint(family), "", family)
    sources = [images.png(300, 200, 1), images.png(64, 500, 2), images.png(200, 200, 3)]
    parts = [processor.pixel_values(source) for source in sources]
    joined = torch.cat([torch.from_numpy(pixels) for pixels, _ in parts])
    outputs = encoder.encode_pixels(joined, [grid for _, grid in parts])
    edges = outputs["embedding_offsets"].tolist()
    assert edges[0] == 0 and edges[-1] == outputs["embeddings"].shape[0] and len(edges) == 4
    for source, begin, end in zip(sources, edges, edges[1:], strict=False):
        alone = embeddings(encoder, source)
        assert torch.allclose(outputs["embeddings"][begin:end], alone, rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    "grids",
    [
        [],
        [(1, 8, 9)],
        [(1, 8, 8), (1, 2, 2)],
        [(0, 8, 8)],
        [(1, 0, 8)],
        [(1, 64, 1)],
        [(1, 1, 64)],
        [(2, 8, 8)],
        [(1, 2**31, 2**31)],
        # Products that come round to the right number modulo 2^64.
        [(4, 2**31, 2**31), (1, 8, 8)],
        [(2**31, 2**31, 4), (1, 8, 8)],
        [(2**32 - 2, 2**32 - 2, 2**32 - 2)],
    ],
)
def test_grids_that_do_not_fit_the_pixels(
    shared_encoder: EncoderOf, grids: list[tuple[int, int, int]]
) -> None:
    encoder = shared_encoder("glm53")
    with pytest.raises(ValueError) as caught:
        encoder.encode_pixels(torch.zeros(64, 1176), grids)
    assert "grid" in str(caught.value)


@pytest.mark.parametrize(
    "grids", [[(1, 8)], [(1, 8, 8, 1)], [(-1, 8, 8)], [(1, 8, 2**40)], ["abc"], [None], None, 5]
)
def test_what_is_no_grid(shared_encoder: EncoderOf, grids: Any) -> None:
    encoder = shared_encoder("glm53")
    with pytest.raises((ValueError, TypeError)):
        encoder.encode_pixels(torch.zeros(64, 1176), grids)


@pytest.mark.parametrize("shape", [(64, 1175), (63, 1176), (0, 1176), (64, 0), (64,), (1, 64, 1176)])
def test_matrices_of_the_wrong_shape(shared_encoder: EncoderOf, shape: tuple[int, ...]) -> None:
    encoder = shared_encoder("glm53")
    with pytest.raises(ValueError, match="pixel_values"):
        encoder.encode_pixels(torch.zeros(shape), [(1, 8, 8)])


def test_matrices_of_any_layout_and_dtype(
    shared_encoder: EncoderOf, demo_checkpoint: Callable[[str], Any]
) -> None:
    encoder = shared_encoder("glm53")
    pixels, grid = _native.Processor(demo_checkpoint("glm53"), "", "glm53").pixel_values(GOOD)
    matrix = torch.from_numpy(pixels)
    wanted = embeddings(encoder, GOOD)
    transposed = matrix.T.contiguous().T
    assert not transposed.is_contiguous()
    for same in (
        transposed,
        matrix.double(),
        matrix.clone().requires_grad_(),
        torch.nn.Parameter(matrix.clone()),
    ):
        assert torch.equal(encoder.encode_pixels(same, [grid])["embeddings"], wanted)


def test_pixels_that_are_not_numbers_stay_with_their_request(shared_encoder: EncoderOf) -> None:
    encoder = shared_encoder("glm53")
    before = embeddings(encoder, GOOD)
    for value in (float("nan"), float("inf"), -float("inf"), 3e38):
        outputs = encoder.encode_pixels(torch.full((64, 1176), value), [(1, 8, 8)])
        assert outputs["embeddings"].shape == (16, 96)
    assert torch.equal(embeddings(encoder, GOOD), before)
