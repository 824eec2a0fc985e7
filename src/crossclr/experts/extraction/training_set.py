"""Turn finished rows into a data set to train on: which expert belongs to which modality, the meta file, the splits."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crossclr.experts.contract import Expert, ExpertError
from crossclr.experts.extraction.recordings import Datapoint, Problem

FRACTIONS = {"train": 0.8, "val": 0.1, "test": 0.1}
Segments = list[dict[str, Any]]  # as the meta file has them: text, start_sec, stop_sec


FAMILIES = {"tokens": "text", "sound": "audio"}  # what an expert needs -> its modality; all others see the video


@dataclass(frozen=True)
class Modalities:
    """Which experts belong to which modality."""

    experts: dict[str, list[str]]  # names of the experts by modality
    text: str | None = None  # the modality of sentences; the others are cut by times

    def only(self, experts: Collection[str]) -> Modalities:
        """Without experts that have no rows, and without modalities that have no experts."""
        kept = {name: [one for one in own if one in experts] for name, own in self.experts.items()}
        kept = {name: own for name, own in kept.items() if own}
        return Modalities(kept, self.text if self.text in kept else None)


@dataclass
class DataSet:
    """The content of a meta file, and which experts belong to which modality."""

    modalities: Modalities
    meta: dict[str, dict[str, Any]] = field(default_factory=dict)  # COOT's meta file
    many: bool = False  # whether recordings have several sentences without times

    @property
    def two_level(self) -> bool:
        """Whether any recording has several clips, each with its own sentence."""
        several = any(len(entry["segments"]) > 1 for entry in self.meta.values())
        return several and not self.many and self.modalities.text is not None

    @property
    def clips(self) -> int:
        """The number of segments."""
        return sum(len(entry["segments"]) for entry in self.meta.values())

    def count(self, split: str) -> tuple[int, int]:
        """The number of recordings and of clips in a split."""
        entries = [entry for entry in self.meta.values() if entry["split"] == split]
        return len(entries), sum(1 if self.many else len(entry["segments"]) for entry in entries)


def choose_modalities(experts: Sequence[Expert], named: Mapping[str, Sequence[str]] | None = None) -> Modalities:
    """Divide the experts into modalities: the ``named`` ones, and ``video``, ``audio`` and ``text`` for all others.

    If all experts would belong to one modality, each is a modality of its own.

    Args:
        experts: the experts.
        named: names of experts by modality.

    Raises:
        ExpertError: a modality names an expert that is not there, or mixes sentences with something else.
    """
    needs = {expert.name: expert.needs.kind for expert in experts}
    given = {name: list(own) for name, own in (named or {}).items()}
    for name, own in given.items():
        if unknown := [one for one in own if one not in needs]:
            raise ExpertError(f"modality {name!r}: expert {unknown[0]!r} is not among {', '.join(needs)}")
    taken = {one for own in given.values() for one in own}
    found: dict[str, list[str]] = {}
    for one, kind in needs.items():
        if one not in taken:
            found.setdefault(FAMILIES.get(kind, "video"), []).append(one)
    if given.keys() & found.keys():
        both = next(iter(given.keys() & found.keys()))
        raise ExpertError(f"modality {both!r} is also the one of {', '.join(found[both])}; choose another name")
    found = given | found
    if list(found) in (["video"], ["audio"]) and not given and len(needs) > 1:
        found = {one: [one] for one in needs}
    texts = {name: own for name, own in found.items() if any(needs[one] == "tokens" for one in own)}
    if len(texts) > 1 or any(needs[one] != "tokens" for own in texts.values() for one in own):
        raise ExpertError(f"experts of sentences must be one modality of their own, got {texts}")
    text = next(iter(texts), None)
    return Modalities({name: found[name] for name in sorted(found, key=lambda name: name == text)}, text)


def segments_within(point: Datapoint, duration: float, name: str) -> tuple[Segments, list[Problem]]:
    """The segments of a datapoint that lie in its recording, and a problem for each of the others."""
    kept, problems = [], []
    for number, segment in enumerate(point.segments):
        try:
            start, stop = segment.within(duration)
        except ValueError as error:
            problems.append(Problem(name, f"segment {number} was omitted: {error}"))
            continue
        times = {"start_sec": round(start, 3), "stop_sec": round(min(stop, duration), 3)}
        kept.append({"text": segment.text, **times, **({"fields": segment.fields} if segment.fields else {})})
    return kept, problems


def build_dataset(
    points: Sequence[Datapoint],
    durations: Mapping[str, float],
    segments: Mapping[str, Segments],
    finished: Mapping[str, Collection[str]],
    modalities: Modalities,
    fractions: Mapping[str, float] = FRACTIONS,
) -> DataSet:
    """The data set of everything that has rows in two modalities, or in the only one.

    Args:
        points: all datapoints.
        durations: seconds of each recording that was decoded.
        segments: the segments of each datapoint that lie in its recording.
        finished: for each expert the keys for which it has rows.
        modalities: which experts belong to which modality.
        fractions: share of each split, for datapoints without one.
    """
    no_times = all(segment.start is None and segment.stop is None for point in points for segment in point.segments)
    several = any(len(point.segments) > 1 for point in points)
    data = DataSet(modalities, many=several and no_times and modalities.text is not None)
    for point in points:
        recording = point.recording
        if recording not in durations or not segments.get(point.key):
            continue
        present = [
            any((point.key if name == modalities.text else recording) in finished[one] for one in own)
            for name, own in modalities.experts.items()
        ]
        if sum(present) >= min(2, len(present)):
            data.meta[point.key] = {
                "data_key": recording,
                "duration_sec": round(durations[recording], 6),
                "split": point.split or "",
                "segments": segments[point.key],
            }
    assigned = assign_splits([entry["data_key"] for entry in data.meta.values()], fractions)
    for entry in data.meta.values():
        entry["split"] = entry["split"] or assigned[entry["data_key"]]
    return data


def assign_splits(keys: Sequence[str], fractions: Mapping[str, float] = FRACTIONS) -> dict[str, str]:
    """Choose a split for each key by its hash, so that a key keeps its split when others are added or removed.

    Example:
        >>> splits = assign_splits([f"video{n}" for n in range(1000)])
        >>> {name: list(splits.values()).count(name) for name in FRACTIONS}
        {'train': 796, 'val': 106, 'test': 98}
    """
    total = sum(fractions.values())
    chosen = {}
    for key in keys:
        place = int.from_bytes(hashlib.blake2b(f"split:{key}".encode(), digest_size=8).digest(), "big") / 2**64
        edge = 0.0
        for name, share in fractions.items():
            edge += share / total
            chosen[key] = name
            if place < edge:
                break
    return chosen


def media_table(data: DataSet, files: Mapping[str, Path]) -> dict[str, Any]:
    """Clip -> file and seconds, for ``crossclr index --media``."""
    table: dict[str, Any] = {}
    for key, entry in data.meta.items():
        path = files[entry["data_key"]]
        whole = [{**entry["segments"][0], "start_sec": 0.0, "stop_sec": entry["duration_sec"]}]
        segments = whole if data.many else entry["segments"]
        for number, segment in enumerate(segments):
            place = {"file": str(path.resolve()), "start": segment["start_sec"], "stop": segment["stop_sec"]}
            place |= {"fields": segment["fields"]} if "fields" in segment else {}
            table[f"{key}/{number}" if len(segments) > 1 else key] = place
    return table
