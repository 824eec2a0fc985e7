"""The built-in emoji set as a data source."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from crossclr.features.emoji.catalogue import MODALITIES, VENDORS, Emoji, load_emoji, load_pictures, load_rows
from crossclr.features.emoji.phrases import load_phrase_rows
from crossclr.features.errors import DataError
from crossclr.features.keys import clip_keys
from crossclr.features.sample import Rows, Sample

SPLITS = ("train", "val", "test", "all")


class EmojiSource:
    """The built-in set as a source of samples.

    With one level, a sample is an emoji: one picture row (1, 1280) or the tokens of its sentence (tokens, 384). With
    two levels, a sample is a "video": neighbours of one Unicode subgroup in order are its clips. Splits go by whole
    videos in both cases: 70% train, 10% val, 20% test, dealt within each Unicode group. An emoji and its man and woman
    are always in one video, so that no split holds near copies of what is in another.

    Args:
        a: modality A: `noto`, `fluent`, `twemoji` or `text`; vendors joined with `+` are joined on channels.
        b: modality B, in the same way.
        two_level: whether runs of emoji form videos.
        vary: in training, a drawing comes from any of the three vendors, and every other text is one of the emoji's
            phrases, such as "red fruit", both drawn anew at each reading: more to learn from, for search. Evaluation
            reads the vendor and the sentence that are named. It needs the extra `crossclr[experts]`.

    Raises:
        ValueError: a modality is unknown, or text is joined with pictures.

    Example:
        >>> source = EmojiSource(a="noto+twemoji", b="text")
        >>> source.dims
        (2560, 384)
        >>> sample = source.read("1F34E")
        >>> sample.texts, sample.group, sample.clips[0].shape
        (('red apple: diet, food, fruit, health, ripe',), 'food-drink', (1, 2560))
    """

    def __init__(self, a: str = "noto", b: str = "text", two_level: bool = False, vary: bool = False) -> None:
        self._two_level = bool(two_level)
        self.vary = bool(vary)
        self.modalities = (_parse(a, "a"), _parse(b, "b"))
        self.items = load_emoji()
        members = groupby(self.items, key=lambda item: item.video if two_level else item.key)
        self._samples = {key: tuple(run) for key, run in members}
        self._of_clip = {
            clip: item
            for key, run in self._samples.items()
            for clip, item in zip(clip_keys(key, len(run)), run, strict=True)
        }
        self._position = {item.key: position for position, item in enumerate(self.items)}
        self._rows = tuple([_join(part, position) for position in range(len(self.items))] for part in self.modalities)

    @property
    def dims(self) -> tuple[int, int]:
        """Channels of modality A and of modality B."""
        a, b = self._rows
        return a[0].shape[1], b[0].shape[1]

    @property
    def two_level(self) -> bool:
        """Whether samples have whole-video and whole-paragraph rows."""
        return self._two_level

    def keys(self, split: str) -> Sequence[str]:
        """Keys of a split in Unicode's order; `all` is every split together."""
        if split not in SPLITS:
            raise ValueError(f"the emoji set has no split {split!r}; it has {', '.join(SPLITS)}")
        return [key for key, run in self._samples.items() if split in ("all", run[0].split)]

    def read(self, key: str, rng: np.random.Generator | None = None) -> Sample:
        """One sample; with a generator and ``vary``, each drawing and each text is drawn from several."""
        run = self._samples.get(key)
        if run is None:
            kind = "video" if self._two_level else "emoji"
            raise DataError(f"the emoji set has no {kind} {key!r}; EmojiSource.keys('all') lists them")
        # copies: the caller may do with its sample what it likes, the rows are shared by every source of the process
        clips, sentences = ([self._row(side, self._position[item.key], rng).copy() for item in run] for side in (0, 1))
        first = run[0]
        extra = {"subgroup": first.subgroup, "characters": " ".join(item.character for item in run)}
        return Sample(
            key=key,
            clips=clips,
            sentences=sentences,
            video=np.concatenate(clips) if self._two_level else None,
            paragraph=np.concatenate(sentences) if self._two_level else None,
            texts=tuple(item.text for item in run),
            group=first.group,
            extra=extra,
        )

    def _row(self, side: int, position: int, rng: np.random.Generator | None) -> Rows:
        parts = self.modalities[side]
        if rng is None or not self.vary or len(parts) > 1:
            return self._rows[side][position]
        if parts[0] in VENDORS:
            return load_rows(VENDORS[int(rng.integers(len(VENDORS)))])[position]
        choices = load_phrase_rows()[position]
        if not choices or rng.random() < 0.5:
            return self._rows[side][position]
        return choices[int(rng.integers(len(choices)))]

    def emoji(self, clip_key: str) -> Emoji:
        """The emoji of a clip key, as `clip_keys` makes them (with one level: the emoji's own key).

        Example:
            >>> EmojiSource(two_level=True).emoji("food-fruit-01/2").name
            'watermelon'
        """
        try:
            return self._of_clip[clip_key]
        except KeyError:
            raise DataError(f"the emoji set has no clip {clip_key!r}") from None

    def picture(self, key: str, vendor: str = "noto") -> bytes:
        """The picture of an emoji, a WebP file of 64 × 64 pixels with a transparent background.

        Args:
            key: the emoji's key (not a video's).
            vendor: `noto`, `fluent` or `twemoji`.

        Example:
            >>> EmojiSource().picture("1F34E", "fluent")[8:12]
            b'WEBP'
        """
        if vendor not in VENDORS:
            raise ValueError(f"no vendor {vendor!r}; there are {', '.join(VENDORS)}")
        if key not in self._position:
            raise DataError(f"the emoji set has no emoji {key!r}; a key looks like {self.items[0].key!r}")
        return load_pictures(vendor)[f"{key}.webp"]


def _parse(modality: str, argument: str) -> tuple[str, ...]:
    parts = tuple(modality.split("+"))
    unknown = [part for part in parts if part not in MODALITIES]
    if unknown:
        raise ValueError(
            f"{argument}={modality!r}: no modality {unknown[0]!r} in the emoji set; it has {', '.join(MODALITIES)}"
        )
    if len(set(parts)) < len(parts) or (len(parts) > 1 and "text" in parts):
        raise ValueError(f"{argument}={modality!r}: only different vendors can be joined with '+'")
    return parts


def _join(parts: tuple[str, ...], position: int) -> Rows:
    if len(parts) == 1:
        return load_rows(parts[0])[position]
    return np.concatenate([load_rows(part)[position] for part in parts], axis=1)
