"""`mm-encoder show`: the picture's file, its two panels, and the colours against a full decomposition."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import images
import numpy as np
import PIL.Image
import pytest
import sounds
import torch

from mm_libtorch_encoder import _native, preprocess
from mm_libtorch_encoder.cli import font, picture, png
from mm_libtorch_encoder.cli.picture import Grid, Panel

Cli = Callable[..., Any]


def test_the_command(cli: Cli, checkpoint: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.png"
    done = cli("show", checkpoint, photos / "a.png", "--out", out, "--device=cpu")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1] == f"Picture: {out}"
    assert "300x200" in done.out
    with PIL.Image.open(out) as image:
        image.load()
        assert (image.format, image.mode) == ("PNG", "RGB")
        # Two panels of 20 x 14 patches, 41 pixels a patch, with room for margins and captions.
        assert image.width >= 2 * 20 * 41
        assert image.height >= 14 * 41
    again = tmp_path / "b.png"
    cli("show", checkpoint, photos / "a.png", "--out", again, "--device=cpu")
    assert again.read_bytes() == out.read_bytes()


@pytest.mark.parametrize("size", [(1, 1), (3000, 16), (16, 3000), (700, 699)])
@pytest.mark.parametrize("family", ["qwen35", "glm53", "deepseek41"])
def test_extreme_sizes(
    cli: Cli, demo_checkpoint: Callable[[str], Path], tmp_path: Path, family: str, size: tuple[int, int]
) -> None:
    source, out = tmp_path / "image.png", tmp_path / "out.png"
    source.write_bytes(images.png(*size))
    assert cli("show", demo_checkpoint(family), source, "--out", out, "--device=cpu").code == 0
    with PIL.Image.open(out) as image:
        image.load()
        assert max(image.size) < 2400


@pytest.mark.parametrize("size", [(1, 1), (7, 3), (1, 200), (301, 97)])
def test_png_files_hold_the_pixels(size: tuple[int, int]) -> None:
    pixels = images.noise(*size, seed=5)
    with PIL.Image.open(io.BytesIO(png.encode(pixels))) as image:
        assert np.array_equal(np.asarray(image), pixels)


def test_the_left_panel_is_the_resized_picture_on_its_canvas() -> None:
    image = images.scene(50, 40)
    canvas = (60, 80, 48, 60, 6, 10)  # height, width, content height, content width, top, left
    panel = picture.on_canvas(image, canvas, (120, 160))
    small = preprocess.resize(image, 60, 48)
    assert np.array_equal(panel[12:108, 20:140], preprocess.resize(small, 120, 96))
    outside = np.ones((120, 160), bool)
    outside[12:108, 20:140] = False
    assert set(np.unique(panel[outside])) == {picture.PADDING_DARK, picture.PADDING_LIGHT}


def test_transparent_pixels_are_white() -> None:
    image = np.dstack([images.noise(8, 8), np.repeat(np.array([[0, 255]], np.uint8), 4, 1).repeat(8, 0)])
    opaque = picture.over_white(image)
    assert (opaque[:, :4] == 255).all()
    assert (opaque[:, 4:] == image[:, 4:, :3]).all()


def test_grid_lines_stand_between_patches_and_stronger_between_tokens() -> None:
    grid = Grid(4, 6, 2)
    size = grid.panel
    assert size == (4 * grid.cell, 6 * grid.cell)
    drawn = picture.with_grid(np.full((*size, 3), 100, np.uint8), grid)[:, grid.cell // 2, 0].astype(int)
    lines = {row for row in range(size[0]) if drawn[row] > 100}
    assert lines == {grid.cell, 2 * grid.cell, 3 * grid.cell}
    assert drawn[2 * grid.cell] > drawn[grid.cell]


def test_tokens_stand_where_their_patches_are() -> None:
    grid = Grid(4, 6, 2)
    colours = images.noise(6, 1)[0]  # 2 x 3 tokens
    block = grid.cell * 2
    drawn = picture.enlarged(colours, grid)
    for index, colour in enumerate(colours):
        row, column = divmod(index, 3)
        part = drawn[row * block : (row + 1) * block, column * block : (column + 1) * block]
        assert (part == colour).all()


@pytest.mark.parametrize(("tokens", "columns"), [(400, 64), (30, 200), (3, 8), (5000, 32)])
def test_colours_are_the_principal_components(tokens: int, columns: int) -> None:
    rng = np.random.default_rng(tokens)
    values = (rng.normal(size=(tokens, 8)) * 2.0 ** -np.arange(8)) @ rng.normal(size=(8, columns)) + 5
    values = values.astype(np.float32)
    state = torch.random.get_rng_state()
    colours, shares = picture.principal_colours(values)
    assert torch.equal(torch.random.get_rng_state(), state)
    left, singular, _ = np.linalg.svd(
        values.astype(np.float64) - values.mean(0, dtype=np.float64), full_matrices=False
    )
    assert np.allclose(shares, (singular**2 / (singular**2).sum())[:3], atol=1e-3)
    for component in range(min(3, tokens - 1)):
        scores = left[:, component]
        low, high = np.percentile(scores, [1, 99])
        wanted = np.clip(20 + (scores - low) / (high - low) * 224, 20, 244)
        either = min(np.abs(colours[:, component] - sign).max() for sign in (wanted, 264 - wanted))
        assert either <= 2


def test_colours_of_equal_or_single_tokens_are_grey() -> None:
    for values in (np.full((6, 4), 3.0, np.float32), np.ones((1, 4), np.float32)):
        colours, shares = picture.principal_colours(values)
        assert (colours == 128).all()
        assert shares == [0, 0, 0]


def test_tokens_that_reach_beyond_the_picture_are_cut() -> None:
    grid = Grid(5, 4, 3)  # 2 x 2 tokens
    colours = images.noise(4, 1)[0]
    drawn = picture.enlarged(colours, grid)
    assert drawn.shape == (*grid.panel, 3)
    assert (drawn[-1, -1] == colours[3]).all()
    assert (drawn[0, -1] == colours[1]).all()


def test_sound_has_no_picture(cli: Cli, demo_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "sound.wav").write_bytes(sounds.Sound(4_000).data())
    arguments = ("--family", "muse_audio", "--device=cpu", "--out", tmp_path / "picture.png")
    done = cli("show", demo_checkpoint("muse_audio"), tmp_path / "sound.wav", *arguments)
    assert done.code == 1 and "reads sound, which has no picture" in done.err
    assert not (tmp_path / "picture.png").exists()


@pytest.mark.parametrize("family", [name for name, *_, modality in _native.families() if modality == "image"])
def test_every_row_that_is_drawn_is_a_token(family: str, demo_checkpoint: Callable[[str], Path]) -> None:
    processor = _native.Processor(demo_checkpoint(family), "", family)
    for width, height in ((640, 427), (61, 900), (1000, 999)):
        _, canvas, grid, tokens = processor.outline(images.png(width, height))
        places = processor.token_grid(grid)
        assert places is not None
        side, rows, columns, first, stride = places
        assert (rows, columns) == (-(-grid[1] // side), -(-grid[2] // side))
        assert canvas[0] % grid[1] == canvas[1] % grid[2] == 0
        last = first + (rows - 1) * stride + columns - 1
        if family == "deepseek41":  # start, lines with their ends, end
            assert (first, stride, last) == (1, columns + 1, tokens - 3)
        else:
            assert (first, stride, last) == (0, columns, tokens - 1)


def test_text_that_does_not_fit_is_cut_and_unknown_characters_are_boxes() -> None:
    panel = Panel(np.zeros((30, 40, 3), np.uint8), ["caption"])
    wide = picture.compose("名前 " * 400, "subtitle", [panel, panel])
    assert wide.shape[1] < 2000
    assert font.text_mask("名", 2.0).sum() == font.text_mask("語", 2.0).sum() > 0


def test_every_glyph_is_drawn_and_differs() -> None:
    masks = {character: font.text_mask(character, 2.0) for character in font.GLYPHS}
    assert all(mask.max() > 0.7 and mask.min() >= 0 for mask in masks.values())
    alike = {mask.tobytes() + bytes(str(mask.shape), "ascii") for mask in masks.values()}
    assert len(alike) == len(masks)
    assert set(map(chr, range(33, 127))) <= set(masks)
