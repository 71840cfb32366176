"""A stroke font: text drawn as smooth lines of one width, without a font library.

A glyph is a string of strokes. A stroke is a run of points, two hexadecimal digits each: x to the right, y
down. Capitals stand from 0 to 8, small letters start at 3, descenders end at b. Two points are a straight
line, more of them a quadratic spline; one that starts with "o" is closed.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

GLYPHS = {
    "A": "0830 3068 1555",
    "B": "0008 003050543404 043464683808",
    "C": "626000086866",
    "D": "0008 002060682808",
    "E": "6000 0008 0868 0454",
    "F": "6000 0008 0454",
    "G": "626000086864 6434",
    "H": "0008 6068 0464",
    "I": "0008",
    "J": "4046480806",
    "K": "0008 5005 2358",
    "L": "0008 0858",
    "M": "0800 0035 3560 6068",
    "N": "0800 0068 6860",
    "O": "o00606808",
    "P": "0008 003060643404",
    "Q": "o00606808 4568",
    "R": "0008 003060643404 3468",
    "S": "6160000464680807",
    "T": "0060 3038",
    "U": "000508686560",
    "V": "0038 3860",
    "W": "0028 2842 4268 6880",
    "X": "0068 6008",
    "Y": "0034 6034 3438",
    "Z": "0060 6008 0868",
    "0": "o00505808",
    "1": "0220 2028",
    "2": "020050533508 0858",
    "3": "0100505424 2454580807",
    "4": "4005 0555 4048",
    "5": "5010 1004 041353580807",
    "6": "400105 o03535808",
    "7": "0050 5018",
    "8": "o00505404 o04545808",
    "9": "o00505505 535718",
    "a": "o03434808 4348",
    "b": "0008 o03434808",
    "c": "444303084847",
    "d": "o03434808 4048",
    "e": "0545 454303084847",
    "f": "30101318 0333",
    "g": "o03434808 43494b0b0a",
    "h": "0008 0503434548",
    "i": "0308 0101",
    "j": "23292b0b 2121",
    "k": "0008 4306 1548",
    "l": "00060818",
    "m": "0308 0503333538 3533636568",
    "n": "0308 0503434548",
    "o": "o03434808",
    "p": "030b o03434808",
    "q": "434b o03434808",
    "r": "0308 050333",
    "s": "4443030546480807",
    "t": "11161838 0333",
    "u": "030608484643 4348",
    "v": "0328 2843",
    "w": "0318 1833 3358 5863",
    "x": "0348 4308",
    "y": "0328 431b",
    "z": "0343 4308 0848",
    ".": "0808",
    ",": "180a",
    ":": "0404 0808",
    ";": "1414 180a",
    "!": "0005 0808",
    "?": "010040432426 2828",
    "'": "0002",
    '"': "0002 2022",
    "`": "0012",
    "(": "20030629",
    ")": "00232609",
    "[": "2000 0009 0929",
    "]": "0020 2029 2909",
    "{": "30101404 04141939",
    "}": "00202434 34242909",
    "<": "4205 0548",
    ">": "0245 4508",
    "/": "4009",
    "\\": "0049",
    "|": "000a",
    "-": "0535",
    "_": "0959",
    "+": "0545 2327",
    "=": "0444 0646",
    "*": "2125 0244 4204",
    "#": "2018 5048 0363 0565",
    "%": "6008 o00202303 o45656848",
    "&": "681210404204084865",
    "@": "78080070765653 o23535626",
    "$": "6160000464680807 3038",
    "^": "0220 2042",
    "~": "06143644",
    "×": "0448 4408",
    "→": "0565 4365 6547",
    "…": "0808 2828 4848",
}
UNKNOWN = "0050 5058 5808 0800"
SPACE_ADVANCE = 4.0
LETTER_SPACING = 2.2
STROKE_WIDTH = 1.05
# Lowest and highest y of a glyph, with half a stroke around it, in font units.
TOP, BOTTOM = -1.0, 12.0
CURVE_STEPS = 6

Points = NDArray[np.float64]


def _stroke(code: str) -> Points:
    closed = code.startswith("o")
    digits = code.removeprefix("o")
    points = np.array(
        [[int(digits[i], 16), int(digits[i + 1], 16)] for i in range(0, len(digits), 2)], np.float64
    )
    if len(points) == 2:
        return points
    if closed:
        points = np.concatenate([points, points[:2]])
        ends = (points[:-1] + points[1:]) / 2
    else:
        inner = (points[1:-2] + points[2:-1]) / 2
        ends = np.concatenate([points[:1], inner, points[-1:]])
    controls = points[1:-1]
    at = np.linspace(0.0, 1.0, CURVE_STEPS + 1)[:, None]
    pieces = [
        (1 - at) ** 2 * start + 2 * at * (1 - at) * control + at**2 * end
        for start, control, end in zip(ends[:-1], controls, ends[1:], strict=True)
    ]
    return np.concatenate(pieces)


_STROKES = {character: [_stroke(code) for code in glyph.split()] for character, glyph in GLYPHS.items()}
_UNKNOWN_STROKES = [_stroke(code) for code in UNKNOWN.split()]


def _strokes(character: str) -> list[Points]:
    return [] if character == " " else _STROKES.get(character, _UNKNOWN_STROKES)


def _advance(character: str) -> float:
    if character == " ":
        return SPACE_ADVANCE
    return max(float(stroke[:, 0].max()) for stroke in _strokes(character)) + LETTER_SPACING


def text_width(text: str, unit: float) -> int:
    """Pixels that `text` is wide, at `unit` pixels a font unit (a capital is 8 units high)."""
    return int(np.ceil((sum(map(_advance, text)) + STROKE_WIDTH) * unit))


def shortened(text: str, unit: float, width: int) -> str:
    """The end of `text` that fits into `width` pixels, with an ellipsis before it if it is not all."""
    if text_width(text, unit) <= width:
        return text
    room = width - text_width("…", unit)
    kept = ""
    for character in reversed(text):
        room -= int(np.ceil(_advance(character) * unit))
        if room < 0:
            break
        kept = character + kept
    return "…" + kept


def text_mask(text: str, unit: float, weight: float = 1.0) -> NDArray[np.float32]:
    """Coverage of each pixel, 0 to 1: [(BOTTOM - TOP) * unit, text_width]; `weight` thickens the strokes."""
    height, width = int(np.ceil((BOTTOM - TOP) * unit)), text_width(text, unit)
    mask = np.zeros((height, width), np.float32)
    radius = STROKE_WIDTH * weight * unit / 2
    rows = np.arange(height, dtype=np.float64)[:, None] + 0.5
    left = STROKE_WIDTH / 2
    for character in text:
        for stroke in _strokes(character):
            points = (stroke + np.array([left, -TOP])) * unit
            reach = int(np.ceil(radius)) + 1
            first = max(0, int(points[:, 0].min()) - reach)
            last = min(width, int(points[:, 0].max()) + reach + 1)
            columns = np.arange(first, last, dtype=np.float64)[None, :] + 0.5
            for start, end in pairwise(points):
                distance = _distance(columns, rows, start, end)
                part = mask[:, first:last]
                np.maximum(part, np.clip(radius + 0.5 - distance, 0, 1), out=part)
        left += _advance(character)
    return mask


def _distance(x: Points, y: Points, start: Points, end: Points) -> Points:
    """From each pixel to the segment."""
    along = end - start
    length = float(along @ along)
    place = ((x - start[0]) * along[0] + (y - start[1]) * along[1]) / length if length else 0.0 * (x + y)
    place = np.clip(place, 0, 1)
    distance: Points = np.hypot(x - start[0] - place * along[0], y - start[1] - place * along[1])
    return distance
