"""From rows to something that can be trained on: the meta file, the splits, and a config."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from crossclr.experts.contract import Expert
from crossclr.experts.extraction.recordings import FRACTIONS, Datapoint, Problem, assign_splits
from crossclr.experts.media.file_types import media_type

TINY = 200  # training clips below which only pairs are compared
SMALL = 2000  # and below which a small model is proposed


@dataclass
class DataSet:
    """What a meta file holds, and which experts are which modality.

    Args:
        meta: COOT's meta file.
        a: names of the experts of modality A.
        b: names of the experts of modality B; none: it cannot be trained on.
        by_times: whether B is cut by times, as A is.
        many: whether recordings have several sentences without times.
    """

    meta: dict[str, dict[str, Any]]
    a: list[str]
    b: list[str]
    by_times: bool
    many: bool = False

    @property
    def two_level(self) -> bool:
        """Whether some recording has several clips, each with a sentence."""
        several = any(len(entry["segments"]) > 1 for entry in self.meta.values())
        return several and not self.many and not self.by_times

    def count(self, split: str) -> tuple[int, int]:
        """Recordings and clips of a split."""
        entries = [entry for entry in self.meta.values() if entry["split"] == split]
        return len(entries), sum(1 if self.many else len(entry["segments"]) for entry in entries)


def choose_sides(experts: Sequence[Expert], captioned: bool) -> tuple[list[str], list[str], bool]:
    """Names of the experts of A and of B, and whether B is cut by times.

    Sentences are B where there are some. Without, sound is B against pictures, or else the last expert against all
    others.
    """
    frames = [expert.name for expert in experts if expert.needs.kind not in ("tokens", "sound")]
    sound = [expert.name for expert in experts if expert.needs.kind == "sound"]
    tokens = [expert.name for expert in experts if expert.needs.kind == "tokens"]
    if tokens and captioned:
        return frames + sound, tokens, False
    if frames and sound:
        return frames, sound[:1], True
    both = frames + sound
    return (both[:-1], both[-1:], True) if len(both) > 1 else (both, [], True)


def segments_within(point: Datapoint, duration: float, name: str) -> tuple[list[dict[str, Any]], list[Problem]]:
    """The segments of a datapoint that lie in its recording, as the meta file has them, and those that do not."""
    kept, problems = [], []
    for number, segment in enumerate(point.segments):
        try:
            start, stop = segment.within(duration)
        except ValueError as error:
            problems.append(Problem(name, f"segment {number} was left out: {error}"))
            continue
        kept.append({"text": segment.text, "start_sec": round(start, 3), "stop_sec": round(min(stop, duration), 3)})
    return kept, problems


def build_dataset(
    points: Sequence[Datapoint],
    durations: Mapping[str, float],
    segments: Mapping[str, list[dict[str, Any]]],
    have: Mapping[str, Collection[str]],
    sides: tuple[list[str], list[str], bool],
    fractions: Mapping[str, float] = FRACTIONS,
) -> DataSet:
    """The meta file of everything that has rows in both modalities.

    Args:
        points: all datapoints.
        durations: seconds of each recording that went through.
        segments: for each datapoint its segments within the recording.
        have: for each expert the keys of which it has rows.
        sides: what ``choose_sides`` gave.
        fractions: share of each split, where the captions name none.
    """
    a, b, by_times = sides
    whole_files = all(segment.start is None and segment.stop is None for point in points for segment in point.segments)
    several = any(len(point.segments) > 1 for point in points)
    data = DataSet({}, a, b, by_times, many=several and whole_files and not by_times)
    for point in points:
        whole = segments.get(point.key, [])
        if point.recording not in durations or not whole:
            continue
        in_a = not a or any(point.recording in have[name] for name in a)
        in_b = not b or any((point.recording if by_times else point.key) in have[name] for name in b)
        if in_a and in_b:
            data.meta[point.key] = {
                "data_key": point.recording,
                "duration_sec": round(durations[point.recording], 6),
                "split": point.split or "",
                "segments": whole,
            }
    drawn = assign_splits(sorted({entry["data_key"] for entry in data.meta.values()}), fractions)
    for entry in data.meta.values():
        entry["split"] = entry["split"] or drawn[entry["data_key"]]
    return data


def media_table(data: DataSet, files: Mapping[str, Path]) -> dict[str, Any]:
    """Clip -> file and seconds, for ``crossclr index --media``; files that no browser plays are left out."""
    table: dict[str, Any] = {}
    for key, entry in data.meta.items():
        path = files[entry["data_key"]]
        if media_type(path) is None:
            continue
        if data.many:
            table[key] = {"file": str(path.resolve()), "start": 0.0, "stop": entry["duration_sec"]}
            continue
        several = len(entry["segments"]) > 1
        for number, segment in enumerate(entry["segments"]):
            place = {"file": str(path.resolve()), "start": segment["start_sec"], "stop": segment["stop_sec"]}
            table[f"{key}/{number}" if several else key] = place
    return table


def coot_section(data: DataSet, out: Path) -> dict[str, Any]:
    """The section ``data`` of a config for COOT's layout."""
    section: dict[str, Any] = {
        "kind": "coot",
        "root": str(out.resolve()),
        "video": [f"{expert}.h5" for expert in data.a],
        "text": [f"{expert}.h5" for expert in data.b],
        "two_level": data.two_level,
        "add_stop_frame": 0,
        "expand_segments": 1,
    }
    return section | ({"cut_text_by": "times"} if data.by_times else {})


