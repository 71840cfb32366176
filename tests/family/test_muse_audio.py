"""Muse Spark's sound against transformers, SciPy's reader and torchaudio's resampling; and hostile files."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import checkpoints
import goldens
import images
import numpy as np
import parity
import pytest
import sounds
import torch
from sounds import Sound

from mm_libtorch_encoder import CheckpointError, Encoder, MediaError, _native, preprocess

muse = pytest.importorskip("reference.muse_audio", reason="needs transformers")

FAMILY = "muse_audio"
CheckpointOf = Callable[[str], Path]
# At the tower's own rate: nothing beside the samples differs from upstream.
MEDIA = (
    Sound(1, 1),
    Sound(1_000, 2),
    Sound(1_920, 3),
    Sound(1_921, 4),
    Sound(30_000, 5),
    Sound(61_440, 6),
    Sound(61_441, 7),
    Sound(100_001, 8),
    Sound(131_072, 9),
)
RATES = (8_000, 11_025, 12_345, 16_000, 22_050, 32_000, 44_100, 48_000, 96_000, 1_000, 768_000)
# Without a common divisor with the tower's: torchaudio would want gigabytes.
ODD_RATES = (23_999, 767_999)


# Samples


@pytest.mark.parametrize("encoding", sounds.ENCODINGS)
@pytest.mark.parametrize("channels", [1, 2, 3, 6, 11])
@pytest.mark.parametrize("extensible", [False, True])
def test_samples_equal_scipys(encoding: str, channels: int, extensible: bool) -> None:
    for samples in (1, 2, 997):
        data = sounds.wav(sounds.noise(samples, channels, samples), encoding, 16_000, extensible)
        got, rate = preprocess.decode_audio(data)
        wanted, theirs = muse.read(data)
        assert rate == theirs == 16_000
        assert got.dtype == np.float32 and np.array_equal(got, wanted)


@pytest.mark.parametrize("rate", RATES)
def test_resampling(rate: int) -> None:
    pytest.importorskip("torchaudio", reason="not run: needs torchaudio, whose resampling is compared")
    for samples in (1, 2, 50, 2_999):
        values = sounds.noise(samples, 1, samples)[:, 0].astype(np.float32)
        data = sounds.wav(values[:, None].astype(np.float64), "f32", rate)
        got, to = preprocess.decode_audio(data, 24_000)
        wanted = muse.resampled(values, rate)
        assert to == 24_000 and got.shape == wanted.shape
        assert np.abs(got - wanted).max() <= 1e-6 * max(1.0, float(np.abs(wanted).max())), samples


def test_resampling_keeps_a_tone() -> None:
    """Far from the ends, a tone below both cutoffs is the same tone at the other rate."""
    for rate in (*RATES, *ODD_RATES):
        seconds = 0.05
        tone = np.sin(2 * np.pi * 200 * np.arange(int(rate * seconds)) / rate)
        got, _ = preprocess.decode_audio(sounds.wav(tone[:, None], "f64", rate), 24_000)
        wanted = np.sin(2 * np.pi * 200 * np.arange(got.size) / 24_000)
        margin = got.size // 4
        assert got.size == -(-tone.size * 24_000 // rate)
        assert np.abs(got - wanted)[margin:-margin].max() < 0.02, rate


def test_lengths(demo_checkpoint: CheckpointOf) -> None:
    """Tokens from the header alone are those of the samples, for random lengths and rates."""
    processor = _native.Processor(demo_checkpoint(FAMILY), "", FAMILY)
    rng = random.Random(5)
    for _ in range(20_000):
        rate = rng.choice([*RATES, *ODD_RATES, rng.randint(1, 768_000)])
        samples = rng.randint(1, rng.choice([10, 5_000, 300 * rate]))
        if samples > 300 * rate:
            continue
        resampled = -(-samples * 24_000 // rate)
        assert processor.plan_sound(samples, rate) == -(-resampled // 1_920), (samples, rate)
    for samples, rate in [(0, 24_000), (300 * 24_000 + 1, 24_000), (2**63, 1), (1, 0), (1, 768_001)]:
        with pytest.raises(ValueError, match=r"sound of|rate is from"):
            processor.plan_sound(samples, rate)
    assert processor.plan_sound(300 * 768_000, 768_000) == 3_750


def test_pixel_values_are_the_extractors(demo_checkpoint: CheckpointOf) -> None:
    folder = demo_checkpoint(FAMILY)
    processor = _native.Processor(folder, "", FAMILY)
    assert processor.modality == "audio"
    rng = random.Random(7)
    for seed in range(200):
        spec = Sound(
            rng.randint(1, 20_000), seed, rng.choice(list(sounds.ENCODINGS)), channels=rng.randint(1, 4)
        )
        parity.check_pixels(processor, spec.data(), partial(muse.preprocess, folder), spec)
        grid, tokens = processor.plan_bytes(spec.data())
        assert grid == (tokens, 1, 1) and tokens == -(-spec.samples // 1_920)


# Embeddings


def compare(folder: Path, media: tuple[Sound, ...], bound: float) -> None:
    parity.compare(
        FAMILY, folder, partial(muse.preprocess, folder), partial(muse.forward, folder), media, bound=bound
    )
    muse.tower.cache_clear()


def test_embeddings(demo_checkpoint: CheckpointOf) -> None:
    # A restatement in plain Torch equals transformers bit for bit.
    compare(demo_checkpoint(FAMILY), MEDIA, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
def test_embeddings_of_other_seeds(seed: int, tmp_path: Path, demo_checkpoint: CheckpointOf) -> None:
    compare(parity.checkpoint(FAMILY, tmp_path / "tiny", seed, demo_checkpoint(FAMILY)), MEDIA, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_embeddings_of_published_width(seed: int, tmp_path: Path) -> None:
    # Sums over thousands of columns, in another order than upstream's where a sound has a single token: 1.04e-6 there.
    compare(checkpoints.published_width(FAMILY, tmp_path / "wide", seed), MEDIA, 2e-6)


def test_float16(shared_encoder: Callable[..., Encoder]) -> None:
    parity.check_float16(partial(shared_encoder, FAMILY), MEDIA[:4])


def test_plain_operators(demo_checkpoint: CheckpointOf) -> None:
    """Torch's own convolution gives what the fused one does."""
    with Encoder(demo_checkpoint(FAMILY), "demo", "cpu", FAMILY, dtype="float32") as encoder:
        fused = encoder.encode_audio(MEDIA[5].data())["embeddings"]
        _native.set_plain_ops(True)
        try:
            plain = encoder.encode_audio(MEDIA[5].data())["embeddings"]
        finally:
            _native.set_plain_ops(False)
    assert goldens.relative(fused.numpy(), plain.numpy()) <= 1e-6


