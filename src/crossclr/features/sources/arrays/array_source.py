"""Data as plain arrays: one vector or one sequence for each sample and modality, on disk or in memory."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from crossclr.features.check.data_report import Finding, warn
from crossclr.features.errors import DataError
from crossclr.features.reading.parquet import ParquetSequences
from crossclr.features.reading.sampling import limit_rows
from crossclr.features.reading.sequences import JoinedSequences, as_sequences, is_gap
from crossclr.features.sample import Content, Sample
from crossclr.features.source import Source
from crossclr.features.sources.splits import SplitKeys

LARGE_ROW_GROUP = 10_000


class ArraySource(Source):
    """An array for each modality. Samples may lack modalities, and may have several rows of one (several sentences).

    Args:
        arrays: by modality (N, dim), (N, rows, dim), a list of (rows, dim) arrays, or opened sequences. None in a list
            or a row of NaN marks a sample that lacks the modality.
        ids: by modality, the key of each row, unique in the first modality. None or not given: the keys of the first
            modality, whose default is the row number as text.
        splits: keys of each split; by default one split ``train`` with everything.
        texts: by modality, the sentence of each row, for people.
        groups: a coarse label of each sample (its parent video), by key.
        concepts: what each sample shows, by key; see `Sample`.
        max_frames: maximum number of rows of a sequence, for all modalities or by modality; longer ones are
            subsampled. None keeps all.
        unpaired: what to do with samples that only one modality has: ``error``, ``drop`` or ``keep``.
        split_names: additional names for unions of splits.
        split_parts: splits to cut into parts by share; samples of one group stay together.

    Raises:
        DataError: two modalities have no sample in common, or the arrays, ids and splits do not fit each other.

    Example:
        >>> source = ArraySource({"image": np.ones((3, 4)), "text": np.zeros((3, 5, 2))})
        >>> source.dims, list(source.keys("train")), source.read("1")["text"].clips[0].shape
        ({'image': 4, 'text': 2}, ['0', '1', '2'], (5, 2))
    """

    def __init__(
        self,
        arrays: Mapping[str, Any],
        *,
        ids: Mapping[str, Sequence[str] | None] | None = None,
        splits: Mapping[str, Sequence[str]] | None = None,
        texts: Mapping[str, Sequence[str]] | None = None,
        groups: Mapping[str, str] | None = None,
        concepts: Mapping[str, str] | None = None,
        max_frames: int | Mapping[str, int | None] | None = 80,
        unpaired: str = "error",
        split_names: Mapping[str, Sequence[str]] | None = None,
        split_parts: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        if len(arrays) < 2:
            raise DataError(f"at least two modalities are needed, got {', '.join(arrays) or 'none'}")
        given, words = ids or {}, texts or {}
        for argument, names in (("ids", given), ("texts", words)):
            if unknown := set(names) - set(arrays):
                raise DataError(f"{argument} names {min(unknown)!r}, but the modalities are {', '.join(arrays)}")
        self._modalities = {
            name: _Modality(name, values, given.get(name), words.get(name)) for name, values in arrays.items()
        }
        self.dims = {name: modality.values.dim for name, modality in self._modalities.items()}
        limits = max_frames if isinstance(max_frames, Mapping) else dict.fromkeys(arrays, max_frames)
        self.limits: dict[str, int | None] = {name: limits.get(name) for name in arrays}
        _match_rows(self._modalities)
        first = next(iter(self._modalities.values()))
        if len(set(first.keys_of_rows())) < len(first.values):
            twice = next(key for key, count in Counter(first.keys_of_rows()).items() if count > 1)
            raise DataError(f"{first.path}: id {twice!r} occurs twice; the ids of the first modality must be unique")
        self._number = {key: place for place, key in enumerate(self._all_keys())}
        for modality in self._modalities.values():
            modality.assign(self._number)
        self.unpaired = self._find_unpaired(unpaired)
        dropped = set(self.unpaired) if unpaired != "keep" else set()
        self._names = [key for key in self._number if key not in dropped]
        self._groups, self._concepts = groups or {}, concepts or {}
        keys = {"train": self._names} if splits is None else self._check_splits(splits, dropped)
        self._keys = SplitKeys(keys, split_parts, split_names, self._groups)
        self.splits = self._keys.names

    def keys(self, split: str) -> Sequence[str]:
        """Keys of a split, in the order of the splits' own lists."""
        return self._keys[split]

    def read(self, key: str, rng: np.random.Generator | None = None) -> Sample:
        """One sample: all its sentences, or with a generator one of them at random."""
        number = self._number.get(key)
        if number is None:
            raise DataError(f"{self._path}: there is no sample {key!r}")
        chosen = {name: modality.rows_of(number) for name, modality in self._modalities.items()}
        if rng is not None:  # first all choices of sentences, then those of frames
            chosen = {n: [rows[int(rng.integers(len(rows)))]] if len(rows) > 1 else rows for n, rows in chosen.items()}
        contents = {}
        for name, rows in chosen.items():
            modality, limit = self._modalities[name], self.limits[name]
            read = [(row, values) for row in rows if (values := modality.values.read(row, key)) is not None]
            if read:
                clips = [limit_rows(values, limit, rng) for _, values in read]
                words = () if modality.texts is None else tuple(modality.texts[row] for row, _ in read)
                contents[name] = Content(clips, (0,) * len(clips), texts=words)
        group, concept = str(self._groups.get(key, "")), str(self._concepts.get(key, ""))
        return Sample(key, contents, clip_count=1, group=group, concepts=(concept,) if concept else ())

    def missing_experts(self, key: str) -> list[Path]:
        """Files of joined experts that have no rows for a sample, so that their channels are zero."""
        number = self._number[key]
        return [
            path
            for modality in self._modalities.values()
            for row in modality.rows_of(number)
            for path in modality.values.missing(row)
        ]

    def present(self, split: str) -> dict[str, npt.NDArray[np.bool_]]:
        """By modality, which samples of a split have it."""
        numbers = np.array([self._number[key] for key in self.keys(split)], dtype=np.int64)
        return {name: modality.counts[numbers] > 0 for name, modality in self._modalities.items()}

    def audit(self) -> list[Finding]:
        """Samples that are not used, and Parquet files that are slow to read."""
        findings = []
        if dropped := [key for key in self.unpaired if key not in self._names]:
            findings.append(warn("unpaired", "{count} keys are in one modality only and were dropped", dropped))
        used = {key for split in self.splits for key in self.keys(split)}
        if idle := [name for name in self._names if name not in used]:
            findings.append(warn("no-split", f"{self._path}: {{count}} samples are in no split", idle))
        for expert in (expert for modality in self._modalities.values() for expert in modality.values.experts):
            if isinstance(expert, ParquetSequences) and expert.largest_group > LARGE_ROW_GROUP:
                message = (
                    f"{expert.path}: row groups of {expert.largest_group:,} rows make random reading slow; write it "
                    "with row_group_size=1000"
                )
                findings.append(Finding("warning", "large-row-groups", message))
        return findings

    @property
    def _path(self) -> Path:
        return next(iter(self._modalities.values())).path

    def _all_keys(self) -> list[str]:
        return list(dict.fromkeys(key for modality in self._modalities.values() for key in modality.keys_of_rows()))

    def _find_unpaired(self, how: str) -> tuple[str, ...]:
        """Keys that only one modality has."""
        has = np.stack([modality.counts > 0 for modality in self._modalities.values()])  # (modalities, keys)
        keys = list(self._number)
        alone = [keys[place] for place in np.flatnonzero(has.sum(0) < 2)]
        if not has.any(0).all() and (how != "drop" or len(alone) == len(keys)):
            lacking = keys[int(has.any(0).argmin())]
            raise DataError(f"{self._path}: sample {lacking!r} has no modality; drop it, or set unpaired=drop")
        if alone and (how == "error" or len(alone) == len(keys)):
            own = next(m for m in self._modalities.values() if m.counts[self._number[alone[0]]])
            raise DataError(
                f"{own.path}: {len(alone)} keys are in one modality only (first: {alone[0]!r}, in {own.name}); correct "
                "the ids, omit such keys with unpaired=drop, or keep them with unpaired=keep"
            )
        return tuple(alone)

    def _check_splits(self, splits: Mapping[str, Sequence[str]], dropped: set[str]) -> dict[str, list[str]]:
        keys: dict[str, list[str]] = {}
        for split, members in splits.items():
            listed = [str(name) for name in members]
            unknown = [name for name in listed if name not in self._number]
            if unknown:
                raise DataError(
                    f"split {split!r} names {len(unknown)} keys that {self._path} does not have "
                    f"(first: {unknown[0]!r}); the splits belong to other data"
                )
            keys[split] = [name for name in listed if name not in dropped]
        return keys