def training_config(data: DataSet, section: Mapping[str, Any], name: str) -> str:
    """A config that trains on the data set as it is; sizes follow from how much there is.

    A small set gets a small model: MLPs over pooled rows. From 2,000 training clips on it is the paper's model. With
    fewer than 200, negatives within a modality are left out: they push a handful of sentences so far apart that a
    sentence in other words no longer finds its clip.

    Args:
        data: the data set.
        section: where its files are, the section ``data`` of the config.
        name: of the run.
    """
    recordings, clips = data.count("train")
    two_level = data.two_level
    batch = max(2, min(64, recordings if two_level else clips))
    clips_at_once = max(2, round(batch * clips / max(recordings, 1))) if two_level else batch
    steps = max(1, math.ceil((recordings if two_level else clips) / batch))
    small = clips < SMALL
    encoder = {"kind": "mlp", "sequence_pooling": "mean", "blocks": 1, "dropout": 0.2, "input_norm": "l2"}
    term = _loss(clips, clips_at_once)
    values: dict[str, Any] = {
        "name": name,
        "data": dict(section),
        "splits": {
            "train": "train",
            "validate": "val" if data.count("val")[0] else None,
            "test": "test" if data.count("test")[0] else None,
        },
        "model": {"dim": 256, "encoder_a": encoder, "encoder_b": dict(encoder)} if small else {"dim": 384},
        "loss": {"local": term, "global": dict(term, queue_size=0) if two_level else None},
        "optimiser": {"name": "adamw", "learning_rate": 1e-3, "betas": [0.9, 0.98], "weight_decay": 0.05},
        "schedule": {"name": "cosine", "warmup_epochs": 2},
        "training": {"epochs": min(40, max(20, math.ceil(400 / steps))), "batch_size": batch},
    }
    if values["splits"]["validate"] is not None:
        values["validation"] = {"every": 5 if values["training"]["epochs"] >= 50 else 1}
    head = "# Written by `crossclr extract`. If the folder moves, set data.root.\n"
    return head + yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def _loss(clips: int, clips_at_once: int) -> dict[str, Any]:
    """Options of CrossCLR for a training split of so many clips."""
    if clips < TINY:
        switched_off = {"intra_weight": 0.0, "prune_threshold": None, "weight_scale": None, "queue_size": 0}
        return {"name": "crossclr", "temperature": 0.07, **switched_off}
    return {
        "name": "crossclr",
        "temperature": 0.1 if clips < SMALL else 0.03,
        "intra_weight": 0.2 if clips < SMALL else 0.8,
        "prune_threshold": 0.9,
        "prune_by": "quantile",
        # Weights are a softmax over the batch, so what they do depends on its size; 0.0035 is the paper's at 500 clips.
        "weight_scale": round(0.0035 * 500 / clips_at_once, 4),
        "queue_size": 0 if clips < 1000 else min(5000, clips // 2),
    }
