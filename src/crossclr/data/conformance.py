"""What every data set must fulfil; run it on your own data."""

from typing import Any

import numpy as np

from crossclr.data.dataset import Dataset
from crossclr.data.sample import Sample, clip_keys
from crossclr.errors import DataError

CHECKED = 8  # samples of a data set


def check_dataset(data: Dataset) -> None:
    """Check that a data set keeps the contract that training, evaluation and search build on.

    Raises:
        DataError: it does not; the message says what differs.

    Example:
        >>> check_dataset(Dataset.from_arrays({"image": np.eye(6), "text": np.eye(6)}))
    """
    keys = list(data.keys)
    _need(len(set(keys)) == len(keys) == len(data), "every sample needs a key of its own")
    _need(data.dims.keys() == data.clips.keys() and min(data.dims.values()) > 0, f"wrong dims {data.dims}")
    _need(set(data.splits) <= set(data.splits_of.places), "a split without samples is listed")
    for split in data.splits_of.places:
        chosen = data.where(split=split)
        _need(list(chosen.where(split=split).keys) == list(chosen.keys), f"{split}: choosing it twice differs")
        _need(sorted(np.asarray(chosen.order(3, 1)).tolist()) == list(range(len(chosen))), f"{split}: no permutation")
        _need(list(chosen.order(3, 1)) == list(chosen.order(3, 1)), f"{split}: the order of an epoch changes")
    places = np.unique(np.linspace(0, len(data) - 1, CHECKED).astype(int)).tolist()
    present = data.present()
    for place in places:
        sample = data[place]
        _check_sample(data, sample, keys[place])
        _check_equal(sample, data[place], "reading it twice")
        _check_equal(sample, data.where(keys=[keys[place]])[0], "choosing it by key")
        if present is not None:
            lacking = {name for name in data.dims if not present[name][place]}
            _need(not lacking & sample.modalities.keys(), f"{keys[place]!r} has {lacking}, which are not present")
    _check_batches(data, places)


def _need(fulfilled: Any, message: str) -> None:
    if not fulfilled:
        raise DataError(f"a data set breaks its contract: {message}")


def _check_sample(data: Dataset, sample: Sample, key: str) -> None:
    _need(sample.modalities, f"{key!r} has no modality")
    _need(list(sample.modalities) == [name for name in data.dims if name in sample.modalities], "order of modalities")
    _need(len(sample.concepts) in (0, sample.clip_count), f"{key!r}: one concept for each clip is needed")
    for name, content in sample.modalities.items():
        _need(len(content.clips) == len(content.clip_of), f"{key!r}: {name} has clips without a number")
        _need(set(content.clip_of) <= set(range(sample.clip_count)), f"{key!r}: {name} names a clip that is not there")
        _need(len(content.texts) in (0, len(content.clips)), f"{key!r}: {name} needs one text for each sequence")
        _need((content.whole is not None) == data.two_level, f"{key!r}: rows of the whole video, or none")
        for rows in content.clips:
            _need(rows.shape[1:] == (data.dims[name],) and len(rows), f"{key!r}: {name} has shape {rows.shape}")
            _need(rows.dtype == np.float32 and np.isfinite(rows).all(), f"{key!r}: {name} must be finite float32")


def _check_equal(sample: Sample, other: Sample, how: str) -> None:
    same = (sample.key, sample.clip_count, sample.group) == (other.key, other.clip_count, other.group)
    _need(same, f"{sample.key!r}: {how} gives another sample")
    _need(sample.modalities.keys() == other.modalities.keys(), f"{sample.key!r}: {how} gives other modalities")
    for name, content in sample.modalities.items():
        _need(content.clip_of == other[name].clip_of, f"{sample.key!r}: {how} gives other clips of {name}")
        rows = map(np.array_equal, content.clips, other[name].clips)
        _need(all(rows), f"{sample.key!r}: {how} gives other rows of {name}")


def _check_batches(data: Dataset, places: list[int]) -> None:
    names = [data[place].key for place in places]
    batch = data.__getitems__(places)
    _need(list(batch.keys) == names, "a batch has its samples in the order of the places")
    clips = [name for place in places for name in clip_keys(data[place].key, data[place].clip_count)]
    for name in data.dims:
        _need(len(batch.present[name]) == len(clips) == len(batch.ids), f"{name}: presence of every clip")
        _need(len(batch.inputs[name].clips) == int(batch.present[name].sum()), f"{name}: one sequence for each clip")
    drawn = [data.training(seed=3, epoch=epoch).__getitems__(places) for epoch in (1, 1)]
    for name in data.dims:
        first, again = (one.inputs[name].clips for one in drawn)
        _need(first.values.equal(again.values), f"{name}: an epoch must draw the same rows again")
        alone = data.training(seed=3, epoch=1).__getitems__(places[-1:]).inputs[name].clips
        _need(
            first.values[len(first.values) - len(alone.values) :].equal(alone.values),
            (f"{name}: what a sample draws must not depend on the other samples of its batch"),
        )
