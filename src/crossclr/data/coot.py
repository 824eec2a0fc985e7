"""Data in COOT's layout: a meta JSON, feature rows of whole videos, token rows of whole paragraphs."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from crossclr.data.config import FromText
from crossclr.data.dataset import Dataset, Splits
from crossclr.data.entries import RowReader, open_rows, read_experts
from crossclr.data.info import Info, list_column, text_column
from crossclr.data.kinds import CootConfig
from crossclr.data.order import Places, places_of_splits
from crossclr.data.report import Finding, finding_about
from crossclr.data.sample import Rows, clip_keys, same_words
from crossclr.data.sequences import RowStore, Sequences, clip_bounds, join_rows
from crossclr.errors import DataError
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

    @property
    def times(self) -> list[tuple[float, float]]:
        """First and last second of each segment."""
        return list(zip(self.starts.tolist(), self.stops.tolist(), strict=True))


def open_coot(config: CootConfig) -> Dataset:
    """Open data in COOT's layout.

    With one level, each clip is a sample of its own, without the whole video, named ``video/index``.
    """
    entries = read_entries(config.resolve(config.meta, "meta"), config.max_datapoints, config.concepts)
    readers = {name: open_modality(config, name) for name in config.modalities}
    # Without sentences, the texts of the segments describe the second modality.
    described = next((name for name, one in readers.items() if isinstance(one, TokenReader)), config.modalities[1])
    counts = np.array([len(entry.texts) for entry in entries])
    starts = np.cumsum([0, *counts])
    clips, videos = {}, {}
    for name, reader in readers.items():
        frames = isinstance(reader, FrameReader)
        limits: dict[str, Any] = {"limit": config.max_frames, "noise": config.frames_noise} if frames else {}
        # With two modalities a video needs both; with more it may lack any that is cut by times.
        optional = bool(config.also) and frames
        has = np.array([not optional or reader.has(entry) for entry in entries])
        whole: Places = range(len(entries)) if has.all() else np.flatnonzero(has)
        parts: Places = range(int(starts[-1])) if has.all() else np.flatnonzero(has.repeat(counts))
        texts = text_column([text for entry in entries for text in entry.texts]) if name == described else None
        clips[name] = Sequences(_CutRows(reader, entries, starts), parts, parts, texts, **limits)
        if config.two_level:
            videos[name] = Sequences(_CutRows(reader, entries), whole, whole, **limits)
    info = _info(entries, config.two_level)
    split_of = np.array([entry.split for entry in entries]).repeat(1 if config.two_level else counts)
    places = {name: np.flatnonzero(split_of == name) for name in dict.fromkeys(split_of.tolist())}
    group = info.columns["group"]
    splits, own = places_of_splits(
        places, config.split_parts, config.split_names, lambda place: str(group[place].as_py())
    )
    return Dataset(
        info,
        clips,
        videos,
        clip_starts=starts if config.two_level else None,
        splits=Splits(splits, own),
        findings=lambda: _findings(entries, readers),
    )


def _info(entries: Sequence[Entry], two_level: bool) -> Info:
    times = pa.list_(pa.float64())
    if two_level:
        columns = {
            "key": text_column([entry.key for entry in entries]),
            "group": text_column([entry.data_key for entry in entries]),
            "concept": list_column([entry.concepts for entry in entries]),
            "time": list_column([entry.times for entry in entries], times),
        }
    else:
        columns = {
            "key": text_column([name for entry in entries for name in clip_keys(entry.key, len(entry.texts))]),
            "group": text_column([entry.data_key for entry in entries for _ in entry.texts]),
            "concept": text_column([concept for entry in entries for concept in entry.concepts]),
            "time": list_column([[seconds] for entry in entries for seconds in entry.times], times),
        }
    return Info(columns)


def read_entries(path: Path, max_datapoints: int = -1, concepts: str | FromText | None = None) -> list[Entry]:
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


class ModalityReader(ABC):
    """Reads one modality of a datapoint: the whole video (or paragraph) and each of its clips (or sentences).

    Each thread keeps its last datapoint, whose clips are read one by one.
    """

    def __init__(self, experts: Sequence[RowReader]) -> None:
        self.experts = list(experts)
        self.dims = tuple(expert.dim for expert in self.experts)
        self._last = threading.local()

    @abstractmethod
    def name_of(self, entry: Entry) -> str:
        """The key under which the experts store a datapoint."""

    @abstractmethod
    def cut(self, entry: Entry) -> tuple[Rows, list[Rows]]:
        """Rows of the whole and of each part."""

    def read(self, entry: Entry) -> tuple[Rows, list[Rows]]:
        """Rows of the whole and of each part; the last datapoint is kept."""
        if getattr(self._last, "key", None) != entry.key:
            self._last.cut = self.cut(entry)
            self._last.key = entry.key
        cut: tuple[Rows, list[Rows]] = self._last.cut
        return cut

    def has(self, entry: Entry) -> bool:
        """Whether an expert has rows of a datapoint."""
        return any(expert.find(self.name_of(entry)) is not None for expert in self.experts)

    def missing(self, entry: Entry) -> list[Path]:
        """Files of the experts that lack a datapoint."""
        return [expert.path for expert in self.experts if expert.find(self.name_of(entry)) is None]


class FrameReader(ModalityReader):
    """Rows spread evenly over time (video, audio), cut by the seconds of the segments."""

    def __init__(self, experts: Sequence[RowReader], config: CootConfig, separate: bool = False) -> None:
        super().__init__(experts)
        self.config, self.separate = config, separate and len(self.experts) > 1

    def name_of(self, entry: Entry) -> str:
        """The video's key: several datapoints may share one video."""
        return entry.data_key

    def cut(self, entry: Entry) -> tuple[Rows, list[Rows]]:
        """Rows of the whole video and of each clip."""
        found = read_experts(self.experts, entry.data_key)
        if not self.separate:
            video = join_rows(found, self.dims)
            return video, self._clips(video, entry, self.experts[0].path)
        cut = [
            None if rows is None else self._clips(rows, entry, expert.path)
            for rows, expert in zip(found, self.experts, strict=True)
        ]
        clips = [
            join_rows([None if part is None else part[number] for part in cut], self.dims, separate=True)
            for number in range(len(entry.texts))
        ]
        return join_rows(found, self.dims, separate=True), clips

    def _clips(self, video: Rows, entry: Entry, path: Path) -> list[Rows]:
        more, least = self.config.add_stop_frame, self.config.expand_segments
        bounds = clip_bounds(len(video), entry.duration, entry.starts, entry.stops, more, least)
        empty = np.flatnonzero(bounds[:, 1] <= bounds[:, 0])
        if len(empty):
            clip = int(empty[0])
            raise DataError(
                f"{path}: clip {clip} of {entry.key!r} has no rows: {entry.starts[clip]:g} to "
                f"{entry.stops[clip]:g} s of {entry.duration:g} s with {len(video)} rows; correct the segment in the "
                "meta file, drop it, or set expand_segments"
            )
        return [video[start:stop] for start, stop in bounds.tolist()]


