"""Data in COOT's layout: a meta JSON, feature rows of whole videos, token rows of whole paragraphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from crossclr.features.check.findings import Finding, warn
from crossclr.features.errors import DataError
from crossclr.features.keys import clip_keys
from crossclr.features.reading.coot_meta import Entry
from crossclr.features.sample import Rows, Sample
from crossclr.features.sources.arrays import split_by_fraction
from crossclr.features.sources.coot_readers import SideReader

_Cut = tuple[Rows, list[Rows]]  # rows of the whole and of each part


class CootSource:
    """Videos with clips and sentences in COOT's layout.

    Args:
        entries: the datapoints (see ``read_meta``).
        a: the first modality, usually a ``FrameSide``.
        b: the second one, usually a ``TokenSide``.
        two_level: with False each clip is a sample of its own, without the whole video, named ``video/index``.
        split_names: further names of splits, each for the union of those listed.
        split_parts: splits that are cut into parts by share; a video stays in one part.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        a: SideReader,
        b: SideReader,
        two_level: bool = True,
        split_names: Mapping[str, Sequence[str]] | None = None,
        split_parts: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        self.a, self.b = a, b
        self._two_level = two_level
        self._last: tuple[str, tuple[_Cut, _Cut] | None] = ("", None)
        self.entries = {entry.key: entry for entry in entries}
        self._clips: dict[str, tuple[str, int]] = {}
        self._keys: dict[str, list[str]] = {}
        for entry in entries:
            names = [entry.key]
            if not two_level:
                names = clip_keys(entry.key, len(entry.texts))
                self._clips.update((name, (entry.key, number)) for number, name in enumerate(names))
            self._keys.setdefault(entry.split, []).extend(names)
        self.splits: tuple[str, ...] = tuple(self._keys)
        for name, fractions in (split_parts or {}).items():
            parents = {key: self.entries[self._clips.get(key, (key, 0))[0]].data_key for key in self.keys(name)}
            self._keys.update(split_by_fraction(self.keys(name), fractions, parents))
        for name, members in (split_names or {}).items():
            self._keys[name] = [key for member in members for key in self.keys(member)]

    @property
    def dims(self) -> tuple[int, int]:
        """Channels of both modalities."""
        return self.a.dim, self.b.dim

    @property
    def two_level(self) -> bool:
        """Whether samples are whole videos."""
        return self._two_level

    def keys(self, split: str) -> Sequence[str]:
        """Keys of a split in the order of the meta file's sorted keys."""
        if split not in self._keys:
            raise DataError(f"there is no split {split!r}; the meta file has {', '.join(self._keys)}")
        return self._keys[split]

    def read(self, key: str, rng: np.random.Generator | None = None) -> Sample:
        """One video (or one clip), with frames drawn at random where a generator is given."""
        name, number = self._clips.get(key, (key, -1))
        entry = self.entries.get(name)
        if entry is None or (number < 0 and not self._two_level):
            raise DataError(f"there is no sample {key!r} in the meta file")
        (video, clips), (paragraph, sentences) = self._cut(entry, rng)
        if number >= 0:
            only = slice(number, number + 1)
            return Sample(key, clips[only], sentences[only], texts=entry.texts[only], group=entry.data_key)
        return Sample(key, clips, sentences, video, paragraph, texts=entry.texts, group=entry.data_key)

    def _cut(self, entry: Entry, rng: np.random.Generator | None) -> tuple[_Cut, _Cut]:
        """Both sides of a video; the last one is kept, because clips that are samples follow each other."""
        if rng is not None or self._two_level:
            return self.a.read(entry, rng), self.b.read(entry, rng)
        key, cut = self._last
        if key != entry.key or cut is None:
            cut = self.a.read(entry, None), self.b.read(entry, None)
            self._last = entry.key, cut  # one assignment, so that threads see a whole pair
        return cut

    def missing_experts(self, key: str) -> list[Path]:
        """Files of joined experts that have nothing for a sample: their channels are zero."""
        entry = self.entries[self._clips.get(key, (key, -1))[0]]
        sides = (self.a, self.b)
        return [expert.path for side in sides for expert in side.experts if expert.find(side.name_of(entry)) is None]

    def audit(self) -> list[Finding]:
        """What only this layout can tell: entries that no datapoint uses, and segments that leave their video."""
        findings = []
        for side in (self.a, self.b):
            used = {side.name_of(entry) for entry in self.entries.values()}
            for expert in side.experts:
                stored = {expert.find(name) for name in used}
                if unused := [name for name in expert.names() if name not in stored]:
                    findings.append(warn("unused", f"{expert.path}: {{count}} entries belong to no datapoint", unused))
        late = [
            f"{entry.key}/{number}"
            for entry in self.entries.values()
            for number in np.flatnonzero((entry.stops > entry.duration + 1) | (entry.starts < 0)).tolist()
        ]
        if late:
            findings.append(warn("outside", "{count} segments leave their video by more than a second; cut off", late))
        return findings
