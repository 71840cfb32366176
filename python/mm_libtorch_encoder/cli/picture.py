"""Drawing: the resized picture under its patch grid, and beside it embeddings as colours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .. import preprocess
from .font import shortened, text_mask, text_width

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float32]

# Pixels that a panel's longer side aims at, and that a patch's side has at most.
PANEL_SIDE, LARGEST_CELL = 832, 64
# Thin strips: pixels that the shorter side should have, and that the longer one may take for it.
LEAST_PANEL_SIDE, STRIP_PANEL_SIDE = 24, 2048
# Lines closer than this would hide the picture.
LEAST_LINE_DISTANCE = 6
# Panels wider than this many times their height stand one above the other.
WIDE = 2.0
MARGIN, GAP, HEAD_GAP, CAPTION_GAP = 32, 32, 18, 4
BACKGROUND, INK, MUTED = (255, 255, 255), (24, 28, 36), (105, 112, 125)
# Levels of the least and the greatest score.
COLOUR_RANGE = (20, 244)
PADDING_DARK, PADDING_LIGHT, PADDING_STRIPE = 205, 228, 6
TITLE_UNIT, CAPTION_UNIT = 2.3, 1.45
TITLE_WEIGHT = 1.35
LINE_HEIGHT = 14.5  # in units of the font, from the top of a capital to the next line's


@dataclass(frozen=True)
class Grid:
    """A patch grid and tokens of side x side patches over it; those at the edge may reach beyond it."""

    rows: int
    columns: int
    side: int

    @property
    def tokens(self) -> tuple[int, int]:
        """(rows, columns) of tokens."""
        return -(-self.rows // self.side), -(-self.columns // self.side)

    @property
    def cell(self) -> int:
        """Pixels of a patch's side on a panel."""
        longer, shorter = max(self.rows, self.columns), min(self.rows, self.columns)
        visible = min(-(-LEAST_PANEL_SIDE // shorter), STRIP_PANEL_SIDE // longer)
        return max(1, visible, min(LARGEST_CELL, PANEL_SIDE // longer))

    @property
    def panel(self) -> tuple[int, int]:
        """(height, width) of a panel."""
        return self.rows * self.cell, self.columns * self.cell


@dataclass(frozen=True)
class Panel:
    """Pixels, and the lines of text above them: the first in ink, the others muted."""

    pixels: Pixels
    caption: list[str]


def on_canvas(image: Pixels, canvas: tuple[int, int, int, int, int, int], panel: tuple[int, int]) -> Pixels:
    """The image at its place on the family's canvas, stripes where that is padding, in the panel's size."""
    height, width, content_height, content_width, top, left = canvas
    rows, columns = np.arange(panel[0])[:, None], np.arange(panel[1])[None, :]
    stripes = np.where((rows + columns) // PADDING_STRIPE % 2, PADDING_DARK, PADDING_LIGHT).astype(np.uint8)
    out = np.repeat(stripes[:, :, None], 3, axis=2)
    if not content_height or not content_width:
        return out
    down, right = panel[0] / height, panel[1] / width
    y, x = round(top * down), round(left * right)
    y_end = max(y + 1, round((top + content_height) * down))
    x_end = max(x + 1, round((left + content_width) * right))
    # First to the size that the tower sees, so that the panel shows its resolution.
    small = preprocess.resize(image, content_width, content_height)
    if small.shape[2] == 4:
        small = over_white(small)
    out[y:y_end, x:x_end] = preprocess.resize(small, x_end - x, y_end - y)
    return out


def over_white(image: Pixels) -> Pixels:
    """RGBA on white: some families keep transparency up to their own background."""
    alpha = image[:, :, 3:].astype(np.float32) / 255
    opaque: Pixels = (image[:, :, :3] * alpha + 255 * (1 - alpha)).round().astype(np.uint8)
    return opaque


def with_grid(pixels: Pixels, grid: Grid) -> Pixels:
    """Thin lines between patches, stronger ones between tokens; none where they would hide the picture."""
    out = pixels.astype(np.float32)
    for step, strength in ((1, 0.25), (grid.side, 0.5)):
        distance = grid.cell * step
        if distance < LEAST_LINE_DISTANCE:
            continue
        for axis, end in enumerate(out.shape[:2]):
            lines = np.swapaxes(out, 0, axis)
            lines[distance:end:distance] += strength * (255 - lines[distance:end:distance])
            lines[distance - 1 : end - 1 : distance] *= 1 - strength / 2
    return out.round().astype(np.uint8)


def principal_colours(embeddings: Floats) -> tuple[Pixels, list[float]]:
    """The first three principal components as red, green, blue, and the share of the variance that each has.

    ``uint8 [tokens, 3]``; a component's range is from its 1st to its 99th percentile.
    """
    import torch

    centred = embeddings - embeddings.mean(axis=0, dtype=np.float64).astype(np.float32)
    variance = float(np.square(centred, dtype=np.float64).sum())
    colours = np.full((len(embeddings), 3), 128, np.uint8)
    count = min(3, *centred.shape)
    if variance == 0 or len(embeddings) == 1:
        return colours, [0.0] * 3
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        left, singular, _ = torch.svd_lowrank(torch.from_numpy(centred), q=min(8, *centred.shape), niter=12)
    scores = (left * singular)[:, :count].numpy()
    # A component's sign is arbitrary: its longest arm points to bright.
    scores *= np.sign(scores[np.abs(scores).argmax(axis=0), np.arange(count)])
    low, high = np.percentile(scores, [1, 99], axis=0)
    span = np.where(high > low, high - low, 1)
    dark, bright = COLOUR_RANGE
    colours[:, :count] = np.clip(dark + (scores - low) / span * (bright - dark), dark, bright).round()
    shares = (singular[:count].double() ** 2 / variance).tolist()
    return colours, [*shares, 0.0, 0.0, 0.0][:3]


def enlarged(colours: Pixels, grid: Grid) -> Pixels:
    """Colours of tokens in raster order, as blocks, cut to the panel's size."""
    side, (height, width) = grid.cell * grid.side, grid.panel
    blocks: Pixels = colours.reshape(*grid.tokens, 3).repeat(side, axis=0).repeat(side, axis=1)
    return blocks[:height, :width]


def compose(title: str, subtitle: str, panels: list[Panel]) -> Pixels:
    """The whole picture: title, then panels with their captions, side by side or one above the other."""
    stacked = all(panel.pixels.shape[1] > WIDE * panel.pixels.shape[0] for panel in panels)
    widths = [
        max(panel.pixels.shape[1], *(text_width(line, CAPTION_UNIT) for line in panel.caption))
        for panel in panels
    ]
    caption = round(max(len(panel.caption) for panel in panels) * LINE_HEIGHT * CAPTION_UNIT) + CAPTION_GAP
    heights = [caption + panel.pixels.shape[0] for panel in panels]
    inner = max(widths) if stacked else sum(widths) + GAP * (len(panels) - 1)
    inner = max(inner, text_width(subtitle, CAPTION_UNIT))
    title = shortened(title, TITLE_UNIT, inner)
    below_title = round(TITLE_UNIT * LINE_HEIGHT)
    head = below_title + round(CAPTION_UNIT * LINE_HEIGHT) + HEAD_GAP
    inner_height = sum(heights) + GAP * (len(panels) - 1) if stacked else max(heights)
    out = np.empty((2 * MARGIN + head + inner_height, 2 * MARGIN + inner, 3), np.uint8)
    out[:] = BACKGROUND
    write(out, MARGIN, MARGIN, title, TITLE_UNIT, INK, TITLE_WEIGHT)
    write(out, MARGIN, MARGIN + below_title, subtitle, CAPTION_UNIT, MUTED)
    top, left = MARGIN + head, MARGIN
    for panel, width, height in zip(panels, widths, heights, strict=True):
        for number, line in enumerate(panel.caption):
            at = top + round(number * LINE_HEIGHT * CAPTION_UNIT)
            write(out, left, at, line, CAPTION_UNIT, MUTED if number else INK)
        below = top + caption
        out[below : below + panel.pixels.shape[0], left : left + panel.pixels.shape[1]] = panel.pixels
        if stacked:
            top += height + GAP
        else:
            left += width + GAP
    return out


def write(
    out: Pixels,
    left: int,
    top: int,
    text: str,
    unit: float,
    colour: tuple[int, int, int],
    weight: float = 1.0,
) -> None:
    """Draws a line of text; what lies outside `out` is cut off."""
    mask = text_mask(text, unit, weight)
    area = out[top : top + mask.shape[0], left : left + mask.shape[1]]
    mask = mask[: area.shape[0], : area.shape[1], None]
    area[:] = (area * (1 - mask) + np.array(colour, np.float32) * mask).round()
