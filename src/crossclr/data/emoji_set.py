"""The built-in set: emoji drawn by three vendors, English names and tags, and features that ship with the package.

The images of an emoji are named by a place such as ``emoji:noto/1F34E``.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, StringConstraints

from crossclr.data.config import DataConfigBase, ModalityName
from crossclr.errors import DataError

if TYPE_CHECKING:
    from crossclr.data.dataset import Dataset
    from crossclr.data.info import Info
    from crossclr.data.order import IntArray
    from crossclr.data.sample import Rows
    from crossclr.data.sequences import Form, MemoryRows, Sequences

BUILT_IN = "emoji:"  # followed by <vendor>+<vendor>/<key>; several vendors show one item together
Drawing = Annotated[str, StringConstraints(pattern=r"^(text|(noto|fluent|twemoji)(\+(noto|fluent|twemoji))*)$")]
VENDORS = ("noto", "fluent", "twemoji")
MODALITIES = (*VENDORS, "text")
QUERIES = ("sad cat", "something to drink", "red fruit")  # of the demo; `load_rows("queries")` has their rows

FOLDER = Path(__file__).parent / "emoji"


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


def load_rows(modality: str) -> list[Rows]:
    """Feature rows of every emoji in one modality, in the order of `load_emoji`; read-only.

    Args:
        modality: `noto`, `fluent`, `twemoji` or `text`; or `queries`, the rows of `QUERIES`.

    Example:
        >>> load_rows("twemoji")[0].shape
        (1, 1280)
    """
    store = _stored_rows(modality)
    return [store.read(number, "") for number in range(len(store.offsets) - 1)]


@cache
def _stored_rows(*parts: str) -> MemoryRows:
    """The rows of every emoji; drawings of several vendors are joined on the channel axis."""
    import numpy as np  # here, because the names and places of the images are needed without it

    from crossclr.data.sequences import MemoryRows

    if len(parts) > 1:
        stores = [_stored_rows(part) for part in parts]
        values = np.concatenate([store.values for store in stores], axis=1)
        offsets = stores[0].offsets
    else:
        with np.load(FOLDER / f"{parts[0]}.npz", allow_pickle=False) as file:
            counts = np.ascontiguousarray(file["counts"])  # (rows, dim), stored by column: it compresses better
            values = np.multiply(counts, file["steps"][:, None], dtype=np.float32)
            lengths = file["lengths"] if "lengths" in file else np.ones(len(values), dtype=np.int64)
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    values.flags.writeable = False
    return MemoryRows(values, offsets, FOLDER)


def emoji_image(key: str, vendor: str = "noto") -> bytes:
    """The image of an emoji, a WebP file of 64 × 64 pixels with a transparent background.

    Args:
        key: the emoji's key.
        vendor: `noto`, `fluent` or `twemoji`.

    Example:
        >>> emoji_image("1F34E", "fluent")[8:12]
        b'WEBP'
    """
    if vendor not in VENDORS:
        raise ValueError(f"no vendor {vendor!r}; there are {', '.join(VENDORS)}")
    found = _images(vendor).get(f"{key}.webp")
    if found is None:
        raise DataError(f"the emoji set has no emoji {key!r}; a key looks like '1F34E'")
    return found


@cache
def _images(vendor: str) -> dict[str, bytes]:
    with zipfile.ZipFile(FOLDER / f"{vendor}.zip") as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def image_place(key: str, *vendors: str) -> str:
    """The place of an emoji's images.

    Example:
        >>> image_place("1F34E", "noto", "fluent")
        'emoji:noto+fluent/1F34E'
    """
    return f"{BUILT_IN}{'+'.join(vendors)}/{key}"


def is_built_in(place: str) -> bool:
    """Whether a place names images of the built-in set, rather than a file."""
    return place.startswith(BUILT_IN)


def count_images(place: str) -> int:
    """How many images show one item.

    Example:
        >>> count_images("emoji:noto+fluent/1F34E"), count_images("/data/a+b/c.png")
        (2, 1)
    """
    return place.count("+") + 1 if is_built_in(place) else 1


def read_image(place: str, part: int = 0) -> bytes:
    """One image of a place in the built-in set, as a WebP file.

    Raises:
        IndexError: the place has fewer images.

    Example:
        >>> read_image("emoji:noto/1F34E")[8:12]
        b'WEBP'
    """
    vendors, _, key = place.removeprefix(BUILT_IN).partition("/")
    return emoji_image(key, vendors.split("+")[part])


class EmojiConfig(DataConfigBase):
    """The built-in set: emoji drawn by three vendors, with names and tags."""

    kind: Literal["emoji"] = Field(default="emoji", description="The built-in set.")
    modalities: dict[ModalityName, Drawing] = Field(
        default={"image": "noto", "text": "text"},
        min_length=2,
        description="The content of each modality by its name: noto, fluent, twemoji or text; drawings given as "
        "noto+fluent are joined on the channel axis.",
    )
    two_level: bool = Field(default=False, description="Whether the emoji of a Unicode subgroup form a video of clips.")
    vary: bool = Field(
        default=False,
        description="In training, take each drawing from a random vendor.",
    )

    def describe(self) -> str:
        """The data in a sentence of Markdown."""
        parts = ", ".join(f"{name}: `{content}`" for name, content in self.modalities.items())
        return f"The built-in emoji set. {parts}."

    def licence(self) -> str:
        """The terms of the drawings and names."""
        return (
            "Drawings: Noto Emoji (Google, Apache-2.0), Fluent Emoji (Microsoft, MIT), Twemoji (Twitter and "
            "contributors, CC BY 4.0). Names and tags: emojibase-data (MIT) with Unicode CLDR (Unicode-3.0). "
            "`crossclr/data/emoji/LICENSES.md` in the package has the details."
        )

    def caveats(self) -> tuple[str, ...]:
        """What the set does not cover."""
        return ("Images are drawings of emoji; the model does not know photographs. Texts are English.",)


def open_emoji(config: EmojiConfig) -> Dataset:
    """Open the built-in set.

    With one level, a sample is an emoji: one image row (1, 1280) or the tokens of its sentence (tokens, 384). With two
    levels, a sample is a "video": its clips are neighbours of one Unicode subgroup in order. In both cases the splits
    consist of whole videos: 70% train, 10% val, 20% test, dealt within each Unicode group; the split ``all`` is their
    union. An emoji and its man and woman are always in one video, so no split holds near copies of another's.

    Example:
        >>> data = open_emoji(EmojiConfig(modalities={"image": "noto+twemoji", "text": "text"}))
        >>> sample = data.where(keys=["1F34E"])[0]
        >>> data.dims, sample["text"].texts, sample.group, sample.media
        ({'image': 2560, 'text': 384}, ('red apple: diet, food, fruit, health, ripe',), 'food-drink', \
('emoji:noto/1F34E',))
    """
    import numpy as np

    from crossclr.data.dataset import Dataset, Splits

    contents = {name: _parse(content, name) for name, content in config.modalities.items()}
    items = load_emoji()
    runs = [tuple(run) for _, run in groupby(items, key=lambda item: item.video if config.two_level else item.key)]
    starts = np.cumsum([0, *map(len, runs)]) if config.two_level else None
    clips = {name: _sequences(parts, contents, config.vary) for name, parts in contents.items()}
    videos: dict[str, Sequences] = {}
    if starts is not None:
        videos = {name: _wholes(_stored_rows(*parts), starts) for name, parts in contents.items()}
    split_of = np.array([run[0].split for run in runs])
    own = ("train", "val", "test")
    places = {split: np.flatnonzero(split_of == split) for split in own}
    splits = Splits({**places, "all": range(len(runs))}, own)
    info = _info(runs, config.two_level, contents)
    return Dataset(info, clips, videos, clip_starts=starts, splits=splits, groups_are_parents=False)


def _sequences(parts: tuple[str, ...], contents: Mapping[str, tuple[str, ...]], vary: bool) -> Sequences:
    from crossclr.data.info import text_column
    from crossclr.data.sequences import Sequences

    count, rows = len(load_emoji()), _stored_rows(*parts)
    described = [own for own in contents.values() if own == ("text",)] or list(contents.values())[-1:]
    texts = (
        text_column([item.text for item in load_emoji()]) if parts in described else None
    )  # without a modality of text, they describe the last drawings
    forms = tuple(_forms(parts, contents))
    drawn = [_stored_rows(vendor) for vendor in VENDORS] if vary and len(parts) == 1 and parts[0] in VENDORS else []
    return Sequences(rows, range(count), range(count), texts, forms=forms, drawn=tuple(drawn))


def _forms(parts: tuple[str, ...], contents: Mapping[str, tuple[str, ...]]) -> Iterator[Form]:
    """The drawings of every vendor, or of the joined vendors together; none for text."""
    from crossclr.data.sequences import Form

    if parts == ("text",):
        return
    shown = {part for others in contents.values() for part in others}
    vendors = (parts[0], *(vendor for vendor in VENDORS if vendor not in shown))  # others are modalities themselves
    for own in [parts] if len(parts) > 1 else [(vendor,) for vendor in vendors]:
        media = [image_place(item.key, *own) for item in load_emoji()]
        yield Form("" if len(own) > 1 else own[0], _stored_rows(*own), media)


def _wholes(rows: MemoryRows, starts: IntArray) -> Sequences:
    """Each "video": the rows of all its emoji."""
    from crossclr.data.sequences import MemoryRows, Sequences

    count = len(starts) - 1
    return Sequences(MemoryRows(rows.values, rows.offsets[starts], rows.path), range(count), range(count))


def _info(runs: Sequence[Sequence[Emoji]], two_level: bool, contents: Mapping[str, tuple[str, ...]]) -> Info:
    from crossclr.data.info import Info, list_column, text_column

    drawn = [part for parts in contents.values() for part in parts if part in VENDORS]
    media = [[image_place(item.key, *(drawn[:1] or VENDORS[:1])) for item in run] for run in runs]
    return Info(
        {
            "key": text_column([run[0].video if two_level else run[0].key for run in runs]),
            "split": text_column([run[0].split for run in runs]),
            "group": text_column([run[0].group for run in runs]),
            "family": text_column([run[0].video for run in runs]),
            "media": list_column(media),
            "subgroup": text_column([run[0].subgroup for run in runs]),
            "characters": text_column([" ".join(item.character for item in run) for run in runs]),
        }
    )


def _parse(content: str, name: str) -> tuple[str, ...]:
    parts = tuple(content.split("+"))
    if len(set(parts)) < len(parts):
        raise ValueError(f"{name}: {content!r}: only different vendors can be joined with '+'")
    return parts
