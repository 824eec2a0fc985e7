"""The fingerprint of a data set: what a run remembers of its data, to notice that it changed.

A fingerprint holds the number of samples and a digest of the keys of each split, and for some samples of each split the
size and a weighted sum of all rows of each modality.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from crossclr.data.dataset import Dataset
from crossclr.data.sample import Sample
from crossclr.errors import DataError

SAMPLED = 32  # samples of a split that are read
MOST_KEYS = 200_000  # of a larger split, as many keys spread evenly count
TOLERANCE = 1e-4  # of the length of the rows; another machine may round differently

Fingerprint = dict[str, dict[str, Any]]


def fingerprint(data: Dataset, splits: Sequence[str]) -> Fingerprint:
    """The fingerprint of some splits."""
    found: Fingerprint = {}
    for split in splits:
        samples = data.where(split=split)
        keys = samples.keys
        found[split] = {
            "samples": len(keys),
            "keys": _digest_of_keys(keys),
            "sampled": {keys[place]: _sketches(samples[place]) for place in _spread(len(keys), SAMPLED)},
        }
    return found


def data_changes(before: Mapping[str, Any], data: Dataset) -> list[str]:
    """What differs between a fingerprint and the data, in words; empty if nothing does."""
    found = []
    for split, facts in before.items():
        if not _complete(facts):
            found.append(f"split {split!r}: its stored fingerprint is damaged")
            continue
        try:
            found += [f"split {split!r}: {change}" for change in _split_changes(facts, data.where(split=split))]
        except DataError as error:
            found.append(f"split {split!r}: {error}")
    return found


def _complete(facts: Any) -> bool:
    kinds = {"samples": int, "keys": str, "sampled": dict}
    whole = isinstance(facts, dict) and all(isinstance(facts.get(name), kind) for name, kind in kinds.items())
    return whole and all(isinstance(sketches, dict) for sketches in facts["sampled"].values())


def _split_changes(facts: Mapping[str, Any], data: Dataset) -> Iterator[str]:
    keys = data.keys
    if len(keys) != facts["samples"]:
        yield f"it has {len(keys):,} samples, not {facts['samples']:,}"
    elif _digest_of_keys(keys) != facts["keys"]:
        yield "it has other keys, or its keys are in another order"
    changed: dict[str, list[str]] = {}
    for key, sketches in facts["sampled"].items():
        try:
            chosen = data.where(keys=[key])
        except DataError:
            continue  # the keys have been reported
        now = _sketches(chosen[0])
        for part in {**sketches, **now}:
            if not _similar(sketches.get(part), now.get(part)):
                changed.setdefault(part, []).append(key)
    for part, names in changed.items():
        yield f"{part} of {len(names)} of {len(facts['sampled'])} sampled samples changed (first: {names[0]!r})"


def _spread(count: int, most: int) -> list[int]:
    places: list[int] = np.unique(np.linspace(0, max(count - 1, 0), min(most, count)).astype(np.int64)).tolist()
    return places


def _digest_of_keys(keys: Sequence[str]) -> str:
    listed = [keys[place] for place in _spread(len(keys), MOST_KEYS)]
    return hashlib.blake2b("\0".join(listed).encode(), digest_size=16).hexdigest()


def _sketches(sample: Sample) -> dict[str, list[float]]:
    """For each modality of a sample: number of values, their weighted sum and their length."""
    found = {}
    for name, content in sample.modalities.items():
        parts = [*content.clips, *([] if content.whole is None else [content.whole])]
        flat = np.concatenate([part.ravel() for part in parts]).astype(np.float64)
        weights = np.cos(np.arange(len(flat)))  # a sum without weights would not notice another order
        absent = np.isnan(flat)  # rows that an expert does not have
        flat[absent] = 0
        found[name] = [len(flat) - int(absent.sum()), float(weights @ flat), float(np.sqrt(flat @ flat))]
    return found


def _similar(before: Sequence[float] | None, now: Sequence[float] | None) -> bool:
    if before is None or now is None or before[0] != now[0]:
        return False
    scale = max(before[2], now[2], 1e-30)
    return abs(before[1] - now[1]) <= TOLERANCE * scale and abs(before[2] - now[2]) <= TOLERANCE * scale
