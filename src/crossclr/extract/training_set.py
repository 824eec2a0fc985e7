"""Turn finished rows into a data set to train on: which expert belongs to which modality, the meta file, the splits.

A config for `crossclr train` that fits the size of an extracted data set.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from crossclr.data.order import draw_splits
from crossclr.extract.contract import Expert, ExpertError
from crossclr.extract.recordings import Datapoint, Omission
from crossclr.extract.tokens import MINILM
from crossclr.models.zero_shot import ZeroShot

FRACTIONS = {"train": 0.8, "val": 0.1, "test": 0.1}
Segments = list[dict[str, Any]]  # as the meta file has them: text, start_sec, stop_sec


FAMILIES = {"tokens": "text", "sound": "audio"}  # what an expert needs -> its modality; all others see the video


@dataclass(frozen=True)
class ModalityExperts:
    """Which experts belong to which modality."""

    experts: dict[str, list[str]]  # names of the experts by modality
    text: str | None = None  # the modality of sentences; the others are cut by times

    def only(self, experts: Collection[str]) -> ModalityExperts:
        """Without experts that have no rows, and without modalities that have no experts."""
        remaining = {name: [label for label in members if label in experts] for name, members in self.experts.items()}
        remaining = {name: members for name, members in remaining.items() if members}
        return ModalityExperts(remaining, self.text if self.text in remaining else None)


@dataclass(frozen=True)
class Clip:
    """A part of a recording with its sentences, or a whole recording."""

    key: str
    start: float  # seconds
    stop: float
    sentences: tuple[int, ...]  # its segments that have a sentence
    fields: dict[str, str]  # what captions say besides


@dataclass
class FeatureSet:
    """The content of a meta file, and which experts belong to which modality."""

    modalities: ModalityExperts
    meta: dict[str, dict[str, Any]] = field(default_factory=dict)  # COOT's meta file
    stored: str = "float16"  # number type of the rows
    as_arrays: bool = False  # whether a clip may have several sentences, or none, which COOT's layout cannot hold

    @property
    def two_level(self) -> bool:
        """Whether any recording has several clips, each with its own sentence, in COOT's layout."""
        several = any(len(entry["segments"]) > 1 for entry in self.meta.values())
        return several and not self.as_arrays and self.modalities.text is not None

    @property
    def clips(self) -> int:
        """The number of segments."""
        return sum(len(entry["segments"]) for entry in self.meta.values())

    def clips_of(self, key: str) -> list[Clip]:
        """The clips of an entry: its segments. As arrays, segments of the same seconds are one clip."""
        parts: dict[Any, list[int]] = {}
        segments = self.meta[key]["segments"]
        for number, segment in enumerate(segments):
            seconds = segment["start_sec"], segment["stop_sec"]
            parts.setdefault(seconds if self.as_arrays else number, []).append(number)
        return [
            Clip(
                f"{key}/{number}" if len(parts) > 1 else key,
                segments[own[0]]["start_sec"],
                segments[own[0]]["stop_sec"],
                tuple(one for one in own if segments[one]["text"]),
                segments[own[0]].get("fields", {}),
            )
            for number, own in enumerate(parts.values())
        ]

    def count(self, split: str) -> tuple[int, int]:
        """The number of recordings and of clips in a split."""
        keys = [key for key, entry in self.meta.items() if entry["split"] == split]
        return len(keys), sum(len(self.clips_of(key)) for key in keys)


