"""`mm-encoder show`: a picture of what the tower sees of an image and of what it makes of it."""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np

from . import png
from .encode import facts, table_of, unique_names
from .failure import Failure, Outcome
from .output import Target
from .picture import Grid, Panel, compose, enlarged, on_canvas, principal_colours, with_grid
from .progress import Progress
from .source import read_image
from .text import shown
from .tower import Encoded, Tower, add_arguments, open_tower


def add_parser(commands: Any) -> None:
    """The command's arguments."""
    parser = commands.add_parser(
        "show",
        help="draw an image's patch grid and its embeddings",
        description="Write a PNG with the resized picture and its patch grid, and beside it the first three "
        "principal components of its embeddings as colours.",
    )
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="folder with config.json and safetensors weights"
    )
    parser.add_argument("image", metavar="IMAGE", help='image file; "-" is standard input')
    add_arguments(parser)
    parser.add_argument("--out", metavar="FILE", required=True, help="write the picture to this PNG file")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> Outcome:
    """The command."""
    (name,) = unique_names([options.image])
    with ExitStack() as stack:
        target = Target(options.out)
        try:
            data = read_image(options.image)
        except Failure as failure:
            raise Failure(f"{name}: {failure}") from None
        progress = stack.enter_context(Progress())
        # On another thread, while this one waits: so Ctrl-C is heard at once.
        pool = ThreadPoolExecutor(1)
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        tower = pool.submit(open_tower, options, progress.weights).result()
        if tower.processor.modality != "image":
            raise Failure(f"{name}: the family {tower.encoder.family} reads sound, which has no picture")
        encoded = pool.submit(tower.encode, data).result()
        tower.encoder.close()
        picture = pool.submit(draw, name, data, tower, encoded).result()
        target.write([picture])
    row = {"file": name, **facts(encoded)}
    return Outcome(
        "\n".join(
            [
                tower.heading(shown(options.checkpoint)),
                "",
                table_of([row]).text(),
                "",
                f"Picture: {target.name}",
            ]
        )
    )


def draw(name: str, data: bytes, tower: Tower, encoded: Encoded) -> bytes:
    """The PNG file."""
    outline = encoded.outline
    places = tower.processor.token_grid(outline.grid) if outline else None
    if outline is None or places is None:
        raise Failure(f"{name}: the embeddings of this family stand on no grid, so they cannot be drawn")
    side, token_rows, token_columns, first, stride = places
    rows = first + np.arange(token_rows)[:, None] * stride + np.arange(token_columns)[None, :]
    embeddings = encoded.outputs["embeddings"].float().cpu().numpy()[rows.ravel()]
    if not np.isfinite(embeddings).all():
        raise Failure(f"{name}: the embeddings hold values that are not finite, so they have no colours")
    grid = Grid(outline.grid[1], outline.grid[2], side)
    picture = with_grid(on_canvas(tower.processor.decode(data), outline.canvas, grid.panel), grid)
    colours, shares = principal_colours(embeddings)
    percent = ", ".join(f"{share * 100:.0f}" for share in shares)
    legend = f"Principal components 1, 2, 3 as red, green, blue ({percent} % of variance)"
    height, width = outline.canvas[:2]
    patch = f"{width // grid.columns} × {height // grid.rows}"
    resized = "Resized to {} × {} pixels".format(*outline.resized)
    if outline.resized != (width, height):
        resized += f", on a canvas of {width} × {height}"
    patches = f"{grid.columns} × {grid.rows} patches of {patch} pixels"
    tokens = f"{token_columns} × {token_rows} tokens of {embeddings.shape[1]} values"
    panels = [
        Panel(picture, [resized, patches]),
        Panel(
            enlarged(colours, grid),
            [tokens, legend if any(shares) else "All of them are equal: there are no components to show"],
        ),
    ]
    subtitle = "{} × {} pixels, {} tower, {}".format(*outline.size, tower.encoder.family, tower.dtype)
    return png.encode(compose(os.path.basename(name) or name, subtitle, panels))
