"""The main colour of a drawing, as one of the eleven basic colour words of English.

A pixel has the name of the nearest of a few typical colours of each word, in CIELAB, where distances are roughly those
that an eye sees; lightness counts half, since a shaded red is still red.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image

TYPICAL = {
    "red": [(221, 46, 68), (200, 30, 40), (248, 49, 47)],
    "orange": [(244, 144, 12), (255, 130, 45)],
    "yellow": [(255, 204, 77), (252, 213, 63), (255, 220, 90)],
    "green": [(119, 178, 85), (60, 130, 50), (0, 210, 106), (90, 170, 40)],
    "blue": [(85, 172, 238), (59, 136, 195), (30, 70, 180), (0, 116, 186)],
    "purple": [(170, 142, 214), (116, 77, 170), (140, 50, 160)],
    "pink": [(244, 171, 186), (245, 143, 180), (234, 89, 110)],
    "brown": [(193, 105, 79), (102, 60, 40), (140, 90, 60)],
    "black": [(41, 47, 51), (20, 20, 20)],
    "white": [(245, 248, 250), (225, 232, 237)],
    "grey": [(153, 170, 181), (102, 117, 127), (150, 150, 150)],
}
WORDS = tuple(TYPICAL)
LIGHTNESS = 0.5

Floats = npt.NDArray[np.float64]


def lab(rgb: npt.ArrayLike) -> Floats:
    """CIELAB of sRGB colours (..., 3) with channels of 0 to 255, under daylight (D65)."""
    share = np.asarray(rgb, dtype=np.float64) / 255
    linear = np.where(share > 0.04045, ((share + 0.055) / 1.055) ** 2.4, share / 12.92)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = linear @ to_xyz.T / to_xyz.sum(1)
    root = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    x, y, z = np.moveaxis(root, -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


def shares(picture: Image.Image) -> Floats:
    """The share of a picture's opaque pixels that each colour word names, in the order of `WORDS`."""
    pixels = np.asarray(picture.convert("RGBA")).reshape(-1, 4)
    opaque = lab(pixels[pixels[:, 3] > 127, :3])  # (pixels, 3)
    typical = lab([colour for colours in TYPICAL.values() for colour in colours])  # (colours, 3)
    word = np.array([index for index, colours in enumerate(TYPICAL.values()) for _ in colours])
    squares = (opaque[:, None] - typical) ** 2 @ np.array([LIGHTNESS, 1, 1])
    return np.bincount(word[squares.argmin(1)], minlength=len(WORDS)) / max(1, len(opaque))


def main_colour(pictures: Sequence[Image.Image]) -> str:
    """The word for at least half of what the drawings show, or nothing where no colour leads."""
    mean = np.mean([shares(picture) for picture in pictures], axis=0)
    return WORDS[int(mean.argmax())] if mean.max() >= 0.5 else ""
