"""Results are real tensors that own their memory, and nothing that was made is left behind."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import checkpoints
import images
import pytest
import torch
from mm_libtorch_encoder import Encoder, MediaError, _native
from scripts import resident

EncoderOf = Callable[..., Encoder]
take = torch.ops.mm_libtorch_encoder.take.default


@pytest.fixture
def no_leak(shared_encoder: EncoderOf) -> Iterator[None]:
    """The library owns as many tensors after the test as before it."""
    for family in ("qwen35", "glm53"):
        for dtype in ("float32", "bfloat16", "float16"):
            shared_encoder(family, dtype)  # their weights stay, and count
    gc.collect()
    before = _native.live_tensors()
    yield
    gc.collect()
    assert _native.live_tensors() == before


@pytest.fixture(scope="module")
def wide(demo_checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encoder]:
    """A small tower with embeddings of 32768 columns, so that results are large."""
    columns = 1 << 15
    folder = checkpoints.copied(demo_checkpoint("qwen35"), tmp_path_factory.mktemp("wide") / "qwen35")
    checkpoints.edit(folder, "config.json", lambda config: config["vision_config"].update(out_hidden_size=columns))

    def widen(tensors: dict[str, torch.Tensor]) -> None:
        last = "model.visual.merger.linear_fc2."
        inputs = tensors[last + "weight"].shape[1]
        tensors[last + "weight"] = checkpoints.random_weight("weight", (columns, inputs), 1).bfloat16()
        tensors[last + "bias"] = checkpoints.random_weight("bias", (columns,), 2).bfloat16()

    checkpoints.edit_tensors(folder, widen)
    with Encoder(folder, "wide", "cpu", dtype="float32") as encoder:
        yield encoder


def encode(encoder: Encoder, width: int = 300, height: int = 200, seed: int = 0) -> torch.Tensor:
    return encoder.generate(images.png(width, height, seed))[0].tensor


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_plain_tensor(shared_encoder: EncoderOf, dtype: str, no_leak: None) -> None:
    tensor = encode(shared_encoder("qwen35", dtype))
    assert type(tensor) is torch.Tensor
    assert tensor.dtype == getattr(torch, dtype)
    assert tensor.device == torch.device("cpu")
    assert tensor.is_contiguous() and tensor.storage_offset() == 0 and tensor.dim() == 2
    assert not tensor.requires_grad and tensor.grad_fn is None and tensor.is_leaf
    assert not tensor.is_inference()
    assert tensor._version == 0
    assert tensor._base is None
    assert bool(tensor.isfinite().all()) and float(tensor.float().abs().max()) > 0


def test_autograd_accepts_it(shared_encoder: EncoderOf) -> None:
    tensor = encode(shared_encoder("qwen35"))
    weight = torch.ones(tensor.shape[1], requires_grad=True)
    (tensor @ weight).sum().backward()
    assert torch.allclose(weight.grad, tensor.sum(0), rtol=1e-4, atol=1e-4)


def test_the_allocator_owns_the_storage(shared_encoder: EncoderOf) -> None:
    storage = encode(shared_encoder("qwen35")).untyped_storage()
    assert storage.resizable()
    assert storage.device.type == "cpu"


def test_the_storage_holds_the_result_and_no_more(shared_encoder: EncoderOf) -> None:
    tensor = encode(shared_encoder("glm53"))
    assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def test_it_is_writable_and_shared_with_nothing(shared_encoder: EncoderOf) -> None:
    encoder = shared_encoder("qwen35")
    first = encode(encoder)
    kept = first.clone()
    second = encode(encoder)
    assert first.data_ptr() != second.data_ptr()
    first.zero_()
    assert torch.equal(second, kept)
    assert torch.equal(encode(encoder), kept)


def test_it_outlives_the_encoder(demo_checkpoint: Callable[[str], Path], no_leak: None) -> None:
    with Encoder(demo_checkpoint("glm53"), "demo", "cpu") as encoder:
        tensor = encode(encoder)
        kept = tensor.clone()
        view = tensor[3:5]
    del encoder, tensor
    gc.collect()
    assert torch.equal(view, kept[3:5])


def test_memory_is_freed_with_the_last_reference(wide: Encoder) -> None:
    source = images.png(1024, 768)
    wide.generate(source)  # whatever is kept after a first call is kept
    before = resident()
    tensor = wide.generate(source)[0].tensor
    size = tensor.numel() * tensor.element_size()
    assert size > 90_000_000
    held = resident()
    assert size * 0.9 < held - before < size * 1.3, "a second copy is held"
    view = tensor[5:6]
    del tensor
    assert resident() > held - size * 0.1, "freed under a view"
    assert float(view.abs().max()) > 0
    del view
    assert resident() < before + size * 0.1


def test_take_twice(shared_encoder: EncoderOf, no_leak: None) -> None:
    (encoding,) = shared_encoder("qwen35")._native.generate([images.png(64, 64)], None)
    before = _native.live_tensors()
    (tensor,) = take(encoding.id)
    assert _native.live_tensors() == before - 1
    with pytest.raises(RuntimeError, match="taken or discarded"):
        take(encoding.id)
    del encoding
    assert float(tensor.abs().max()) > 0


@pytest.mark.parametrize("number", [0, -1, 2**62, -(2**63), 2**63 - 1])
def test_take_of_an_unknown_id(shared_encoder: EncoderOf, number: int) -> None:
    shared_encoder("qwen35")
    with pytest.raises(RuntimeError, match="no result waits under this id"):
        take(number)


def test_a_result_nobody_takes_is_discarded(shared_encoder: EncoderOf, no_leak: None) -> None:
    encoder = shared_encoder("qwen35")
    before = _native.live_tensors()
    encodings = encoder._native.generate([images.png(64, 64)] * 3, None)
    numbers = [encoding.id for encoding in encodings]
    assert _native.live_tensors() == before + 3
    del encodings
    assert _native.live_tensors() == before
    for number in numbers:
        with pytest.raises(RuntimeError, match="taken or discarded"):
            take(number)


def test_nothing_is_left_after_errors(shared_encoder: EncoderOf, no_leak: None) -> None:
    encoder = shared_encoder("glm53")
    good = images.png(64, 64)
    for _ in range(5):
        with pytest.raises(MediaError):
            encoder.generate([good, b"no image", good])
        with pytest.raises(MediaError):
            encoder.generate([good, good], expected_tokens=[16, 17])
        with pytest.raises(TypeError):
            encoder.generate([good, "text"])  # type: ignore[list-item]
        with pytest.raises(ValueError):
            encoder.encode_pixels(torch.zeros(4, 5), [(1, 2, 2)])
        assert len(encoder.generate([good, b"", good], return_errors=True)) == 3


def test_closing_frees_the_weights(demo_checkpoint: Callable[[str], Path], no_leak: None) -> None:
    before = _native.live_tensors()
    encoder = Encoder(demo_checkpoint("qwen35"), "demo", "cpu")
    assert _native.live_tensors() > before + 30
    tensor = encode(encoder)
    encoder.close()
    assert _native.live_tensors() == before
    assert tensor.shape[1] == 64


def test_a_failed_opening_leaves_nothing(
    demo_checkpoint: Callable[[str], Path], tmp_path: Path, no_leak: None
) -> None:
    folder = checkpoints.copied(demo_checkpoint("qwen35"), tmp_path / "broken")
    checkpoints.edit_tensors(folder, lambda tensors: tensors.pop("model.visual.blocks.2.mlp.linear_fc2.bias"))
    for _ in range(3):
        with pytest.raises(ValueError, match="missing"):
            Encoder(folder, "demo", "cpu")


def test_opening_and_closing_many_times(demo_checkpoint: Callable[[str], Path], no_leak: None) -> None:
    threads = len(list(Path("/proc/self/task").iterdir()))
    for index in range(20):
        with Encoder(demo_checkpoint("qwen35"), "demo", "cpu") as encoder:
            if index % 5 == 0:
                encode(encoder)
    assert len(list(Path("/proc/self/task").iterdir())) <= threads + 2


def test_memory_is_flat(shared_encoder: EncoderOf, no_leak: None) -> None:
    encoder = shared_encoder("glm53", "bfloat16")
    sources = [images.jpeg(320 + 16 * index, 240, index) for index in range(10)] + [b"broken", b""]
    for _ in range(8):
        encoder.generate(sources, return_errors=True)
    gc.collect()
    before = resident()
    for _ in range(30):
        encoder.generate(sources, return_errors=True)
    gc.collect()
    grown = resident() - before
    assert grown < 4 << 20, f"{grown / 2**20:.1f} MiB more after 360 images"
