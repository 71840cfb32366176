"""Records what upstream computes: python tests/support/make_goldens.py FAMILY...

Needs the package, built, and upstream's packages (transformers, for some families sglang). Nothing of our own
preprocessing or towers goes into a golden; our part is the demonstration checkpoint alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import goldens
import reference

from mm_libtorch_encoder import _native


def golden(family: str) -> dict[str, Any]:
    upstream = reference.module(family)
    backends = upstream.BACKENDS[family] if isinstance(upstream.BACKENDS, dict) else upstream.BACKENDS
    backends = backends or (None,)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "checkpoint"
        _native.make_checkpoint(family, checkpoint, goldens.SEED)
        cases = []
        for spec in getattr(upstream, "MEDIA", goldens.MEDIA):
            case: dict[str, Any] = {"item": goldens.item(spec), "pixel_values": {}, "embeddings": {}}
            for backend in backends:
                chosen = {} if backend is None else {"backend": backend}
                for dtype in goldens.DTYPES if backend == backends[0] else goldens.DTYPES[:1]:
                    out = upstream.run(family, checkpoint, spec.data(), dtype, **chosen)
                    name = backend or "default"
                    values = out["pixel_values"].float().numpy()
                    record = goldens.exact if spec.exact else goldens.sampled
                    case["pixel_values"].setdefault(name, record(values))
                    case["grid_thws"] = out["grid_thws"].tolist()
                    if backend != backends[0]:
                        continue
                    case["embeddings"][dtype] = goldens.sampled(out["embeddings"].float().numpy())
                    for name in out.keys() - {"pixel_values", "grid_thws", "embeddings"}:
                        further = case.setdefault("further", {}).setdefault(name, {})
                        further[dtype] = goldens.sampled(out[name].float().numpy())
            cases.append(case)
            print(
                f"{family} {spec}: {case['grid_thws']}, embeddings {case['embeddings']['float32']['shape']}"
            )
        return {
            "family": family,
            "versions": upstream.versions(),
            "checkpoint": {"seed": goldens.SEED, "sha256": goldens.folder_digest(checkpoint)},
            "cases": cases,
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("family", nargs="+", choices=sorted(reference.MODULES))
    for family in parser.parse_args().family:
        goldens.save(family, golden(family))
        print(goldens.path(family))
    return 0


if __name__ == "__main__":
    sys.exit(main())