class TokenReader(ModalityReader):
    """Token rows of a paragraph, cut into sentences by the ``_sentence_splits.json`` next to each file."""

    def __init__(self, experts: Sequence[RowReader], splits: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(experts)
        self.splits = list(splits)

    def name_of(self, entry: Entry) -> str:
        """The datapoint's own key: each has its own paragraph."""
        return entry.key

    def cut(self, entry: Entry) -> tuple[Rows, list[Rows]]:
        """Rows of the paragraph and of each sentence."""
        found = read_experts(self.experts, entry.key)
        cut = [
            None if rows is None else self._sentences(expert, splits, entry, rows)
            for expert, splits, rows in zip(self.experts, self.splits, found, strict=True)
        ]
        if len(cut) == 1 and cut[0] is not None and found[0] is not None:
            return found[0], cut[0]
        sentences = [
            join_rows([None if part is None else part[number] for part in cut], self.dims)
            for number in range(len(entry.texts))
        ]
        return np.concatenate(sentences), sentences

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


class _CutRows(RowStore):
    """The clips or sentences of all datapoints, or the whole videos or paragraphs if there are no ``starts``."""

    def __init__(
        self, reader: ModalityReader, entries: Sequence[Entry], starts: npt.NDArray[np.int64] | None = None
    ) -> None:
        self.reader, self.entries, self.starts = reader, entries, starts
        self.path, self.dim = reader.experts[0].path, sum(reader.dims)
        if isinstance(reader, FrameReader) and reader.separate:
            self.expert_dims = reader.dims

    def read(self, number: int, key: str) -> Rows:
        """The rows of one sequence."""
        entry = self._entry(number)
        whole, parts = self.reader.read(self.entries[entry])
        return whole if self.starts is None else parts[number - int(self.starts[entry])]

    def missing(self, number: int) -> list[Path]:
        """Files of the experts that lack it."""
        return self.reader.missing(self.entries[self._entry(number)])

    def _entry(self, number: int) -> int:
        return number if self.starts is None else int(np.searchsorted(self.starts, number, side="right")) - 1


def _findings(entries: Sequence[Entry], readers: Mapping[str, ModalityReader]) -> list[Finding]:
    """Entries that no datapoint uses, and segments that exceed their video."""
    findings = []
    for reader in readers.values():
        used = {reader.name_of(entry) for entry in entries}
        for expert in reader.experts:
            stored = {expert.find(name) for name in used}
            if unused := [name for name in expert.names() if name not in stored]:
                findings.append(
                    finding_about("unused", f"{expert.path}: {{count}} entries belong to no datapoint", unused)
                )
    late = [
        clip_keys(entry.key, len(entry.texts))[number]
        for entry in entries
        for number in np.flatnonzero((entry.stops > entry.duration + 1) | (entry.starts < 0)).tolist()
    ]
    if late:
        message = "{count} segments exceed their video by more than a second; they are cut off"
        findings.append(finding_about("outside", message, late))
    return findings


def sentence_splits_path(path: Path) -> Path:
    """The file of the sentence lengths of a token file: ``<stem>_sentence_splits.json`` next to it."""
    return path.with_name(f"{path.stem if path.suffix == '.h5' else path.name}_sentence_splits.json")


def open_modality(config: CootConfig, name: str) -> ModalityReader:
    """The reader of a modality: of tokens, if it is cut by sentences, or of frames."""
    option = dict(zip(config.names, ("video", "text"), strict=True)).get(name, f"also.{name}")
    paths = [config.resolve(path, option) for path in config.files[name]]
    if option != "text" or config.cut_text_by == "times":
        separate = option == "video" and config.join == "separate"
        return FrameReader([open_rows(path) for path in paths], config, separate)
    splits = [config.resolve(str(sentence_splits_path(path)), "text") for path in paths]
    return TokenReader([open_rows(path) for path in paths], [read_json_object(path, kind=DataError) for path in splits])


def guess_data_config(folder: str | Path) -> CootConfig:
    """The config of a folder in COOT's layout: ``meta_all.json``, token files with splits, and other feature files.

    Raises:
        DataError: the folder does not have these files.
    """
    folder = Path(folder)
    files = sorted(file for file in folder.iterdir() if file.suffix == ".h5")
    text = [file.name for file in files if (folder / f"{file.stem}_sentence_splits.json").exists()]
    video = [file.name for file in files if file.name not in text]
    if not (folder / "meta_all.json").exists() or not text or not video:
        raise DataError(
            f"{folder}: is not in COOT's layout: meta_all.json, a .h5 file of features, and a .h5 file of token "
            "features with <stem>_sentence_splits.json are needed (`crossclr extract --text-only` makes the last "
            "two); for other files write a data config"
        )
    return CootConfig(root=str(folder.resolve()), video=video, text=text)
