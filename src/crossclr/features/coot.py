"""Data in COOT's layout: a meta JSON, feature rows of whole videos, token rows of whole paragraphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from crossclr.features.arrays import split_by_fraction
from crossclr.features.errors import DataError
from crossclr.features.findings import Finding, warn
from crossclr.features.meta import Entry, read_json
from crossclr.features.rows import RowReader, join_rows, open_rows, read_experts
from crossclr.features.sampling import add_noise, clip_bounds, limit_rows
from crossclr.features.source import Rows, Sample, clip_keys

_Cut = tuple[Rows, list[Rows]]  # rows of the whole and of each part


class SideReader(Protocol):
    """One modality of a datapoint: its whole sequence and one part for each segment."""

    @property
    def experts(self) -> Sequence[RowReader]:
        """The readers that are joined."""
        ...

    def name_of(self, entry: Entry) -> str:
        """The key under which the readers have a datapoint."""
        ...

    @property
    def dim(self) -> int:
        """Channels of a row."""
        ...

    def read(self, entry: Entry, rng: np.random.Generator | None) -> tuple[Rows, list[Rows]]:
        """Rows of the whole and of each part."""
        ...


class FrameSide:
    """Rows spread over time (video, audio): parts are cut by the segments' seconds.

    The frame limit holds for the whole video and for each clip on its own. Noise (``frames_noise``) is added in
    training only. COOT adds it in validation too, which makes its figures depend on chance.
    """

    def __init__(
        self,
        experts: Sequence[RowReader],
        max_frames: int | None = 80,
        add_stop_frame: int = 2,
        expand_segments: int = 0,
        frames_noise: float = 0.0,
    ) -> None:
        self.experts = list(experts)
        self.max_frames = max_frames
        self.add_stop_frame = add_stop_frame
        self.expand_segments = expand_segments
        self.frames_noise = frames_noise

    @property
    def dim(self) -> int:
        """Channels of all experts together."""
        return sum(expert.dim for expert in self.experts)

    def name_of(self, entry: Entry) -> str:
        """Several datapoints may share one video."""
        return entry.data_key

    def read(self, entry: Entry, rng: np.random.Generator | None) -> tuple[Rows, list[Rows]]:
        """Rows of the whole video and of each clip."""
        video = join_rows(read_experts(self.experts, entry.data_key), [expert.dim for expert in self.experts])
        bounds = clip_bounds(
            len(video), entry.duration, entry.starts, entry.stops, self.add_stop_frame, self.expand_segments
        )
        empty = np.flatnonzero(bounds[:, 1] <= bounds[:, 0])
        if len(empty):
            clip = int(empty[0])
            raise DataError(
                f"{self.experts[0].path}: clip {clip} of {entry.key!r} has no rows: {entry.starts[clip]:g} to "
                f"{entry.stops[clip]:g} s of {entry.duration:g} s with {len(video)} rows; correct the segment in the "
                "meta file, drop it, or set expand_segments"
            )
        whole = self._use(video, rng)
        return whole, [self._use(video[start:stop], rng) for start, stop in bounds.tolist()]

    def _use(self, rows: Rows, rng: np.random.Generator | None) -> Rows:
        rows = limit_rows(rows, self.max_frames, rng)
        return rows if rng is None or self.frames_noise == 0 else add_noise(rows, self.frames_noise, rng)


class TokenSide:
    """Token rows of a paragraph: parts are the sentences, counted by a ``_sentence_splits.json`` beside each file."""

    def __init__(self, experts: Sequence[RowReader], splits: Sequence[Mapping[str, Any]]) -> None:
        self.experts = list(experts)
        self.splits = list(splits)

    @property
    def dim(self) -> int:
        """Channels of all experts together."""
        return sum(expert.dim for expert in self.experts)

    def name_of(self, entry: Entry) -> str:
        """Each datapoint has its own paragraph."""
        return entry.key

    def read(self, entry: Entry, rng: np.random.Generator | None) -> tuple[Rows, list[Rows]]:
        """Rows of the paragraph and of each sentence; nothing here is drawn at random."""
        found = read_experts(self.experts, entry.key)
        cut = [
            None if rows is None else self._sentences(expert, splits, entry, rows)
            for expert, splits, rows in zip(self.experts, self.splits, found, strict=True)
        ]
        if len(cut) == 1 and cut[0] is not None and found[0] is not None:
            return found[0], cut[0]
        dims = [expert.dim for expert in self.experts]
        sentences = [
            join_rows([None if part is None else part[number] for part in cut], dims)
            for number in range(len(entry.texts))
        ]
        return np.concatenate(sentences), sentences

    def _sentences(self, expert: RowReader, splits: Mapping[str, Any], entry: Entry, rows: Rows) -> list[Rows]:
        name = expert.find(entry.key) or entry.key
        counts = splits.get(entry.key, splits.get(name))
        where = sentence_splits_path(expert.path)
        if counts is None:
            raise DataError(f"{where}: no entry for key {entry.key!r}; compute the text features again")
        if len(counts) != len(entry.texts):
            raise DataError(
                f"{where}: {entry.key!r} has {len(counts)} sentences but the meta file has {len(entry.texts)} "
                "segments; the text features were made from another meta file"
            )
        if sum(counts) != len(rows):
            raise DataError(
                f"{where}: the sentences of {entry.key!r} sum to {sum(counts)} tokens but {expert.path.name} has "
                f"{len(rows)} rows; compute the text features again"
            )
        if min(counts) < 1:
            number = list(counts).index(min(counts))
            raise DataError(
                f"{where}: sentence {number} of {entry.key!r} has {counts[number]} tokens; at least 1 is needed"
            )
        stops = np.cumsum(counts).tolist()
        return [rows[stop - count : stop] for stop, count in zip(stops, counts, strict=True)]


def sentence_splits_path(path: Path) -> Path:
    """Where the sentence lengths of a token file stand: ``<stem>_sentence_splits.json`` beside it."""
    return path.with_name(f"{path.stem if path.suffix == '.h5' else path.name}_sentence_splits.json")


def open_tokens(paths: Sequence[Path]) -> TokenSide:
    """Token files with their sentence splits."""
    splits = []
    for path in paths:
        found = read_json(sentence_splits_path(path))
        if not isinstance(found, dict):
            raise DataError(f"{sentence_splits_path(path)}: an object key -> token counts is needed")
        splits.append(found)
    return TokenSide([open_rows(path) for path in paths], splits)


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
