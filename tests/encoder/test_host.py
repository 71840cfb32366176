"""The host process's own settings of Torch are left alone and change no result; scarce memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import checkpoints
import images
import pytest
import torch
from scripts import run

from mm_libtorch_encoder import Encoder

EncoderOf = Callable[..., Encoder]
GOOD = images.png(90, 60, 1)


@contextmanager
def changed(set_value: Callable, value: object, old: object) -> Iterator[None]:
    set_value(value)
    try:
        yield
    finally:
        set_value(old)


CONTEXTS: dict[str, Callable[[], AbstractContextManager]] = {
    "inference mode": torch.inference_mode,
    "no gradients": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "default device": lambda: torch.device("meta"),
    "default dtype": lambda: changed(torch.set_default_dtype, torch.float64, torch.float32),
    "deterministic": lambda: changed(torch.use_deterministic_algorithms, True, False),
    "anomaly detection": torch.autograd.detect_anomaly,
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("name", CONTEXTS)
def test_a_callers_context_changes_nothing(
    shared_encoder: EncoderOf, demo_checkpoint: Callable[[str], Path], name: str
) -> None:
    wanted = shared_encoder("glm53").generate(GOOD)[0].tensor
    with CONTEXTS[name]():
        tensor = shared_encoder("glm53").generate(GOOD)[0].tensor
        outputs = shared_encoder("glm53").encode_image(GOOD)
        with Encoder(demo_checkpoint("glm53"), "demo", "cpu", dtype="float32") as encoder:
            fresh = encoder.generate(GOOD)[0].tensor
    assert torch.equal(tensor, wanted) and torch.equal(fresh, wanted)
    assert not tensor.is_inference() and tensor.device.type == "cpu"
    for output in outputs.values():
        assert output.device.type == "cpu"
    assert torch.equal(outputs["embeddings"], wanted)


def test_torchs_settings_are_left_alone(demo_checkpoint: Callable[[str], Path]) -> None:
    program = """
        import sys, warnings
        import images, torch
        def settings():
            return (torch.is_grad_enabled(), torch.get_num_threads(), torch.get_num_interop_threads(),
                    torch.get_default_dtype(), torch.get_default_device(), torch.is_inference_mode_enabled(),
                    torch.are_deterministic_algorithms_enabled(), torch.backends.mkldnn.enabled,
                    torch.initial_seed(), torch.get_rng_state().sum().item(), len(warnings.filters))
        before = settings()
        from mm_libtorch_encoder import Encoder
        with Encoder(sys.argv[1], "demo", "cpu") as encoder:
            encoder.generate([images.png(90, 60, 1)] * 2)
            assert settings() == before, (settings(), before)
        assert settings() == before
        assert (torch.ones(2, requires_grad=True) * 2).requires_grad
    """
    outcome = run(program, demo_checkpoint("glm53"))
    assert (outcome.code, outcome.err) == (0, "")


def test_signal_handlers_are_left_alone(demo_checkpoint: Callable[[str], Path]) -> None:
    program = """
        import signal, sys
        import torch
        def handlers():
            return {number: signal.getsignal(number) for number in signal.valid_signals()}
        before = handlers()
        from mm_libtorch_encoder import Encoder
        Encoder(sys.argv[1], "demo", "cpu").close()
        assert handlers() == before
    """
    outcome = run(program, demo_checkpoint("glm53"))
    assert (outcome.code, outcome.err) == (0, "")


def test_scarce_memory_fails_the_item_alone(demo_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Address space for the encoder and little more: images fail with an exception, small ones work."""
    folder = checkpoints.copied(demo_checkpoint("glm53"), tmp_path / "checkpoint")
    # A smaller canvas, so that the tower is quick where memory is enough.
    checkpoints.edit(
        folder, "processor_config.json", lambda config: config["image_processor"].update(max_image_tokens=700)
    )
    program = """
        import io, resource, sys
        import images, PIL.Image
        from mm_libtorch_encoder import DeviceOutOfMemory, Encoder, ImageResult
        def plain(side, form):
            out = io.BytesIO()
            PIL.Image.new("RGB", (side, side), (90, 120, 30)).save(out, form)
            return out.getvalue()
        good = images.png(90, 60, 1)
        sources = [plain(side, form) for side in (1200, 5000) for form in ("PNG", "JPEG")]
        encoder = Encoder(sys.argv[1], "demo", "cpu", dtype="float32")
        wanted = encoder.generate(good)[0].tensor
        encoder.generate(sources[0])
        page = resource.getpagesize()
        for spare in (1, 24, 48, 72, 256):
            used = int(open("/proc/self/statm").read().split()[0]) * page
            resource.setrlimit(resource.RLIMIT_AS, (used + (spare << 20), resource.RLIM_INFINITY))
            kinds = []
            for source in sources:
                (outcome,) = encoder.generate([source], return_errors=True)
                kinds.append(type(outcome).__name__)
                if not isinstance(outcome, ImageResult):
                    assert isinstance(outcome, DeviceOutOfMemory), (spare, outcome)
                    assert "memory" in str(outcome)
                del outcome
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            assert (encoder.generate(good)[0].tensor == wanted).all()
            print(spare, *kinds)
    """
    outcome = run(program, folder)
    assert (outcome.code, outcome.err) == (0, ""), outcome
    first, *_, last = outcome.out.splitlines()
    assert first.endswith("DeviceOutOfMemory DeviceOutOfMemory"), outcome.out
    assert "DeviceOutOfMemory" not in last, outcome.out
