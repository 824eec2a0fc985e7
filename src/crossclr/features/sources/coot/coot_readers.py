"""COOT's meta file, and one modality of a datapoint: rows over time, or the tokens of sentences."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from crossclr.features.errors import DataError
from crossclr.features.reading.row_files import RowReader, join_rows, open_rows, read_experts
from crossclr.features.reading.sampling import add_noise, clip_bounds, limit_rows
from crossclr.features.sample import Rows, same_words
from crossclr.features.sources.config_base import FromText
from crossclr.features.sources.coot.coot_config import CootConfig
from crossclr.storage.reading import read_json, read_json_object


@dataclass(frozen=True)
class Entry:
    """One datapoint of the meta file: a video and its segments."""

    key: str
    data_key: str
    duration: float
    split: str
    texts: tuple[str, ...]
    starts: npt.NDArray[np.float64]
    stops: npt.NDArray[np.float64]
    concepts: tuple[str, ...] = ()


def read_meta(path: Path, max_datapoints: int = -1, concepts: str | FromText | None = None) -> list[Entry]:
    """The entries of a meta file in the order of their keys: the first ``max_datapoints``, or all if it is -1.

    ``concepts`` is the field of each segment that says what it shows, or {"from": "text"} for its sentence.
    """
    meta = read_json(path, DataError)
    if not isinstance(meta, dict) or not meta:
        raise DataError(f"{path}: an object with one entry for each datapoint key is needed")
    keys = sorted(meta)
    return [_entry(path, key, meta[key], concepts) for key in (keys if max_datapoints < 0 else keys[:max_datapoints])]


def _entry(path: Path, key: str, value: Any, concepts: str | FromText | None) -> Entry:
    try:
        segments = value["segments"]
        entry = Entry(
            key=key,
            data_key=str(value["data_key"]),
            duration=float(value["duration_sec"]),
            split=str(value["split"]),
            texts=tuple(_sentence(segment["text"]) for segment in segments),
            starts=np.array([float(segment["start_sec"]) for segment in segments]),
            stops=np.array([float(segment["stop_sec"]) for segment in segments]),
            concepts=() if concepts is None else tuple(_concept(segment, concepts) for segment in segments),
        )
    except (KeyError, TypeError, ValueError) as error:
        what = f"no field {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(
            f"{path}: entry {key!r}: {what}; each entry needs data_key, duration_sec, split and segments with text, "
            f"start_sec and stop_sec{f' and {concepts} (data.concepts)' if isinstance(concepts, str) else ''}"
        ) from error
    if not segments:
        raise DataError(f"{path}: entry {key!r} has no segments; drop it")
    times = np.concatenate([[entry.duration], entry.starts, entry.stops])
    if not np.isfinite(times).all() or entry.duration <= 0:
        raise DataError(f"{path}: entry {key!r}: duration_sec must be above 0 and all times finite")
    wrong = np.flatnonzero((entry.starts < 0) | (entry.stops < entry.starts))
    if len(wrong):
        start, stop = entry.starts[wrong[0]], entry.stops[wrong[0]]
        raise DataError(
            f"{path}: entry {key!r}: segment {wrong[0]} runs from {start:g} to {stop:g} s; correct its times"
        )
    return entry


def _sentence(text: Any) -> str:
    if not isinstance(text, str):
        raise ValueError(f"the text of a segment must be a string, got {text!r:.60}")
    return text


def _concept(segment: Mapping[str, Any], concepts: str | FromText) -> str:
    return str(segment[concepts]) if isinstance(concepts, str) else same_words(segment["text"])


class WholeAndParts(NamedTuple):
    """Rows of a whole video (or paragraph) and of each of its clips (or sentences)."""

    whole: Rows
    parts: list[Rows]


class ModalityReader(ABC):
    """Reads one modality of a datapoint."""

    def __init__(self, experts: Sequence[RowReader]) -> None:
        self.experts = list(experts)

    @property
    def dim(self) -> int:
        """Channels of all experts together."""
        return sum(expert.dim for expert in self.experts)

    @abstractmethod
    def name_of(self, entry: Entry) -> str:
        """The key under which the experts store a datapoint."""

    def has(self, entry: Entry) -> bool:
        """Whether an expert has rows of a datapoint."""
        return any(expert.find(self.name_of(entry)) is not None for expert in self.experts)

    @abstractmethod
    def read(self, entry: Entry, rng: np.random.Generator | None) -> WholeAndParts:
        """Rows of a datapoint; with a generator, for training."""


class FrameReader(ModalityReader):
    """Rows spread evenly over time (video, audio), cut by the seconds of the segments.

    The limit of rows applies to the whole video and to each clip on its own. Noise (``frames_noise``) is added in
    training only. COOT adds it in validation too, which makes its results random.
    """

    def __init__(self, experts: Sequence[RowReader], config: CootConfig) -> None:
        super().__init__(experts)
        self.config = config

    def name_of(self, entry: Entry) -> str:
        """The video's key: several datapoints may share one video."""
        return entry.data_key

    def read(self, entry: Entry, rng: np.random.Generator | None) -> WholeAndParts:
        """Rows of the whole video and of each clip."""
        video = join_rows(read_experts(self.experts, entry.data_key), [expert.dim for expert in self.experts])
        more, least = self.config.add_stop_frame, self.config.expand_segments
        bounds = clip_bounds(len(video), entry.duration, entry.starts, entry.stops, more, least)
        empty = np.flatnonzero(bounds[:, 1] <= bounds[:, 0])
        if len(empty):
            clip = int(empty[0])
            raise DataError(
                f"{self.experts[0].path}: clip {clip} of {entry.key!r} has no rows: {entry.starts[clip]:g} to "
                f"{entry.stops[clip]:g} s of {entry.duration:g} s with {len(video)} rows; correct the segment in the "
                "meta file, drop it, or set expand_segments"
            )
        whole = self._use(video, rng)
        return WholeAndParts(whole, [self._use(video[start:stop], rng) for start, stop in bounds.tolist()])

    def _use(self, rows: Rows, rng: np.random.Generator | None) -> Rows:
        rows, noise = limit_rows(rows, self.config.max_frames, rng), self.config.frames_noise
        return rows if rng is None or noise == 0 else add_noise(rows, noise, rng)