def choose_modalities(experts: Sequence[Expert], named: Mapping[str, Sequence[str]] | None = None) -> ModalityExperts:
    """Divide the experts into modalities: the ``named`` ones, and ``video``, ``audio`` and ``text`` for all others.

    If all experts would belong to one modality, each is a modality of its own.

    Args:
        experts: the experts.
        named: names of experts by modality.

    Raises:
        ExpertError: a modality names an expert that is not there, or mixes sentences with something else.
    """
    needs = {expert.name: expert.needs.kind for expert in experts}
    given = {name: list(members) for name, members in (named or {}).items()}
    for name, members in given.items():
        if unknown := [label for label in members if label not in needs]:
            raise ExpertError(f"modality {name!r}: expert {unknown[0]!r} is not among {', '.join(needs)}")
    taken = {label for members in given.values() for label in members}
    modalities: dict[str, list[str]] = {}
    for label, kind in needs.items():
        if label not in taken:
            modalities.setdefault(FAMILIES.get(kind, "video"), []).append(label)
    if given.keys() & modalities.keys():
        both = next(iter(given.keys() & modalities.keys()))
        raise ExpertError(f"modality {both!r} is also the one of {', '.join(modalities[both])}; choose another name")
    modalities = given | modalities
    if list(modalities) in (["video"], ["audio"]) and not given and len(needs) > 1:
        modalities = {label: [label] for label in needs}
    texts = {
        name: members for name, members in modalities.items() if any(needs[label] == "tokens" for label in members)
    }
    if len(texts) > 1 or any(needs[label] != "tokens" for members in texts.values() for label in members):
        raise ExpertError(f"experts of sentences must be one modality of their own, got {texts}")
    text = next(iter(texts), None)
    return ModalityExperts({name: modalities[name] for name in sorted(modalities, key=lambda name: name == text)}, text)


def segments_within(point: Datapoint, duration: float, name: str) -> tuple[Segments, list[Omission]]:
    """The segments of a datapoint that lie in its recording, and a problem for each of the others."""
    inside, problems = [], []
    for number, segment in enumerate(point.segments):
        try:
            start, stop = segment.within(duration)
        except ValueError as error:
            problems.append(Omission(name, f"segment {number} was omitted: {error}"))
            continue
        times = {"start_sec": round(start, 3), "stop_sec": round(min(stop, duration), 3)}
        inside.append({"text": segment.text, **times, **({"fields": segment.fields} if segment.fields else {})})
    return inside, problems


def build_dataset(
    points: Sequence[Datapoint],
    durations: Mapping[str, float],
    segments: Mapping[str, Segments],
    finished: Mapping[str, Collection[str]],
    modalities: ModalityExperts,
    fractions: Mapping[str, float] = FRACTIONS,
    keep_all: bool = False,
) -> FeatureSet:
    """The data set of everything that has rows in two modalities, or in the only one.

    Args:
        points: all datapoints.
        durations: seconds of each recording that was decoded.
        segments: the segments of each datapoint that lie in its recording.
        finished: for each expert the keys for which it has rows.
        modalities: which experts belong to which modality.
        fractions: share of each split, for datapoints without one.
        keep_all: one modality is enough, and all are for training.
    """
    no_times = all(segment.start is None and segment.stop is None for point in points for segment in point.segments)
    several = any(len(point.segments) > 1 for point in points)
    data = FeatureSet(modalities, as_arrays=keep_all or (several and no_times and modalities.text is not None))
    for point in points:
        recording = point.recording
        if recording not in durations or not segments.get(point.key):
            continue
        present = [
            any((point.key if name == modalities.text else recording) in finished[label] for label in members)
            for name, members in modalities.experts.items()
        ]
        if sum(present) >= (1 if keep_all else min(2, len(present))):
            data.meta[point.key] = {
                "data_key": recording,
                "duration_sec": round(durations[recording], 6),
                "split": "train" if keep_all else point.split or "",
                "segments": segments[point.key],
            }
    entries = list(data.meta.values())
    for name, places in draw_splits([entry["data_key"] for entry in entries], fractions).items():
        for place in places:
            entries[place]["split"] = entries[place]["split"] or name
    return data


def media_table(data: FeatureSet, files: Mapping[str, Path]) -> dict[str, Any]:
    """Clip -> file and seconds, for ``crossclr index --media``."""
    table: dict[str, Any] = {}
    for key, entry in data.meta.items():
        file = str(files[entry["data_key"]].resolve())
        for clip in data.clips_of(key):
            fields = {"fields": clip.fields} if clip.fields else {}
            table[clip.key] = {"file": file, "start": clip.start, "stop": clip.stop, **fields}
    return table


SMALL = 2000  # training clips; below this the model is small


def coot_section(data: FeatureSet, out: Path) -> dict[str, Any]:
    """The section ``data`` of a config for COOT's layout."""
    files = {name: [f"{expert}.h5" for expert in members] for name, members in data.modalities.experts.items()}
    text = data.modalities.text
    names = [name for name in files if name != text]
    if text is not None:
        names.insert(1, text)
    section: dict[str, Any] = {
        "kind": "coot",
        "root": str(out.resolve()),
        "video": files[names[0]],
        "text": files[names[1]],
        "names": names[:2],
        "two_level": data.two_level,
        "add_stop_frame": 0,
        "expand_segments": 1,
    }
    if names[2:]:
        section["also"] = {name: files[name] for name in names[2:]}
    return section | ({"cut_text_by": "times"} if text is None else {})