def test_several_sounds_in_one_forward(
    demo_checkpoint: CheckpointOf, shared_encoder: Callable[..., Encoder]
) -> None:
    """No sound hears another: rows are those of each alone."""
    processor, encoder = _native.Processor(demo_checkpoint(FAMILY), "", FAMILY), shared_encoder(FAMILY)
    sources = [spec.data() for spec in (MEDIA[4], MEDIA[0], MEDIA[7])]
    parts, grids = zip(*(processor.pixel_values(data) for data in sources), strict=True)
    together = encoder.encode_pixels(torch.from_numpy(np.concatenate(parts)), list(grids))
    alone = [result.tensor for result in encoder.generate(sources)]
    assert together["embedding_offsets"].tolist() == [0, 16, 17, 70]
    assert goldens.relative(together["embeddings"].numpy(), torch.cat(alone).numpy()) <= 1e-6


def test_the_result(shared_encoder: Callable[..., Encoder]) -> None:
    encoder = shared_encoder(FAMILY)
    assert (encoder.family, encoder.modality) == (FAMILY, "audio")
    data = Sound(4_000, 1).data()
    ((tensor, metadata),) = encoder.generate(data, expected_tokens=[3])
    assert tuple(tensor.shape) == metadata.shape == (3, 48)
    assert (metadata.length, metadata.embedding_offsets, metadata.grid_thws) == (3, (0, 3), ())
    assert len(metadata.mm_hash) == 64
    outputs = encoder.encode_audio(data)
    assert torch.equal(outputs["embeddings"], tensor)
    assert outputs["grid_thws"].shape == (0, 3) and outputs["embedding_offsets"].tolist() == [0, 3]
    with pytest.raises(MediaError, match="2 tokens were expected, but this sound gives 3"):
        encoder.generate(data, expected_tokens=[2])
    good, bad = encoder.generate([data, data[:30]], return_errors=True)
    assert torch.equal(good.tensor, tensor) and isinstance(bad, MediaError)


