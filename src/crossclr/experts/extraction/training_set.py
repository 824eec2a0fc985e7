"""Turn finished rows into a data set to train on: which expert belongs to which modality, the meta file, the splits."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crossclr.experts.contract import Expert
from crossclr.experts.extraction.recordings import Datapoint, Problem

FRACTIONS = {"train": 0.8, "val": 0.1, "test": 0.1}
Segments = list[dict[str, Any]]  # as the meta file has them: text, start_sec, stop_sec


@dataclass(frozen=True)
class Sides:
    """Which experts belong to which modality."""

    a: list[str]  # names of the experts of modality A
    b: list[str]  # names of the experts of modality B; if empty, the set cannot be trained on
    by_times: bool  # whether the rows of B are cut by times, as those of A are


@dataclass
class DataSet:
    """The content of a meta file, and which experts belong to which modality."""

    sides: Sides  # the modalities
    meta: dict[str, dict[str, Any]] = field(default_factory=dict)  # COOT's meta file
    many: bool = False  # whether recordings have several sentences without times

    @property
    def two_level(self) -> bool:
        """Whether any recording has several clips, each with its own sentence."""
        several = any(len(entry["segments"]) > 1 for entry in self.meta.values())
        return several and not self.many and not self.sides.by_times

    @property
    def clips(self) -> int:
        """The number of segments."""
        return sum(len(entry["segments"]) for entry in self.meta.values())

    def count(self, split: str) -> tuple[int, int]:
        """The number of recordings and of clips in a split."""
        entries = [entry for entry in self.meta.values() if entry["split"] == split]
        return len(entries), sum(1 if self.many else len(entry["segments"]) for entry in entries)


def choose_sides(experts: Sequence[Expert], captioned: bool) -> Sides:
    """Divide the experts into two modalities.

    Sentences are B if there are any. Without sentences, sound is B and images are A; if all experts are of one type,
    the last one is B.
    """
    by_kind: dict[str, list[str]] = {"tokens": [], "sound": [], "frames": []}
    for expert in experts:
        by_kind[expert.needs.kind if expert.needs.kind in by_kind else "frames"].append(expert.name)
    frames, sound, tokens = by_kind["frames"], by_kind["sound"], by_kind["tokens"]
    if tokens and captioned:
        return Sides(frames + sound, tokens, False)
    if frames and sound:
        return Sides(frames, sound[:1], True)
    both = frames + sound
    return Sides(both[:-1], both[-1:], True) if len(both) > 1 else Sides(both, [], True)


def segments_within(point: Datapoint, duration: float, name: str) -> tuple[Segments, list[Problem]]:
    """The segments of a datapoint that lie in its recording, and a problem for each of the others."""
    kept, problems = [], []
    for number, segment in enumerate(point.segments):
        try:
            start, stop = segment.within(duration)
        except ValueError as error:
            problems.append(Problem(name, f"segment {number} was omitted: {error}"))
            continue
        kept.append({"text": segment.text, "start_sec": round(start, 3), "stop_sec": round(min(stop, duration), 3)})
    return kept, problems


def build_dataset(
    points: Sequence[Datapoint],
    durations: Mapping[str, float],
    segments: Mapping[str, Segments],
    finished: Mapping[str, Collection[str]],
    sides: Sides,
    fractions: Mapping[str, float] = FRACTIONS,
) -> DataSet:
    """The data set of everything that has rows in both modalities.

    Args:
        points: all datapoints.
        durations: seconds of each recording that was decoded.
        segments: the segments of each datapoint that lie in its recording.
        finished: for each expert the keys for which it has rows.
        sides: the modalities.
        fractions: share of each split, for datapoints without one.
    """
    no_times = all(segment.start is None and segment.stop is None for point in points for segment in point.segments)
    several = any(len(point.segments) > 1 for point in points)
    data = DataSet(sides, many=several and no_times and not sides.by_times)
    for point in points:
        recording = point.recording
        if recording not in durations or not segments.get(point.key):
            continue
        key_in_b = recording if sides.by_times else point.key
        in_a = not sides.a or any(recording in finished[name] for name in sides.a)
        in_b = not sides.b or any(key_in_b in finished[name] for name in sides.b)
        if in_a and in_b:
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
        whole = [{"start_sec": 0.0, "stop_sec": entry["duration_sec"]}]
        segments = whole if data.many else entry["segments"]
        for number, segment in enumerate(segments):
            place = {"file": str(path.resolve()), "start": segment["start_sec"], "stop": segment["stop_sec"]}
            table[f"{key}/{number}" if len(segments) > 1 else key] = place
    return table
