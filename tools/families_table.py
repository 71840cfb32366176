"""Writes docs/families.md, the support table: python tools/families_table.py

Names, modalities and model types come from this build, reference versions and counts from tests/goldens, and what
else is compared from the families' tests. `--check` writes nothing and fails where the file is another.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mm_libtorch_encoder import _native

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "families.md"
GOLDENS = ROOT / "tests" / "goldens"
# Packages that are the reference itself; others of a golden are what it stands on.
REFERENCES = {
    "transformers": "transformers",
    "sglang": "SGLang",
    "torchaudio": "torchaudio",
    "scipy": "SciPy",
}


@dataclass(frozen=True)
class Facts:
    """What no file of this build says of a family."""

    checkpoints: str
    tests: str  # file of tests/family, without its ending
    goldens: tuple[str, ...]  # their names; a variant has one of its own
    live: str  # what the tests run beside the goldens
    note: str = ""


FACTS = {
    "deepseek41": Facts(
        "DeepSeek-V4.1-Flash",
        "test_deepseek41",
        ("deepseek41",),
        "SGLang: pixels of 200 sizes, 20,000 grids, embeddings; published plans",
        'attention="math" for the rounding of Torch up to 2.13',
    ),
    "glm53": Facts(
        "GLM-5.3-Flash",
        "test_pixel_values",
        ("glm53",),
        "transformers: pixels of 200 sizes on both backends, 20,000 grids, embeddings",
        'alpha over white as transformers does; decode_policy="sglang" drops it',
    ),
    "inkling": Facts(
        "Inkling",
        "test_inkling",
        ("inkling",),
        "transformers and SGLang: pixels of 200 sizes, 20,000 grids; transformers: embeddings",
        "rescale=2.0 is what SGLang's server does",
    ),
    "kimi": Facts(
        "Kimi-K2.5, K2.6, K2.7, K3",
        "test_kimi",
        ("kimi", "kimi_k25"),
        "Pillow and transformers (K2.5), SGLang (K3): pixels of 200 sizes, 20,000 grids, embeddings",
        "the published processor's resize and alpha; backend chooses others",
    ),
    "muse_audio": Facts(
        "Muse Spark",
        "test_muse_audio",
        ("muse_audio",),
        "transformers: samples of 200 sounds, embeddings; SciPy: six encodings; torchaudio: resampling",
        "WAV; up to 300 seconds",
    ),
    "muse_glimmer": Facts(
        "Muse Glimmer",
        "test_muse",
        ("muse_glimmer",),
        "transformers: pixels of 200 sizes on both backends, 20,000 grids, embeddings",
    ),
    "muse_vision": Facts(
        "Muse Spark",
        "test_muse",
        ("muse_vision",),
        "transformers and SGLang: pixels of 200 sizes, 20,000 grids; transformers: embeddings",
        "the family must be named: muse_audio reads the same checkpoint",
    ),
    "nemotron35": Facts(
        "Nemotron 3.5 Super VL, release and ModelOpt names",
        "test_nemotron35",
        ("nemotron35",),
        "transformers: pixels of 200 sizes, 20,000 grids, embeddings under both spellings",
    ),
    "qwen2_5_vl": Facts(
        "Qwen2.5-VL",
        "test_qwen_vl",
        ("qwen2_5_vl",),
        "transformers: pixels of 200 sizes, 20,000 grids, embeddings",
    ),
    "qwen2_vl": Facts(
        "Qwen2-VL",
        "test_qwen_vl",
        ("qwen2_vl",),
        "transformers: pixels of 200 sizes, 20,000 grids, embeddings",
    ),
    "qwen3_vl": Facts(
        "Qwen3-VL, dense and MoE",
        "test_qwen_vl",
        ("qwen3_vl",),
        "transformers: pixels of 200 sizes, 20,000 grids, embeddings, deepstack",
        'deepstack="concatenated" is SGLang\'s form',
    ),
    "qwen35": Facts(
        "Qwen3.5, dense and MoE",
        "test_pixel_values",
        ("qwen35",),
        "transformers: pixels of 200 sizes on both backends, 20,000 grids, embeddings",
    ),
}

HEAD = """# Families

<!-- Written by `python tools/families_table.py`; a test compares. -->

What this build reads, and what each family was tested against. `mm-encoder families` prints the first columns.

"""

FOOT = """
- Towers run in float32, bfloat16 and float16. float32 and bfloat16 are compared with the reference, float16 with
  our own float32.
- Goldens are fingerprints of what the reference computed on the demonstration checkpoint (`mm-encoder
  make-checkpoint`): pixel values as digests, equal bit for bit; grids; embeddings as samples. Every test run compares
  with them. `make test-all` compares with the reference itself where it is installed; what needs SGLang is skipped
  where it is not, and says so.
- Checkpoints in tests have seeded random weights in the published layouts, small ones and ones of published width.
  No published weights have been loaded.
- Quantised tower weights are refused. Video is not encoded.
"""


def reference(goldens: list[dict[str, Any]]) -> str:
    """Name and version of every package that the goldens come from."""
    found = {}
    for golden in goldens:
        found.update({name: number for name, number in golden["versions"].items() if name in REFERENCES})
    return ", ".join(f"{title} {found[name]}" for name, title in REFERENCES.items() if name in found)


def line(name: str, modality: str, model_types: list[str]) -> str:
    """The table's row of one family."""
    facts = FACTS[name]
    goldens = [json.loads((GOLDENS / f"{golden}.json").read_text("utf-8")) for golden in facts.goldens]
    dtypes = ", ".join(goldens[0]["cases"][0]["embeddings"])
    recorded = f"{sum(len(golden['cases']) for golden in goldens)} items in {dtypes}"
    cells = [
        f"`{name}`",
        modality,
        facts.checkpoints,
        ", ".join(f"`{model_type}`" for model_type in model_types),
        f"{reference(goldens)}: {recorded}",
        f"{facts.live} ([tests](../tests/family/{facts.tests}.py))",
        facts.note,
    ]
    return "| " + " | ".join(cells) + " |"


def page() -> str:
    """The whole file."""
    columns = ["family", "modality", "checkpoints", "model_type", "goldens", "further tests", "to know"]
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    lines += [line(name, modality, types) for name, types, _, modality in _native.families()]
    return HEAD + "\n".join(lines) + "\n" + FOOT


def main() -> int:
    """Writes the file, or checks it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="fail where the file is another")
    if not parser.parse_args().check:
        PAGE.write_text(page(), "utf-8")
    elif PAGE.read_text("utf-8") != page():
        print(f"{PAGE.relative_to(ROOT)} is out of date: run python tools/families_table.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