def shared_space(experts: Sequence[Expert], modalities: ModalityExperts, every: bool = False) -> ZeroShot | None:
    """The space in which images, videos or sounds meet texts before any caption; None if the experts share none.

    A modality of several joined experts has no part in it. With ``every``, the other modalities lie in channels of
    their own, so that similar files are found.
    """
    alone = {members[0]: name for name, members in modalities.experts.items() if len(members) == 1}
    found = {alone[expert.name]: expert for expert in experts if expert.name in alone and expert.space}
    text = found.get(modalities.text or "")
    sharing = {name: expert for name, expert in found.items() if text is not None and expert.space == text.space}
    dims = {expert.name: expert.dim for expert in experts}
    others = {
        name: sum(dims[label] for label in members)
        for name, members in modalities.experts.items()
        if name not in sharing
    }
    if text is None or (len(sharing) < 2 and not every):
        return None
    about = "names of classes" if text.model == MINILM else text.model
    space = ZeroShot({name: expert.tower() for name, expert in sharing.items()}, about)
    return space.beside(others) if every and others else space


def training_config(
    data: FeatureSet, section: Mapping[str, Any], name: str, zero_shot: Path | None = None, keep_all: bool = False
) -> str:
    """The text of a config whose model and loss follow from the number of training clips.

    The recipe is `best`: closed form and trained encoders, chosen by cross-fitting. Below 2,000 training clips the
    encoders are MLPs over pooled rows. From 2,000 on they are the paper's model, with the paper's loss.

    Args:
        data: the data set.
        section: the section ``data`` of the config.
        name: name of the run.
        zero_shot: file of the shared space.
        keep_all: the closed form alone, which is fitted in seconds whenever something changes.
    """
    recordings, clips = data.count("train")
    two_level = data.two_level
    samples = recordings if two_level else clips
    batch = max(2, min(64, samples))
    clips_at_once = max(2, round(batch * clips / max(recordings, 1))) if two_level else batch
    epochs = min(40, max(20, math.ceil(400 / max(1, math.ceil(samples / batch)))))
    encoder = {"kind": "mlp", "sequence_pooling": "mean", "blocks": 1, "dropout": 0.2, "input_norm": "l2"}
    loss = _loss(clips, clips_at_once)
    validate = "val" if data.count("val")[0] else None
    values: dict[str, Any] = {
        "name": name,
        "recipe": "closed-form" if keep_all else "best",
        "data": dict(section),
        "splits": {"train": "train", "validate": validate, "test": "test" if data.count("test")[0] else None},
        "model": {"dim": 256, "encoder": encoder} if clips < SMALL else {"dim": 384},
        "loss": {"local": loss, "global": _without_queue(loss) if two_level else None},
        "optimiser": {"name": "adamw", "learning_rate": 1e-3, "betas": [0.9, 0.98], "weight_decay": 0.05},
        "schedule": {"name": "cosine", "warmup_epochs": 2},
        "training": {"epochs": epochs, "batch_size": batch},
    }
    if zero_shot is not None:
        values["zero_shot"] = str(zero_shot.resolve())
    if validate is not None:
        values["validation"] = {"every": 1}
    head = "# Written by `crossclr extract`. If you move the folder, change data.root.\n"
    return head + yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def _without_queue(loss: Mapping[str, Any]) -> dict[str, Any]:
    return {**loss, "queue_size": 0} if "queue_size" in loss else dict(loss)


def _loss(clips: int, clips_at_once: int) -> dict[str, Any]:
    if clips < SMALL:
        return {"name": "clip", "temperature": 0.1, "learnable": False}
    return {
        "name": "crossclr",
        "temperature": 0.03,
        "intra_weight": 0.8,
        "prune_threshold": 0.9,
        "prune_by": "quantile",
        # Weights are a softmax over the batch, so their effect depends on its size; the paper uses 0.0035 at 500 clips.
        "weight_scale": round(0.0035 * 500 / clips_at_once, 4),
        "queue_size": min(5000, clips // 2),
    }
