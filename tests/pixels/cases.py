"""Random resizes with what goes wrong: sides of one pixel, extreme scales, unchanged sides, hard contrast."""

from __future__ import annotations

import math
import random
from typing import NamedTuple

import images
import numpy as np
from numpy.typing import NDArray

QUICK = 300
ALL = 3000
#: Largest source or target, so that a case stays within milliseconds.
MAX_PIXELS = 400_000

CORNERS = [
    (1, 1, 1, 1),
    (1, 1, 97, 61),
    (97, 61, 1, 1),
    (1, 200, 1, 31),
    (200, 1, 31, 1),
    (1, 300, 40, 2),
    (300, 1, 2, 40),
    (7, 5, 700, 500),
    (700, 500, 7, 5),
    (3000, 4, 30, 400),
    (4, 3000, 400, 30),
    (64, 64, 64, 64),
    (64, 48, 64, 96),
    (64, 48, 128, 48),
    (640, 480, 320, 480),
    (640, 480, 640, 240),
    (2, 3, 3, 2),
    (255, 257, 128, 129),
]


class Case(NamedTuple):
    """A source (width, height) and a target (width, height)."""

    number: int
    width: int
    height: int
    to_width: int
    to_height: int

    def image(self, channels: int = 3) -> NDArray[np.uint8]:
        """Noise, or noise of black and white alone, where clipping between the passes shows."""
        pixels = images.noise(self.width, self.height, self.number, channels)
        if self.number % 3 == 1:
            pixels = np.where(pixels < 128, 0, 255).astype(np.uint8)
        return np.ascontiguousarray(pixels[:, :, 0] if channels == 1 else pixels)


def _side(rng: random.Random) -> int:
    return round(2 ** rng.uniform(0, rng.choice([2, 6, 9, 10.5])))


def random_cases(first: int, count: int) -> list[Case]:
    """The cases with these numbers; the corners come first."""
    found = []
    for number in range(first, first + count):
        if number < len(CORNERS):
            found.append(Case(number, *CORNERS[number]))
            continue
        rng = random.Random(number)
        width, height, to_width, to_height = (_side(rng) for _ in range(4))
        if rng.random() < 0.1:
            to_width = width
        elif rng.random() < 0.1:
            to_height = height
        shrink = math.sqrt(max(1.0, width * height / MAX_PIXELS, to_width * to_height / MAX_PIXELS))
        sides = (max(1, int(side / shrink)) for side in (width, height, to_width, to_height))
        found.append(Case(number, *sides))
    return found