def test_the_other_kind_of_media(
    shared_encoder: Callable[..., Encoder], demo_checkpoint: CheckpointOf
) -> None:
    with pytest.raises(ValueError, match="muse_audio reads audio, not image"):
        shared_encoder(FAMILY).encode_image(images.png(8, 8))
    with pytest.raises(ValueError, match="muse_vision reads image, not audio"):
        shared_encoder("muse_vision").encode_audio(Sound(9).data())
    with pytest.raises(
        MediaError, match="format: png; the family muse_audio reads sound, and this is an image"
    ):
        shared_encoder(FAMILY).generate(images.png(8, 8))
    with pytest.raises(
        MediaError, match="format: wav; the family muse_vision reads images, and this is sound"
    ):
        shared_encoder("muse_vision").generate(Sound(9).data())
    with pytest.raises(
        ValueError, match="warmup takes sizes of images, and the family muse_audio reads sound"
    ):
        shared_encoder(FAMILY).warmup([(28, 28)])
    processor = _native.Processor(demo_checkpoint(FAMILY), "", FAMILY)
    for call in (lambda: processor.plan(3, 4), lambda: processor.outline(b""), lambda: processor.decode(b"")):
        with pytest.raises(ValueError, match="muse_audio reads sound"):
            call()
    with pytest.raises(ValueError, match="muse_vision reads images"):
        _native.Processor(demo_checkpoint("muse_vision"), "", "muse_vision").plan_sound(1, 1)


# Files that are wrong

FORM = sounds.form("i16", 24_000, 1)
DATA = sounds.chunk(b"data", bytes(8))


