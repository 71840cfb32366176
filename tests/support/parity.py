"""Comparisons that every family's tests make with its upstream."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import checkpoints
import goldens
import numpy as np
import torch
from images import Spec
from numpy.typing import NDArray
from sounds import Sound

from mm_libtorch_encoder import Encoder, _native

# (pixel values, grids) of encoded bytes, and embeddings of pixel values and grids in a dtype.
Preprocess = Callable[[bytes], tuple[torch.Tensor, torch.Tensor]]
Change = Callable[[dict[str, Any]], object]
Forward = Callable[[torch.Tensor, torch.Tensor, str], torch.Tensor]


def checkpoint(
    family: str, folder: Path, seed: int, source: Path, change: Change = lambda config: None
) -> Path:
    """A seeded checkpoint like the demonstration's `source`, its config.json changed and its weights to match."""
    config = json.loads((source / "config.json").read_text("utf-8"))
    change(config)
    _native.make_checkpoint(family, folder, seed, files={"config.json": json.dumps(config)})
    return folder


def changed(source: Path, folder: Path, change: Change) -> Path:
    """A copy of the checkpoint `source` with the same weights, its config.json changed."""
    checkpoints.edit(checkpoints.copied(source, folder), "config.json", change)
    return folder


def bits(values: torch.Tensor) -> NDArray[Any]:
    """The elements as integers: -0.0 and NaN count."""
    integers = {2: np.uint16, 4: np.uint32}[values.element_size()]
    matrix = values.contiguous()
    return (matrix.view(torch.uint16) if integers is np.uint16 else matrix).numpy().view(integers)


def check_pixels(processor: _native.Processor, data: bytes, upstream: Preprocess, what: object) -> None:
    """Equal grids, and pixel values equal bit for bit in upstream's own dtype."""
    wanted, grids = upstream(data)
    got, grid = processor.pixel_values(data, str(wanted.dtype).removeprefix("torch."))
    assert [list(grid)] == grids.tolist(), what
    theirs, ours = bits(wanted), got.view(np.uint32) if got.dtype == np.float32 else got
    assert ours.shape == theirs.shape, what
    differing = np.count_nonzero(ours != theirs)
    assert not differing, f"{what}: {differing} of {ours.size} values differ"


def compare(
    family: str,
    folder: Path,
    preprocess: Preprocess,
    forward: Forward,
    media: Iterable[Spec | Sound],
    *,
    bound: float,
) -> None:
    """`check_embeddings` with encoders of the checkpoint `folder`."""
    with (
        Encoder(folder, "demo", "cpu", family, dtype="float32") as wide,
        Encoder(folder, "demo", "cpu", family, dtype="bfloat16") as low,
    ):
        encoders = {"float32": wide, "bfloat16": low}
        check_embeddings(encoders.__getitem__, preprocess, forward, media, bound=bound)


def encoded(encoder: Encoder, data: bytes) -> dict[str, torch.Tensor]:
    """The tower's outputs for an image or a sound, whatever the family reads."""
    return encoder.encode_audio(data) if encoder.modality == "audio" else encoder.encode_image(data)


def check_embeddings(
    encoder_of: Callable[[str], Encoder],
    preprocess: Preprocess,
    forward: Forward,
    media: Iterable[Spec | Sound],
    *,
    bound: float,
) -> None:
    """float32 within `bound` of upstream's; bfloat16 no further from upstream's float32 than 1.05 times upstream's own.

    Both are relative Euclidean distances. Over all media together the bfloat16 cosine is at least 0.9999.
    """
    collected: dict[str, list[NDArray[Any]]] = {"exact": [], "ours": [], "theirs": []}
    for spec in media:
        data = spec.data()
        pixels, grids = preprocess(data)
        exact = forward(pixels, grids, "float32").numpy()
        got = encoded(encoder_of("float32"), data)
        if isinstance(spec, Spec):
            assert torch.equal(got["grid_thws"], grids), spec
        distance = goldens.relative(got["embeddings"].numpy(), exact)
        assert distance <= bound, f"{spec}: {distance:.2e}"
        low = encoded(encoder_of("bfloat16"), data)["embeddings"]
        assert low.dtype == torch.bfloat16
        collected["exact"].append(exact.reshape(-1))
        collected["ours"].append(low.float().numpy().reshape(-1))
        collected["theirs"].append(forward(pixels, grids, "bfloat16").float().numpy().reshape(-1))
    exact, ours, theirs = (np.concatenate(collected[name]) for name in ("exact", "ours", "theirs"))
    our_distance, their_distance = goldens.relative(ours, exact), goldens.relative(theirs, exact)
    assert our_distance <= 1.05 * their_distance, f"ours {our_distance:.3e}, upstream's {their_distance:.3e}"
    assert goldens.cosine(ours, exact) >= 0.9999


def check_float16(encoder_of: Callable[[str], Encoder], media: Iterable[Spec | Sound]) -> None:
    """float16, which upstream is not run in, near our float32."""
    for spec in media:
        wide, low = (
            encoded(encoder_of(dtype), spec.data())["embeddings"] for dtype in ("float32", "float16")
        )
        assert low.dtype == torch.float16
        assert goldens.relative(low.float().numpy(), wide.numpy()) <= 2.5e-3, spec


def check_batch(encoder: Encoder, processor: _native.Processor, sources: list[bytes]) -> None:
    """Several images in one forward give what each gives alone."""
    single = [encoder.encode_image(source) for source in sources]
    pixels = [torch.from_numpy(processor.pixel_values(source, "float32")[0]) for source in sources]
    both = encoder.encode_pixels(torch.cat(pixels), [tuple(one["grid_thws"][0].tolist()) for one in single])
    joined = torch.cat([one["embeddings"] for one in single])
    edges = np.cumsum([0] + [len(one["embeddings"]) for one in single])
    assert both["embedding_offsets"].tolist() == edges.tolist()
    assert goldens.relative(both["embeddings"].float().numpy(), joined.float().numpy()) <= 1e-6
