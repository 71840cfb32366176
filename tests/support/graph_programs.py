"""Programs on the CUDA double that use graphs, each in a process of its own."""

from __future__ import annotations

from pathlib import Path

from scripts import run

SECONDS = 600

START = """
    import sys, threading
    import images, torch
    from cuda_double import Double
    from mm_libtorch_encoder import Encoder, GraphConfig, _native, device
    import mm_libtorch_encoder.encoder

    library, folder, *rest = sys.argv[1:]
    double = Double(library)
    SMALL, LARGE, WIDE = (64, 64), (320, 320), (128, 64)

    def opened(config, **options):
        return Encoder(folder, "demo", "cuda:0", cuda_graphs=config, **options)

    def one(encoder, size, seed=0):
        (result,) = encoder.generate(images.png(*size, seed))
        return result.tensor

    eager_encoder = Encoder(folder, "demo", "cuda:0")
    def eager(size, seed=0):
        return one(eager_encoder, size, seed).clone()

    def counts(encoder):
        stats = encoder.stats()
        assert stats.completed + stats.failed > 0
        return stats.graph_captures, stats.graph_replays, stats.graph_failures, stats.graph_drops

    def launches(lines):
        return [line.split()[1] for line in lines if line.startswith("launch")]

    def order(lines, *wanted):
        "These lines are there, once each, in this order."
        places = [[i for i, line in enumerate(lines) if line.startswith(start)] for start in wanted]
        assert all(len(found) == 1 for found in places), (places, lines)
        assert places == sorted(places), lines
"""


def check(program: str, *arguments: str | Path) -> None:
    outcome = run(START + program, *arguments, timeout=SECONDS)
    assert outcome.code == 0, outcome.out + outcome.err
