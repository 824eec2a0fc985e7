"""The built-in set: emoji drawn by three vendors, English names and tags, and features that ship with the package."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crossclr.features.sample import Rows

VENDORS = ("noto", "fluent", "twemoji")
MODALITIES = (*VENDORS, "text")
QUERIES = ("sad cat", "something to drink", "red fruit")  # of the demo; `load_rows("queries")` has their rows

FOLDER = Path(__file__).parents[3] / "data" / "emoji"


@dataclass(frozen=True)
class Emoji:
    """One emoji."""

    key: str  # its code points in hexadecimal, in Unicode's notation: `1F468-200D-1F373`
    character: str  # the emoji itself
    name: str  # its English name
    tags: tuple[str, ...]  # English search words
    text: str  # the sentence of the text modality, `name: tag, tag, ...`
    group: str  # one of nine categories, such as `food-drink`
    subgroup: str  # a finer category, such as `food-fruit`
    order: int  # its position in Unicode's order
    video: str  # the "video" that it is a "clip" of: a run of about eight neighbours in its subgroup
    split: str  # `train`, `val` or `test`; the same for all emoji of a video, so that both levels use the same splits
    colour: str  # the word for its main colour in the drawings, such as `red`; empty if no colour dominates


@cache
def load_emoji() -> tuple[Emoji, ...]:
    """All emoji of the set, in Unicode's order.

    Example:
        >>> load_emoji()[0].name
        'grinning face'
    """
    content = json.loads((FOLDER / "emoji.json").read_text(encoding="utf-8"))
    return tuple(Emoji(**{**item, "tags": tuple(item["tags"])}) for item in content["items"])


@cache
def load_rows(modality: str) -> tuple[Rows, ...]:
    """Feature rows of every emoji in one modality, in the order of `load_emoji`; read-only.

    Args:
        modality: `noto`, `fluent`, `twemoji` or `text`; or `queries`, the rows of `QUERIES`.

    Example:
        >>> load_rows("twemoji")[0].shape
        (1, 1280)
    """
    import numpy as np  # here, because the names and places of the images are needed without it

    with np.load(FOLDER / f"{modality}.npz", allow_pickle=False) as file:
        counts = np.ascontiguousarray(file["counts"])  # (rows, dim), stored by column: it compresses better
        values = np.multiply(counts, file["steps"][:, None], dtype=np.float32)
        lengths = file["lengths"] if "lengths" in file else np.ones(len(values), dtype=np.int64)
    values.flags.writeable = False
    return tuple(np.split(values, np.cumsum(lengths)[:-1]))
