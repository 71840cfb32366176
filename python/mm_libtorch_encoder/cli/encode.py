"""`mm-encoder encode`: images to embeddings, as a table, a JSON document and a safetensors file."""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from .. import _native
from .embeddings_file import EmbeddingsFile
from .failure import USAGE, Failure, Outcome
from .progress import Progress
from .source import STANDARD_INPUT, read_image
from .text import Table, shortened, shown, terminal_width
from .tower import STAGES, Encoded, Tower, add_arguments, open_tower

# Images prepared at once at most: while the tower runs one, the next ones are read, decoded and resized.
MAX_IN_FLIGHT = 8
HASH_DIGITS = 8
LONGEST_NAME = 40


def add_parser(commands: Any) -> None:
    """The command's arguments."""
    parser = commands.add_parser(
        "encode",
        help="encode images or sounds",
        description="Encode images, or sound for a family that reads it, into embeddings.",
    )
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="folder with config.json and safetensors weights"
    )
    parser.add_argument(
        "images", metavar="IMAGE", nargs="+", help='image file, or WAV; "-" is standard input'
    )
    add_arguments(parser)
    parser.add_argument("--out", metavar="FILE", help="write the embeddings to this safetensors file")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> Outcome:
    """The command."""
    if options.images.count(STANDARD_INPUT) > 1:
        raise Failure('standard input "-" can be given once', code=USAGE)
    names = unique_names(options.images)
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        # First: a file that cannot be written should not cost the time of loading weights.
        out = stack.enter_context(EmbeddingsFile(options.out)) if options.out else None
        progress = stack.enter_context(Progress())
        # Work runs on threads of this pool, and this one only waits: so Ctrl-C is heard at once.
        pool = ThreadPoolExecutor(MAX_IN_FLIGHT)
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        tower = pool.submit(open_tower, options, progress.weights).result()
        start = time.monotonic()
        for name, outcome in zip(names, _encode_all(pool, tower, options.images), strict=True):
            if isinstance(outcome, Encoded):
                rows.append({"file": name, **facts(outcome)})
                if out is not None:
                    for output, tensor in outcome.outputs.items():
                        out.add(name if output == "embeddings" else f"{name}/{output}", tensor)
            else:
                rows.append({"file": name, "error": outcome})
            progress.items(f"{tower.noun.capitalize()}s", len(rows), len(names))
        seconds = time.monotonic() - start
        tower.encoder.close()
        if out is not None:
            # Without times: the same images give the same bytes.
            timeless = [{key: row[key] for key in row if key != "milliseconds"} for row in rows]
            model, family = tower.encoder.model, tower.encoder.family
            out.finish({"model": model, "family": family, "images": json.dumps(timeless)})
    document = _document(options, tower, rows, seconds)
    text = json.dumps(document, indent=1) if options.json else _report(document, tower)
    failed = document["totals"]["failed"]
    return Outcome(text, f"{failed} of {len(rows)} {tower.noun}s could not be encoded" if failed else "")


def facts(encoded: Encoded) -> dict[str, Any]:
    """What is said of one item in JSON; sizes are [width, height] in pixels, and sound has none."""
    outline, embeddings = encoded.outline, encoded.outputs["embeddings"]
    sizes: dict[str, Any] = {"grid_thws": []}
    if outline is not None:
        sizes = {
            "size": list(outline.size),
            "resized": list(outline.resized),
            "canvas": [outline.canvas[1], outline.canvas[0]],
            "grid_thws": [list(outline.grid)],
        }
    return {
        **sizes,
        "tokens": embeddings.shape[0],
        "shape": list(embeddings.shape),
        "dtype": str(embeddings.dtype).removeprefix("torch."),
        "mm_hash": encoded.mm_hash,
        "milliseconds": {stage: round(encoded.milliseconds[stage], 3) for stage in STAGES},
    }


def unique_names(paths: list[str]) -> list[str]:
    """A name for each path: the path as it can be shown, with a number where that is taken."""
    names: dict[str, None] = {}
    for path in paths:
        name = "stdin" if path == STANDARD_INPUT else shown(path)
        numbered = (f"{name}#{count}" for count in itertools.count(2))
        names[name if name not in names else next(other for other in numbered if other not in names)] = None
    return list(names)


def _encode_all(pool: ThreadPoolExecutor, tower: Tower, paths: list[str]) -> Iterator[Encoded | str]:
    """For each path in order what came of it: the result, or a sentence."""
    waiting: deque[Future[Encoded | str]] = deque()
    for path in paths:
        if len(waiting) == MAX_IN_FLIGHT:
            yield waiting.popleft().result()
        waiting.append(pool.submit(_encode_one, tower, path))
    while waiting:
        yield waiting.popleft().result()


def _encode_one(tower: Tower, path: str) -> Encoded | str:
    try:
        return tower.encode(read_image(path))
    except (Failure, ValueError, RuntimeError) as error:
        return shown(str(error))
    except MemoryError:
        return f"there is not enough memory for this {tower.noun}"


def _document(
    options: argparse.Namespace, tower: Tower, rows: list[dict[str, Any]], seconds: float
) -> dict[str, Any]:
    good = [row for row in rows if "error" not in row]
    return {
        "version": _native.__version__,
        "checkpoint": shown(options.checkpoint),
        "model": tower.encoder.model,
        "family": tower.encoder.family,
        "device": tower.encoder.device,
        "dtype": tower.dtype,
        "load_seconds": round(tower.seconds, 3),
        "images": rows,
        "totals": {
            "encoded": len(good),
            "failed": len(rows) - len(good),
            "tokens": sum(row["tokens"] for row in good),
            "milliseconds": {
                stage: round(sum(row["milliseconds"][stage] for row in good), 3) for stage in STAGES
            },
            "seconds": round(seconds, 3),
        },
        "out": shown(options.out) if options.out else None,
    }


def table_of(rows: list[dict[str, Any]]) -> Table:
    """One line an image; a failed one has its sentence there."""
    table = Table(
        "file", ">size", ">resized", ">grid", ">tokens", "dtype", *(f">{stage}" for stage in STAGES), "hash"
    )
    for row in rows:
        name = row["file"] if terminal_width() is None else shortened(row["file"], LONGEST_NAME)
        if "error" in row:
            table.add_sentence(name, row["error"])
            continue
        sizes = ("", "", "")
        if row["grid_thws"]:
            _, height, width = row["grid_thws"][0]
            sizes = ("{}x{}".format(*row["size"]), "{}x{}".format(*row["resized"]), f"{width}x{height}")
        times = (_ms(row["milliseconds"][stage]) for stage in STAGES)
        table.add(name, *sizes, str(row["tokens"]), row["dtype"], *times, row["mm_hash"][:HASH_DIGITS])
    return table


def _report(document: dict[str, Any], tower: Tower) -> str:
    rows, totals = document["images"], document["totals"]
    table = table_of(rows)
    if totals["encoded"] > 1:
        times = (_ms(totals["milliseconds"][stage]) for stage in STAGES)
        table.add("total", "", "", "", str(totals["tokens"]), "", *times, "")
    lines = [tower.heading(document["checkpoint"]), "", table.text(), ""]
    units = "Sizes and grids (in patches) are width x height, times milliseconds."
    lines.append(
        f"{units if tower.noun == 'image' else 'Times are milliseconds.'} "
        f"Encoded: {totals['encoded']} of {len(rows)}, in {totals['seconds']:.2f} s."
    )
    if document["out"]:
        lines.append(f"Embeddings: {document['out']}")
    return "\n".join(lines)


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:.1f}"