class _Modality:
    """The rows of one modality, and which samples they belong to."""

    def __init__(self, name: str, values: Any, ids: Sequence[str] | None, texts: Sequence[str] | None) -> None:
        self.name, self.texts = name, texts
        self.values, absent = _opened(values, name)
        self.path = self.values.experts[0].path
        if ids is not None and len(ids) != len(self.values):
            raise DataError(f"{self.path}: {len(self.values)} rows but {len(ids)} ids")
        if texts is not None and len(texts) != len(self.values):
            raise DataError(f"there are {len(texts)} texts but {name} has {len(self.values)} rows")
        self.ids = None if ids is None else [str(key) for key in ids]
        self.absent = absent  # rows that only mark a gap
        self._order: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self.counts: npt.NDArray[np.int64] = np.zeros(0, np.int64)

    def keys_of_rows(self) -> list[str]:
        """The key of each row."""
        return self.ids if self.ids is not None else [str(row) for row in range(len(self.values))]

    def assign(self, numbers: Mapping[str, int]) -> None:
        """Sort the rows by the number of their sample."""
        number = np.array([numbers[key] for key in self.keys_of_rows()], dtype=np.int64)
        number[self.absent] = -1
        self._order = np.argsort(number, kind="stable")[len(self.absent) :]
        self.counts = np.bincount(number[number >= 0], minlength=len(numbers))
        self._starts = np.cumsum(self.counts) - self.counts

    def rows_of(self, number: int) -> list[int]:
        """The rows of a sample."""
        start = int(self._starts[number])
        rows: list[int] = self._order[start : start + int(self.counts[number])].tolist()
        return rows


