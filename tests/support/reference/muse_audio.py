"""transformers: the audio tower of Muse Spark and its feature extractor.

WAV is read by SciPy and other rates are resampled by torchaudio, as SGLang does with libsndfile and torchaudio.
"""

from __future__ import annotations

import io
import json
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from sounds import Sound

BACKENDS: tuple[str, ...] = ()
RATE = 24_000
# Of the first ones pixel values, here samples, are equal bit for bit.
MEDIA = (
    Sound(1, 1),
    Sound(1_919, 2),
    Sound(1_920, 3, "u8"),
    Sound(1_921, 4, "i24", channels=2),
    Sound(30_000, 5, "i32"),
    Sound(100_001, 6, "f32", channels=3),
    Sound(70_000, 7, "f64"),
    Sound(16_000, 8, rate=8_000),
    Sound(40_000, 9, "f32", rate=44_100, channels=2),
    Sound(50_000, 10, "i24", rate=48_000),
)


def versions() -> dict[str, str]:
    return {name: version(name) for name in ("torch", "torchaudio", "transformers", "scipy")}


def read(data: bytes) -> tuple[NDArray[np.float32], int]:
    """(float32 mean of the channels, rate), by SciPy's reader."""
    import scipy.io.wavfile

    rate, values = scipy.io.wavfile.read(io.BytesIO(data))
    if values.dtype == np.uint8:
        scaled = (values.astype(np.float64) - 128) / 128
    elif values.dtype.kind == "i":
        # 24 bits come in the upper part of 32.
        scaled = values.astype(np.float64) / 2.0 ** (8 * values.dtype.itemsize - 1)
    else:
        scaled = values.astype(np.float64)
    return (scaled if scaled.ndim == 1 else scaled.mean(axis=1)).astype(np.float32), rate


def resampled(samples: NDArray[np.float32], rate: int, to: int = RATE) -> NDArray[np.float32]:
    if rate == to:
        return samples
    import torchaudio

    return torchaudio.functional.resample(torch.from_numpy(samples)[None], rate, to)[0].numpy()


@lru_cache(maxsize=1)
def extractor() -> Any:
    from transformers import MuseSparkFeatureExtractor

    return MuseSparkFeatureExtractor()


def preprocess(checkpoint: Path, data: bytes) -> tuple[torch.Tensor, torch.Tensor]:
    """(float32 samples [tokens, samples of a token], int64 (tokens, 1, 1)) of one WAV."""
    batch = extractor()(resampled(*read(data)), sampling_rate=RATE, return_tensors="pt")
    values = batch["input_values"].reshape(-1, extractor().samples_per_token)
    return values, torch.tensor([[values.shape[0], 1, 1]])


class Tower(torch.nn.Module):
    """The audio tower and the language model's norm of its embeddings."""

    def __init__(self, checkpoint: Path) -> None:
        super().__init__()
        from transformers import MuseSparkConfig
        from transformers.models.muse_spark.modeling_muse_spark import MuseSparkAudioModel, MuseSparkRMSNorm

        values = json.loads((checkpoint / "config.json").read_text("utf-8"))
        values.pop("architectures")
        config = MuseSparkConfig(**values)
        self.audio_tower = MuseSparkAudioModel(config.audio_config)
        self.norm = MuseSparkRMSNorm(eps=config.text_config.rms_norm_eps, with_scale=False)

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        return self.norm(self.audio_tower(input_values=samples[None]).last_hidden_state[0])


@lru_cache(maxsize=4)
def tower(checkpoint: Path, dtype: str) -> Tower:
    """The tower with the checkpoint's weights in `dtype`."""
    model = Tower(checkpoint).eval()
    tensors = load_file(checkpoint / "model.safetensors")
    model.load_state_dict(
        {name.removeprefix("model."): value for name, value in tensors.items()}, strict=True
    )
    return model.to(getattr(torch, dtype))


def forward(checkpoint: Path, pixels: torch.Tensor, grids: torch.Tensor, dtype: str) -> torch.Tensor:
    """Embeddings of prepared samples, sound by sound."""
    with torch.inference_mode():
        parts = pixels.to(getattr(torch, dtype)).split(grids[:, 0].tolist())
        return torch.cat([tower(checkpoint, dtype)(part.reshape(-1)) for part in parts])


def run(family: str, checkpoint: Path, data: bytes, dtype: str = "float32") -> dict[str, torch.Tensor]:
    """Samples, grid and embeddings of one WAV."""
    pixels, grids = preprocess(checkpoint, data)
    return {
        "pixel_values": pixels,
        "grid_thws": grids,
        "embeddings": forward(checkpoint, pixels, grids, dtype),
    }
