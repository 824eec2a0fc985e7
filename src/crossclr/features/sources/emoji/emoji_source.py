"""The built-in emoji set as a data source."""

from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np

from crossclr.features.errors import DataError
from crossclr.features.sample import Content, Rows, Sample, clip_keys
from crossclr.features.source import Source, Variant
from crossclr.features.sources.emoji.emoji_catalogue import MODALITIES, VENDORS, Emoji, load_emoji, load_rows
from crossclr.features.sources.emoji.emoji_config import EmojiConfig
from crossclr.features.sources.emoji.emoji_images import emoji_image, image_place
from crossclr.features.sources.emoji.emoji_phrases import load_phrase_rows


class EmojiSource(Source):
    """The built-in set as a source of samples.

    With one level, a sample is an emoji: one image row (1, 1280) or the tokens of its sentence (tokens, 384). With
    two levels, a sample is a "video": its clips are neighbours of one Unicode subgroup in order. In both cases the
    splits consist of whole videos: 70% train, 10% val, 20% test, dealt within each Unicode group; the split ``all`` is
    their union. An emoji and its man and woman are always in one video, so no split holds near copies of another's.

    Args:
        modalities: content by the name of the modality: `noto`, `fluent`, `twemoji` or `text`; vendors given as
            `noto+fluent` are joined on channels. Default: ``{"image": "noto", "text": "text"}``.
        two_level: whether runs of emoji form videos.
        vary: in training, draw each drawing from the three vendors, and replace half of the texts by one of the emoji's
            phrases, such as "red fruit": more to learn from, for search. Evaluation reads the vendor and the sentence
            of the config. Needs the extra `crossclr[experts]`.

    Raises:
        ValueError: a modality is unknown, or text is joined with drawings.

    Example:
        >>> source = EmojiSource({"image": "noto+twemoji", "text": "text"})
        >>> source.dims
        {'image': 2560, 'text': 384}
        >>> sample = source.read("1F34E")
        >>> sample["text"].texts, sample.group, sample["image"].clips[0].shape
        (('red apple: diet, food, fruit, health, ripe',), 'food-drink', (1, 2560))
    """

    splits = ("train", "val", "test")
    groups_are_parents = False

    def __init__(
        self, modalities: Mapping[str, str] | None = None, two_level: bool = False, vary: bool = False
    ) -> None:
        self.two_level, self.varies = bool(two_level), bool(vary)
        given = modalities or EmojiConfig().modalities
        self.parts = {name: _parse(content, name) for name, content in given.items()}  # its vendors, or text
        # Without a modality of text, the sentences describe the last drawings.
        self._described = [name for name, part in self.parts.items() if part == ("text",)] or list(self.parts)[-1:]
        self.items = load_emoji()
        members = groupby(self.items, key=lambda item: item.video if two_level else item.key)
        self._samples = {key: tuple(run) for key, run in members}
        self._of_clip = {
            clip: item
            for key, run in self._samples.items()
            for clip, item in zip(clip_keys(key, len(run)), run, strict=True)
        }
        self._position = {item.key: position for position, item in enumerate(self.items)}
        count = len(self.items)
        self._rows = {name: [_join(part, place) for place in range(count)] for name, part in self.parts.items()}
        self.dims = {name: rows[0].shape[1] for name, rows in self._rows.items()}

    def keys(self, split: str) -> Sequence[str]:
        """Keys of a split in Unicode's order; `all` is the union of all splits."""
        names = (*self.splits, "all")
        if split not in names:
            raise ValueError(f"the emoji set has no split {split!r}; it has {', '.join(names)}")
        return [key for key, run in self._samples.items() if split in ("all", run[0].split)]

    def read(self, key: str, rng: np.random.Generator | None = None) -> Sample:
        """One sample; with a generator and ``vary``, each drawing and each text is drawn from several."""
        run = self._samples.get(key)
        if run is None:
            kind = "video" if self.two_level else "emoji"
            raise DataError(f"the emoji set has no {kind} {key!r}; EmojiSource.keys('all') lists them")
        # Copies: the caller may change its sample, and the rows are shared by every source of the process.
        contents = {}
        for name in self.parts:
            clips = [self._row(name, self._position[item.key], rng).copy() for item in run]
            texts = tuple(item.text for item in run) if name in self._described else ()
            contents[name] = Content(clips, (), np.concatenate(clips) if self.two_level else None, texts)
        first = run[0]
        return Sample(
            key=key,
            modalities=contents,
            group=first.group,
            split=first.split,
            extra={"subgroup": first.subgroup, "characters": " ".join(item.character for item in run)},
        )

    def family(self, key: str) -> str:
        """The video of an emoji, which its man and woman belong to."""
        return self._samples[key][0].video

    def _row(self, modality: str, position: int, rng: np.random.Generator | None) -> Rows:
        parts, own = self.parts[modality], self._rows[modality][position]
        if rng is None or not self.varies or len(parts) > 1:
            return own
        if parts[0] in VENDORS:
            return load_rows(VENDORS[int(rng.integers(len(VENDORS)))])[position]
        choices = load_phrase_rows()[position]
        return choices[int(rng.integers(len(choices)))] if choices and rng.random() >= 0.5 else own

    def emoji(self, clip_key: str) -> Emoji:
        """The emoji of a clip key; with one level, the clip key is the emoji's own key.

        Example:
            >>> EmojiSource(two_level=True).emoji("food-fruit-01/2").name
            'watermelon'
        """
        if clip_key not in self._of_clip:
            raise DataError(f"the emoji set has no clip {clip_key!r}")
        return self._of_clip[clip_key]

    def variants(self, clip_key: str, modality: str) -> Sequence[Variant]:
        """The drawings of an emoji: of every vendor, or of the joined vendors together; none for text."""
        parts, key = self.parts[modality], self.emoji(clip_key).key
        position = self._position[key]
        if parts == ("text",):
            return ()
        if len(parts) > 1:
            return (Variant("", self._rows[modality][position], image_place(key, *parts)),)
        shown = {part for others in self.parts.values() for part in others}
        vendors = (parts[0], *(vendor for vendor in VENDORS if vendor not in shown))  # others are modalities themselves
        return [Variant(vendor, load_rows(vendor)[position], image_place(key, vendor)) for vendor in vendors]

    def image(self, clip_key: str) -> bytes | None:
        """The drawing of an emoji, by the first vendor of this source."""
        vendors = [part for parts in self.parts.values() for part in parts if part in VENDORS]
        return emoji_image(self.emoji(clip_key).key, vendors[0] if vendors else VENDORS[0])


def open_emoji(config: EmojiConfig) -> EmojiSource:
    """Open the built-in set."""
    return EmojiSource(config.modalities, config.two_level, config.vary)


def _parse(content: str, name: str) -> tuple[str, ...]:
    parts = tuple(content.split("+"))
    unknown = [part for part in parts if part not in MODALITIES]
    if unknown:
        raise ValueError(f"{name}: {content!r}: the emoji set has no {unknown[0]!r}; it has {', '.join(MODALITIES)}")
    if len(set(parts)) < len(parts) or (len(parts) > 1 and "text" in parts):
        raise ValueError(f"{name}: {content!r}: only different vendors can be joined with '+'")
    return parts


def _join(parts: tuple[str, ...], position: int) -> Rows:
    if len(parts) == 1:
        return load_rows(parts[0])[position]
    return np.concatenate([load_rows(part)[position] for part in parts], axis=1)