def _match_rows(modalities: Mapping[str, _Modality]) -> None:
    """Modalities without ids are matched by row with the first modality."""
    like, *others = modalities.values()
    for modality in (other for other in others if other.ids is None):
        if len(modality.values) != len(like.values):
            raise DataError(
                f"{modality.path}: {len(modality.values)} rows but {like.path} has {len(like.values)}; match them by "
                "id, or give arrays with equal numbers of rows"
            )
        modality.ids = like.ids


def _opened(values: Any, name: str) -> tuple[JoinedSequences, npt.NDArray[np.int64]]:
    """Sequences, and the rows that are NaN or None: gaps."""
    if isinstance(values, list | tuple) and any(value is None for value in values):
        known = next((np.asarray(value) for value in values if value is not None), None)
        if known is None:
            raise DataError(f"no sample has {name}; omit the modality")
        values = [np.full(known.shape[-1], np.nan) if value is None else value for value in values]
    if isinstance(values, JoinedSequences):  # files: what is NaN is found when it is read
        return values, np.zeros(0, np.int64)
    sequences = as_sequences(values, f"array {name}")
    gaps = [row for row in range(len(sequences)) if is_gap(np.asarray(sequences.rows(row)))]
    return JoinedSequences([sequences], [np.arange(len(sequences))]), np.array(gaps, dtype=np.int64)
