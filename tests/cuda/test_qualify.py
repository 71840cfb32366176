"""The qualification itself: it runs on the CPU, says what it did not run, and fails where something is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from scripts import run

from mm_libtorch_encoder.qualify import command as qualification
from mm_libtorch_encoder.qualify.context import Context, NotRun, difference, within

CheckpointOf = Callable[[str], Path]
EVERYWHERE = ["parity with transformers", "repeatability", "recovery", "ownership", "replicas", "cache"]
SECONDS = 400
# Behind the double there is no torch.cuda.
ON_THE_DOUBLE = ["parity with the CPU", *EVERYWHERE, "kernels", "graphs"]

DOUBLE = """
    import sys
    from cuda_double import Double
    import mm_libtorch_encoder.encoder
    from mm_libtorch_encoder.qualify import command, context
    from mm_libtorch_encoder.qualify.transformers_tower import TransformersTower

    library, folder, dtype, *names = sys.argv[1:]
    double = Double(library)

    context.Context.synchronise = lambda self: None
    start = TransformersTower.__init__
    TransformersTower.__init__ = lambda self, folder, device, dtype: start(self, folder, "cpu", dtype)
    only = [part for name in names for part in ("--only", name)]
    sys.exit(command.main([folder, "--device", "cuda:0", "--dtype", dtype, *only]))
"""


def test_on_the_cpu(
    demo_checkpoint: CheckpointOf, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    only = [part for name in (*EVERYWHERE, "kernels", "graphs", "out of memory") for part in ("--only", name)]
    arguments = [str(demo_checkpoint("qwen35")), "--device", "cpu", "--json", "--report", str(report)]
    code = qualification.main([*arguments, *only])
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads(report.read_text())
    status = {finding["check"]: finding["status"] for finding in document["findings"]}
    details = {finding["check"]: finding["detail"] for finding in document["findings"]}
    assert code == 0, details
    assert [status[name] for name in EVERYWHERE] == ["passed"] * len(EVERYWHERE), details
    assert {status[name] for name in ("kernels", "graphs", "out of memory")} == {"not run"}
    assert document["host"]["torch"] == torch.__version__
    assert document["host"]["device"] == "cpu"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_cuda_checks_on_the_double(double: Path, demo_checkpoint: CheckpointOf, dtype: str) -> None:
    outcome = run(DOUBLE, double, demo_checkpoint("qwen35"), dtype, *ON_THE_DOUBLE, timeout=SECONDS)
    assert outcome.code == 0, outcome.out + outcome.err
    assert outcome.out.splitlines()[-1] == f"{len(ON_THE_DOUBLE)} passed, 0 failed, 0 not run"


def test_a_failure_is_told_and_is_the_exit_code(
    demo_checkpoint: CheckpointOf, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(context: Context) -> str:
        raise AssertionError("a result changed")

    def absent(context: Context) -> str:
        raise NotRun("no such thing here")

    monkeypatch.setattr(
        qualification, "CHECKS", {"wrong": wrong, "absent": absent, "right": lambda context: "fine"}
    )
    assert qualification.main([str(demo_checkpoint("qwen35")), "--device", "cpu"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("failed   wrong (") and lines[0].endswith("AssertionError: a result changed")
    assert lines[-1] == "1 passed, 1 failed, 1 not run (absent)"


def test_without_a_gpu_nothing_passes_for_one(demo_checkpoint: CheckpointOf) -> None:
    if torch.cuda.is_available():
        pytest.skip("a CUDA device is here")
    context = Context(demo_checkpoint("qwen35"), "cuda:0")
    for name in qualification.CHECKS:
        if name not in ("vLLM and SGLang", "sanitizers"):
            assert qualification.run(name, context).status == "failed", name
    assert "cannot be used" in str(qualification.host(context)["gpu"]) or "CUDA" in str(
        qualification.host(context)["gpu"]
    )


def test_without_a_gpu_one_sentence_says_so(
    demo_checkpoint: CheckpointOf, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if torch.cuda.is_available():
        pytest.skip("a CUDA device is here")
    report = tmp_path / "report.json"
    assert qualification.main([str(demo_checkpoint("qwen35")), "--report", str(report)]) == 1
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith('failed   device (0.0 s): RuntimeMismatch: device "cuda:0" ')
    assert last.startswith(f"0 passed, 1 failed, {len(qualification.CHECKS)} not run (parity with the CPU, ")
    findings = json.loads(report.read_text())["findings"]
    assert [finding["check"] for finding in findings] == ["device", *qualification.CHECKS]


def test_the_help_names_all_checks(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        qualification.main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert ", ".join(qualification.CHECKS) in text


@pytest.mark.parametrize("wrong", [float("inf"), float("nan"), 0.5])
def test_a_large_difference_is_a_failure(wrong: float) -> None:
    with pytest.raises(AssertionError, match="differs by"):
        within(wrong, torch.bfloat16, "embeddings")
    assert "bound" in within(1e-3, torch.bfloat16, "embeddings")


def test_differences_heed_what_is_not_finite() -> None:
    one = torch.ones(2, 3)
    assert difference(one, one) == 0
    assert difference(one * float("nan"), one) == float("inf")
    assert difference(one * 1.5, one) == pytest.approx(0.5)
    with pytest.raises(AssertionError, match="shape"):
        difference(one[:1], one)
