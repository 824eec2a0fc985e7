"""From a config of arrays to a source."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from crossclr.features.errors import DataError
from crossclr.features.reading.file_places import open_sequences, read_values
from crossclr.features.reading.sequences import JoinedSequences, Sequences
from crossclr.features.sample import same_words
from crossclr.features.sources.arrays.array_source import ArraySource
from crossclr.features.sources.arrays.arrays_config import ArrayModality, ArraysConfig
from crossclr.features.sources.splits import split_by_fraction


def open_arrays(config: ArraysConfig) -> ArraySource:
    """Open data given as arrays."""
    opened = {
        name: _open_modality(config, modality, f"modalities.{name}") for name, modality in config.modalities.items()
    }
    values = {name: found[0] for name, found in opened.items()}
    first = next(iter(values))
    names = opened[first][1] or [str(row) for row in range(len(values[first]))]
    ids = {name: found[1] or names for name, found in opened.items()}  # rows without ids are those of the first
    texts = {}
    for name, modality in config.modalities.items():
        words = _texts(config, modality, f"modalities.{name}.texts", ids[name])
        if words is not None:
            texts[name] = words
    groups = _by_key(_column(config, config.groups, "groups"), names, "groups", first)
    every = list(dict.fromkeys(key for keys in ids.values() for key in keys))
    return ArraySource(
        values,
        ids={name: found[1] for name, found in opened.items()},
        splits=_splits(config, names, every, groups, first),
        texts=texts,
        groups=groups,
        concepts=_concepts(config, names, texts, ids, first),
        max_frames={name: modality.max_frames for name, modality in config.modalities.items()},
        unpaired=config.unpaired,
        split_names=config.split_names,
        split_parts=config.split_parts,
    )


def _concepts(
    config: ArraysConfig,
    names: Sequence[str],
    texts: Mapping[str, Sequence[str]],
    ids: Mapping[str, Sequence[str]],
    first: str,
) -> Mapping[str, str] | None:
    """What each sample shows: labels from a place, or its first sentence, whatever its case and spaces."""
    if not isinstance(config.concepts, dict):
        return _by_key(_column(config, config.concepts, "concepts"), names, "concepts", first)
    if not texts:
        raise DataError("data.concepts is {from: text}, but no modality has texts; set modalities.NAME.texts")
    name, sentences = next(iter(texts.items()))
    found: dict[str, str] = {}
    for key, sentence in zip(ids[name], sentences, strict=True):
        found.setdefault(key, same_words(sentence))
    return found


def _column(config: ArraysConfig, place: str | None, option: str, values: str = "") -> Any:
    """The content of a place, or None."""
    if place is None:
        return None
    path, name = _place(config, place, option, values)
    return read_values(path, name)


def _place(config: ArraysConfig, place: str, option: str, values: str = "") -> tuple[Path, str | None]:
    file, _, name = place.partition("#")
    return config.resolve(file or values.partition("#")[0], option), name or None


def _open_modality(
    config: ArraysConfig, modality: ArrayModality, option: str
) -> tuple[JoinedSequences, list[str] | None]:
    """The aligned experts of a modality, and the key of each of its samples if there are ids."""
    opened: list[Sequences] = []
    keys: list[list[str] | None] = []
    for expert in modality.arrays:
        path, name = _place(config, expert.values, f"{option}.values")
        lengths = _column(config, expert.lengths, f"{option}.lengths", expert.values)
        sequences = open_sequences(path, name, None if lengths is None else np.asarray(lengths))
        ids = _column(config, expert.ids, f"{option}.ids", expert.values)
        if ids is not None and len(ids) != len(sequences):
            raise DataError(f"{path}: {len(sequences)} samples but {len(ids)} ids in {expert.ids} (data.{option}.ids)")
        opened.append(sequences)
        keys.append(None if ids is None else [str(value) for value in ids])
    if all(ids == keys[0] for ids in keys):  # also if no expert has ids
        return _same_rows(opened), keys[0]
    listed = [ids for ids in keys if ids is not None]
    if len(listed) != len(keys) or any(len(set(ids)) != len(ids) for ids in listed):
        raise DataError(
            f"data.{option}: the joined arrays cannot be aligned; every one needs the same ids in the same order, or "
            "each id only once"
        )
    names = list(dict.fromkeys(name for ids in listed for name in ids))
    return JoinedSequences(opened, [_rows_of(names, ids) for ids in listed]), names


def _same_rows(opened: Sequence[Sequences]) -> JoinedSequences:
    for sequences in opened:
        if len(sequences) != len(opened[0]):
            raise DataError(
                f"{sequences.path}: {len(sequences)} samples but {opened[0].path} has {len(opened[0])}; give both ids"
            )
    return JoinedSequences(opened, [np.arange(len(opened[0]))] * len(opened))


def _rows_of(names: Sequence[str], ids: Sequence[str]) -> npt.NDArray[np.int64]:
    row = {name: number for number, name in enumerate(ids)}
    return np.array([row.get(name, -1) for name in names], dtype=np.int64)


def _by_key(values: Any, names: Sequence[str], option: str, modality: str) -> dict[str, str] | None:
    """A column as key -> value."""
    if values is None or isinstance(values, Mapping):
        return None if values is None else {str(key): str(value) for key, value in values.items()}
    if len(values) != len(names):
        raise DataError(f"data.{option} has {len(values)} values but {modality} has {len(names)} samples")
    return {name: str(value) for name, value in zip(names, values, strict=True)}


def _splits(
    config: ArraysConfig, names: Sequence[str], every: Sequence[str], groups: Mapping[str, str] | None, first: str
) -> dict[str, list[str]] | None:
    found = _column(config, config.splits, "splits")
    if found is None:
        return None if config.split_fractions is None else split_by_fraction(every, config.split_fractions, groups)
    if config.split_fractions is not None:
        raise DataError("data.splits and data.split_fractions exclude each other; remove one of them")
    if isinstance(found, Mapping) and all(isinstance(members, list) for members in found.values()):
        return {split: [str(name) for name in members] for split, members in found.items()}
    splits: dict[str, list[str]] = {}
    for name, split in (_by_key(found, names, "splits", first) or {}).items():
        splits.setdefault(split, []).append(name)
    return splits


def _texts(config: ArraysConfig, modality: ArrayModality, option: str, owners: Sequence[str]) -> list[str] | None:
    """The sentence of each row of a modality."""
    found = _column(config, modality.texts, option)
    if found is None or not isinstance(found, Mapping):
        return found if found is None else [str(text) for text in found]
    left = {key: iter([value] if isinstance(value, str) else value) for key, value in found.items()}
    texts = []
    for row, owner in enumerate(owners):
        text = next(left.get(owner, iter(())), None)
        if text is None:
            raise DataError(f"data.{option} ({modality.texts}) has too few sentences for {owner!r}, row {row}")
        texts.append(str(text))
    return texts
