"""Hostile files: valid ones with bytes changed, cut, doubled and exchanged.

`python -m tests.image.mutations COUNT [FORMAT ...]` decodes COUNT mutants of each format, checks time and
memory, and prints how often Pillow and we agree.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import resource
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from mm_libtorch_encoder import _native
from tests.image import corpus

FORMATS = ("jpeg", "png", "apng", "webp", "gif", "bmp", "dib", "ppm", "ico", "tiff")
#: Pixels that a mutant may claim; both decoders refuse more.
MAX_PIXELS = 1 << 21
MAX_SECONDS = 1.0
#: Bytes of all memory that decoding may add: result, a turned copy, coefficients or a canvas, and slack.
MAX_MEMORY = MAX_PIXELS * 24 + (64 << 20)
EXTREMES = [0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]


def seeds(name: str, count: int = 60) -> list[bytes]:
    """Valid files of one format, small ones, evenly taken from the corpus."""
    makers = [
        make for label, make in corpus.everything() if label.split()[0] == name and "131x77" not in label
    ]
    makers = makers[:: max(1, len(makers) // count)]
    return [data for data in (make() for make in makers) if len(data) < 50_000]


def mutant(data: bytes, rng: np.random.Generator) -> bytes:
    out = bytearray(data)
    for _ in range(int(rng.choice([1, 1, 1, 2, 4, 12]))):
        if not out:
            return bytes(out)
        # Headers are met more often than their share.
        span = len(out) if rng.random() < 0.5 else min(len(out), 200)
        at = int(rng.integers(span))
        match int(rng.integers(9)):
            case 0 | 1:
                out[at] ^= 1 << int(rng.integers(8))
            case 2:
                out[at] = int(rng.integers(256))
            case 3:
                value, size = int(rng.choice(EXTREMES)), int(rng.choice([1, 2, 4]))
                order = "big" if rng.random() < 0.5 else "little"
                out[at : at + size] = (value & ((1 << 8 * size) - 1)).to_bytes(size, order)  # type: ignore[arg-type]
            case 4:
                del out[int(rng.integers(len(out))) :]
            case 5:
                del out[at : at + int(rng.integers(1, 20))]
            case 6:
                out[at:at] = rng.integers(0, 256, int(rng.integers(1, 20)), dtype=np.uint8).tobytes()
            case 7:
                length, to = int(rng.integers(1, 40)), int(rng.integers(len(out)))
                out[to : to + length] = out[at : at + length]
            case 8:
                length = int(rng.integers(1, 40))
                out[at : at + length] = bytes([int(rng.choice([0, 255]))]) * length
    return bytes(out)


def mutants(name: str, count: int, seed: int = 0) -> Iterator[bytes]:
    sources = seeds(name)
    rng = np.random.default_rng([seed, FORMATS.index(name)])
    for i in range(count):
        yield mutant(sources[i % len(sources)], rng)


@dataclass
class Report:
    """What became of the mutants of one format."""

    outcomes: Counter[str] = field(default_factory=Counter)
    examples: dict[str, bytes] = field(default_factory=dict)
    slowest: float = 0.0

    @property
    def agreement(self) -> float:
        agreed = self.outcomes["both refuse"] + self.outcomes["equal"]
        return agreed / max(1, self.outcomes.total())


def by_pillow(data: bytes) -> np.ndarray | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    except Exception:
        return None


def examine(data: bytes, report: Report) -> str:
    """Decodes with both; raises for anything that must not happen."""
    start = time.perf_counter()
    try:
        ours = _native.decode_image(data, None, MAX_PIXELS)
    except _native.MediaError as error:
        ours = None
        assert str(error).isascii()
    seconds = time.perf_counter() - start
    report.slowest = max(report.slowest, seconds)
    assert seconds < MAX_SECONDS, f"{seconds:.2f} s"
    try:
        _, width, height = _native.image_header(data, None, MAX_PIXELS)
    except _native.MediaError:
        assert ours is None, "the header was refused, but not the image"
    else:
        assert ours is None or ours.shape[:2] == (height, width)
    theirs = by_pillow(data)
    if ours is None or theirs is None:
        outcome = (
            "both refuse" if ours is theirs else "only Pillow accepts" if ours is None else "only we accept"
        )
    else:
        outcome = "equal" if np.array_equal(ours, theirs) else "pixels differ"
    report.outcomes[outcome] += 1
    report.examples.setdefault(outcome, data)
    return outcome


def peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def examine_all(name: str, count: int, seed: int = 0) -> Report:
    Image.MAX_IMAGE_PIXELS = MAX_PIXELS // 2
    try:
        report = Report()
        for data in mutants(name, count, seed):
            examine(data, report)
        return report
    finally:
        Image.MAX_IMAGE_PIXELS = 89_478_485


def decode_only(name: str, count: int, seed: int = 0) -> None:
    """Without Pillow beside it, so that the peak of memory is ours."""
    for data in mutants(name, count, seed):
        for policy in (
            None,
            _native.DecodePolicy(orient=True, alpha="over", truncated="fill", sixteen="scale"),
        ):
            start = time.perf_counter()
            with contextlib.suppress(_native.MediaError):
                _native.decode_image(data, policy, MAX_PIXELS)
            assert time.perf_counter() - start < MAX_SECONDS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("formats", nargs="*", default=FORMATS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--alone", action="store_true", help="decode with ours only, and check the peak of memory"
    )
    arguments = parser.parse_args()
    for name in arguments.formats:
        if arguments.alone:
            before = peak_memory()
            decode_only(name, arguments.count, arguments.seed)
            print(
                f"{name}: {arguments.count} mutants, peak memory +{(peak_memory() - before) >> 20} MiB",
                flush=True,
            )
            assert peak_memory() - before < MAX_MEMORY
            continue
        report = examine_all(name, arguments.count, arguments.seed)
        print(
            f"{name}: agreement {report.agreement:.2%}, slowest {report.slowest:.3f} s,",
            dict(report.outcomes),
            flush=True,
        )


if __name__ == "__main__":
    main()