class TokenReader(ModalityReader):
    """Token rows of a paragraph, cut into sentences by the ``_sentence_splits.json`` next to each file."""

    def __init__(self, experts: Sequence[RowReader], splits: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(experts)
        self.splits = list(splits)

    def name_of(self, entry: Entry) -> str:
        """The datapoint's own key: each has its own paragraph."""
        return entry.key

    def read(self, entry: Entry, rng: np.random.Generator | None) -> WholeAndParts:
        """Rows of the paragraph and of each sentence; nothing is random here."""
        found = read_experts(self.experts, entry.key)
        cut = [
            None if rows is None else self._sentences(expert, splits, entry, rows)
            for expert, splits, rows in zip(self.experts, self.splits, found, strict=True)
        ]
        if len(cut) == 1 and cut[0] is not None and found[0] is not None:
            return WholeAndParts(found[0], cut[0])
        dims = [expert.dim for expert in self.experts]
        sentences = [
            join_rows([None if part is None else part[number] for part in cut], dims)
            for number in range(len(entry.texts))
        ]
        return WholeAndParts(np.concatenate(sentences), sentences)

    def _sentences(self, expert: RowReader, splits: Mapping[str, Any], entry: Entry, rows: Rows) -> list[Rows]:
        name = expert.find(entry.key) or entry.key
        counts = splits.get(entry.key, splits.get(name))
        where = sentence_splits_path(expert.path)
        if counts is None:
            raise DataError(f"{where}: no entry for key {entry.key!r}; compute the text features again")
        if not isinstance(counts, list) or not all(type(count) is int for count in counts):
            raise DataError(
                f"{where}: entry {entry.key!r} must be a list of whole numbers, the tokens of each sentence"
            )
        if len(counts) != len(entry.texts):
            raise DataError(
                f"{where}: {entry.key!r} has {len(counts)} sentences but the meta file has {len(entry.texts)} "
                "segments; the text features come from another meta file"
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
    """The file of the sentence lengths of a token file: ``<stem>_sentence_splits.json`` next to it."""
    return path.with_name(f"{path.stem if path.suffix == '.h5' else path.name}_sentence_splits.json")


def open_modality(config: CootConfig, name: str) -> ModalityReader:
    """The reader of a modality: of tokens, if it is cut by sentences, or of frames."""
    option = dict(zip(config.names, ("video", "text"), strict=True)).get(name, f"also.{name}")
    paths = [config.resolve(path, option) for path in config.files[name]]
    if option != "text" or config.cut_text_by == "times":
        return FrameReader([open_rows(path) for path in paths], config)
    splits = [config.resolve(str(sentence_splits_path(path)), "text") for path in paths]
    return TokenReader([open_rows(path) for path in paths], [read_json_object(path, kind=DataError) for path in splits])