def wav_of(form: bytes) -> bytes:
    return sounds.riff(sounds.chunk(b"fmt ", form), DATA)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "no bytes"),
        (b"hello, this is no sound", "not those of any known"),
        (b"fLaC" + bytes(40), "unsupported format: flac"),
        (b"OggS" + bytes(40), "unsupported format: ogg"),
        (b"ID3\x04" + bytes(40), "unsupported format: mp3"),
        (b"\xff\xfb\x90\x00" + bytes(40), "unsupported format: mp3"),
        (b"\xff\xf1\x50\x80" + bytes(40), "unsupported format: aac"),
        (b"\0\0\0\x20ftypM4A " + bytes(40), "unsupported format: m4a"),
        (b"RIFX" + bytes(40), "unsupported format: rifx"),
        (images.jpeg(8, 8), "unsupported format: jpeg"),
        (sounds.riff(), "no fmt chunk"),
        (sounds.riff(sounds.chunk(b"fmt ", FORM)), "no data chunk"),
        (sounds.riff(DATA, sounds.chunk(b"fmt ", FORM)), "ahead of the fmt chunk"),
        (wav_of(FORM[:15]), "fmt chunk of 15 bytes"),
        (sounds.riff(sounds.chunk(b"fmt ", FORM), sounds.chunk(b"data", b"")), "no samples"),
        (sounds.riff(sounds.chunk(b"fmt ", FORM), sounds.chunk(b"data", b"x")), "no samples"),
        (sounds.riff(sounds.chunk(b"fmt ", FORM), sounds.chunk(b"data", bytes(8), 10)), "cut short"),
        (sounds.riff(sounds.chunk(b"fmt ", FORM), sounds.chunk(b"LIST", bytes(8), 2**31)), "cut short"),
        (wav_of(sounds.form("i16", 0, 1)), "0 Hz"),
        (wav_of(sounds.form("i16", 768_001, 1)), "768001 Hz"),
        (wav_of(sounds.form("i16", 2**32 - 1, 1)), "4294967295 Hz"),
        (wav_of(sounds.form("i16", 24_000, 0)), "0 channels"),
        (wav_of(FORM[:12] + struct.pack("<HH", 3, 16)), "take 3 bytes"),
        (wav_of(FORM[:14] + struct.pack("<H", 12)), "12 bits"),
        (wav_of(struct.pack("<H", 3) + FORM[2:]), "floating point has 32 or 64"),
        (wav_of(struct.pack("<H", 7) + FORM[2:]), "unsupported format: wav with mu-law"),
        (wav_of(struct.pack("<H", 999) + FORM[2:]), "unsupported format: wav with codec 999"),
        (wav_of(sounds.form("i16", 24_000, 1, extensible=True)[:24]), "fmt chunk of 24 bytes"),
        (wav_of(sounds.form("i16", 24_000, 1, extensible=True)[:-1] + b"x"), "a codec of its own"),
        (sounds.wav(np.array([[np.nan]]), "f32"), "NaN"),
        (sounds.wav(np.array([[np.inf]]), "f64"), "infinity"),
        (sounds.wav(np.array([[1e300]]), "f64"), "beyond 2"),
        (sounds.wav(np.array([[0.5], [-3e38]]), "f32"), "beyond 2.100"),
        (sounds.wav(np.array([[np.nextafter(np.float32(2.0**100), np.float32(np.inf))]]), "f32"), "beyond 2"),
        (sounds.wav(np.zeros((301, 1)), "u8", rate=1), "over the limit of 300 seconds"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_wrong_files(data: bytes, text: str) -> None:
    with pytest.raises(MediaError, match=text):
        preprocess.decode_audio(data)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("level", [2.0**15, 2.0**31, 2.0**64, 2.0**100])
def test_loud_sounds_are_encoded_as_the_reference_does(
    shared_encoder: Callable[..., Encoder], demo_checkpoint: CheckpointOf, dtype: str, level: float
) -> None:
    data = sounds.wav(sounds.noise(5_000, 1, 3) * level, "f32")
    got = shared_encoder(FAMILY, dtype=dtype).encode_audio(data)["embeddings"].float()
    wanted = muse.run(FAMILY, demo_checkpoint(FAMILY), data, dtype)["embeddings"].float()
    assert wanted.isfinite().all()
    assert (got - wanted).abs().max() <= (1e-5 if dtype == "float32" else 0.1)


def test_a_resampled_sound_is_finite_at_the_largest_level(shared_encoder: Callable[..., Encoder]) -> None:
    data = sounds.wav(np.sign(sounds.noise(4_000, 1, 4)) * 2.0**100, "f32", rate=44_100)
    samples, _ = preprocess.decode_audio(data, 24_000)
    assert np.isfinite(samples).all()
    assert shared_encoder(FAMILY, dtype="float32").encode_audio(data)["embeddings"].isfinite().all()


def test_samples_that_float16_does_not_hold_fail_alone(shared_encoder: Callable[..., Encoder]) -> None:
    """The reference goes on with infinity, and gives NaN."""
    encoder = shared_encoder(FAMILY, dtype="float16")
    loud = sounds.wav(np.array([[0.5], [70_000.0], [0.1]]), "f32")
    good, bad = encoder.generate([Sound(9).data(), loud], return_errors=True)
    assert good.tensor.isfinite().all()
    assert isinstance(bad, MediaError) and "samples beyond 65504" in str(bad)


def test_what_is_accepted() -> None:
    values = sounds.noise(100, 2, 3)
    wanted, _ = preprocess.decode_audio(sounds.wav(values))
    body, form = sounds.stored(values, "i16"), sounds.chunk(b"fmt ", sounds.form("i16", 24_000, 2))
    streamed = sounds.riff(form, sounds.chunk(b"data", body, 2**32 - 1))
    odd = sounds.riff(
        sounds.chunk(b"LIST", b"odd"), form, sounds.chunk(b"fact", bytes(4)), sounds.chunk(b"data", body)
    )
    partial_frame = sounds.riff(form, sounds.chunk(b"data", body + b"xyz"))
    longer_form = sounds.riff(
        sounds.chunk(b"fmt ", sounds.form("i16", 24_000, 2) + bytes(2)), sounds.chunk(b"data", body)
    )
    behind = sounds.wav(values) + b"ID3 and so on"
    wrong_length = b"RIFF\0\0\0\0" + sounds.wav(values)[8:]
    for data in (streamed, odd, partial_frame, longer_form, behind, wrong_length):
        assert np.array_equal(preprocess.decode_audio(data)[0], wanted)


def test_changed_bytes_and_cut_files_never_crash() -> None:
    rng = random.Random(11)
    originals = [
        sounds.wav(sounds.noise(40, channels, 1), encoding, extensible=extensible)
        for encoding in sounds.ENCODINGS
        for channels in (1, 3)
        for extensible in (False, True)
    ]
    refused = 0
    for _ in range(4_000):
        data = bytearray(rng.choice(originals))
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(min(len(data), 80))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        try:
            samples, rate = preprocess.decode_audio(bytes(data))
        except MediaError as error:
            assert "\n" not in str(error)
            refused += 1
        else:
            assert np.isfinite(samples).all() and samples.size and 1 <= rate <= 768_000
    assert refused > 500


def test_many_channels_and_long_sounds() -> None:
    wide = sounds.noise(3, 30_000, 2)
    assert np.array_equal(
        preprocess.decode_audio(sounds.wav(wide, "u8"))[0], muse.read(sounds.wav(wide, "u8"))[0]
    )
    long, _ = preprocess.decode_audio(sounds.wav(np.zeros((300 * 8_000, 1)), "u8", rate=8_000), 24_000)
    assert long.size == 300 * 24_000 and not long.any()


# Checkpoints


@pytest.fixture
def folder(demo_checkpoint: CheckpointOf, tmp_path: Path) -> Path:
    return checkpoints.copied(demo_checkpoint(FAMILY), tmp_path / "checkpoint")


def audio(**values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda config: config["audio_config"].update(values)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (audio(hidden_act="relu"), "hidden_act"),
        (audio(patch_sizes=[16, 6, 5]), "patch_sizes must be a list of 4"),
        (audio(hidden_sizes=[16, 24, 32, 40, 48]), "hidden_sizes must be a list of 4"),
        (audio(depths=[2]), "depths must be a list of 4"),
        (audio(num_hidden_layers=3), "must be a list of 3"),
        (audio(patch_sizes=[60_000, 60_000, 60_000, 60_000]), "their product"),
        (audio(patch_sizes=[0, 6, 5, 4]), "patch_sizes"),
        (audio(mlp_ratio=0), "mlp_ratio"),
        (audio(mlp_ratio=0.02), "which leaves nothing"),
        (audio(conv_kernel_size=1), "conv_kernel_size"),
        (audio(rms_norm_eps=0), "rms_norm_eps"),
        (audio(out_hidden_size=64), "out_hidden_size must be an integer from 48 to 48"),
        (lambda config: config.pop("audio_config"), "audio_config is missing"),
        (lambda config: config["text_config"].update(hidden_size=64), "out_hidden_size"),
    ],
)
def test_wrong_configurations(change: Callable[[dict[str, Any]], object], text: str, folder: Path) -> None:
    checkpoints.edit(folder, "config.json", change)
    with pytest.raises(CheckpointError, match=text):
        _native.Processor(folder, "", FAMILY)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"samples_per_token": 960}, "samples_per_token 960, but the tower of config.json has 1920"),
        ({"sampling_rate": 0}, "sampling_rate"),
        ({"feature_size": 2}, "feature_size"),
        ({"padding_value": 1.0}, "padding_value"),
    ],
)
def test_wrong_extractors(values: dict[str, Any], text: str, folder: Path) -> None:
    def change(config: dict[str, Any]) -> None:
        config["feature_extractor"] = values

    checkpoints.edit(folder, "processor_config.json", change)
    with pytest.raises(CheckpointError, match=text):
        _native.Processor(folder, "", FAMILY)


def test_another_rate_is_heeded(folder: Path) -> None:
    checkpoints.edit(
        folder,
        "processor_config.json",
        lambda config: config.update(feature_extractor={"sampling_rate": 16_000}),
    )
    assert _native.Processor(folder, "", FAMILY).plan_sound(19_200, 16_000) == 10
    (folder / "processor_config.json").unlink()
    assert _native.Processor(folder, "", FAMILY).plan_sound(19_200, 24_000) == 10


def test_the_family_must_be_named(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"several families.*muse_audio, muse_vision"):
        _native.Processor(folder, "")


def test_options_that_it_has_not(folder: Path) -> None:
    for options in ({"backend": "pillow"}, {"decode_policy": "hf"}, {"rescale": 2.0}):
        with pytest.raises(ValueError, match=r"muse_audio (has no option|reads sound)"):
            _native.Processor(folder, "", FAMILY, **options)
