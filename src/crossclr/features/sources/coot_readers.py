"""One modality of a datapoint in COOT's layout: rows over time, or tokens of sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from crossclr.features.errors import DataError
from crossclr.features.reading.coot_meta import Entry, read_json
from crossclr.features.reading.row_files import RowReader, join_rows, open_rows, read_experts
from crossclr.features.reading.sampling import add_noise, clip_bounds, limit_rows
from crossclr.features.sample import Rows


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
