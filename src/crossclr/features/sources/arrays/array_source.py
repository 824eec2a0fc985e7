"""Data as plain arrays: one vector or one sequence for each sample, on disk or in memory."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from crossclr.features.check.data_report import Finding, warn
from crossclr.features.errors import DataError
from crossclr.features.reading.parquet import ParquetSequences
from crossclr.features.reading.sampling import limit_rows
from crossclr.features.reading.sequences import JoinedSequences, as_sequences
from crossclr.features.sample import Content, Sample
from crossclr.features.source import Source
from crossclr.features.sources.splits import SplitKeys

LARGE_ROW_GROUP = 10_000


class ArraySource(Source):
    """Pairs of two arrays; a sample of A may have several rows of B (several sentences for one clip).

    Args:
        a: first modality: (N, dim), (N, rows, dim), a list of (rows, dim) arrays, or opened sequences.
        b: second modality, in the same forms.
        ids: the key of each row of A; by default the row number as text.
        owners: for each row of B, the key of its sample; by default row i of B belongs to row i of A.
        splits: keys of each split; by default one split ``train`` with everything.
        texts: the sentence of each row of B, for people.
        groups: a coarse label of each sample (its parent video), by key or by row of A.
        max_frames: maximum number of rows of A; longer sequences are subsampled. None keeps all.
        max_frames_b: the same for B.
        unpaired: what to do with samples that only one modality has: ``error`` or ``drop``.
        split_names: additional names for unions of splits.
        split_parts: splits to cut into parts by share; samples of one group stay together.
        modalities: names of the two modalities.

    Example:
        >>> source = ArraySource(np.ones((3, 4)), np.zeros((3, 5, 2)), modalities=("image", "text"))
        >>> source.dims, list(source.keys("train")), source.read("1")["text"].clips[0].shape
        ({'image': 4, 'text': 2}, ['0', '1', '2'], (5, 2))
    """

    def __init__(
        self,
        a: Any,
        b: Any,
        *,
        ids: Sequence[str] | None = None,
        owners: Sequence[str] | None = None,
        splits: Mapping[str, Sequence[str]] | None = None,
        texts: Sequence[str] | None = None,
        groups: Mapping[str, str] | Sequence[str] | None = None,
        max_frames: int | None = 80,
        max_frames_b: int | None = None,
        unpaired: str = "error",
        split_names: Mapping[str, Sequence[str]] | None = None,
        split_parts: Mapping[str, Mapping[str, float]] | None = None,
        modalities: tuple[str, str] = ("a", "b"),
    ) -> None:
        self.a, self.b = _joined(a, "a"), _joined(b, "b")
        self.dims = dict(zip(modalities, (self.a.dim, self.b.dim), strict=True))
        self.max_frames, self.max_frames_b = max_frames, max_frames_b
        names = [str(name) for name in ids] if ids is not None else [str(row) for row in range(len(self.a))]
        owner_names = [str(name) for name in owners] if owners is not None else names
        self._check_counts(names, owner_names, owners is not None)
        self._number = {name: row for row, name in enumerate(names)}
        if len(self._number) != len(names):
            twice = next(name for row, name in enumerate(names) if self._number[name] != row)
            raise DataError(f"{_path(self.a)}: id {twice!r} occurs twice; the ids of the first modality must be unique")
        strangers = self._assign_rows(owner_names)
        self.unpaired = self._find_unpaired(names, strangers, unpaired == "drop")
        dropped = set(self.unpaired)
        self._names = [name for name in names if name not in dropped] if dropped else names
        if texts is not None and len(texts) != len(self.b):
            raise DataError(f"there are {len(texts)} texts but modality B has {len(self.b)} rows")
        self._texts = texts
        self._groups = _by_key(groups, names)
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
            raise DataError(f"{_path(self.a)}: there is no sample {key!r}")
        rows_of_b = self._rows_of_b(number)
        if rng is not None and len(rows_of_b) > 1:
            rows_of_b = [rows_of_b[int(rng.integers(len(rows_of_b)))]]
        clip = limit_rows(self.a.read(number, key), self.max_frames, rng)
        sentences = [limit_rows(self.b.read(row, key), self.max_frames_b, rng) for row in rows_of_b]
        texts = () if self._texts is None else tuple(self._texts[row] for row in rows_of_b)
        contents = (Content([clip]), Content(sentences, (0,) * len(sentences), texts=texts))
        found = dict(zip(self.dims, contents, strict=True))
        return Sample(key, found, clip_count=1, group=str(self._groups.get(key, "")))

    def missing_experts(self, key: str) -> list[Path]:
        """Files of joined experts that have no rows for a sample, so that their channels are zero."""
        number = self._number[key]
        return self.a.missing(number) + [path for row in self._rows_of_b(number) for path in self.b.missing(row)]

    def audit(self) -> list[Finding]:
        """Samples that are not used, and Parquet files that are slow to read."""
        findings = []
        if self.unpaired:
            findings.append(warn("unpaired", "{count} keys are in one modality only and were dropped", self.unpaired))
        used = {key for split in self.splits for key in self.keys(split)}
        if idle := [name for name in self._names if name not in used]:
            findings.append(warn("no-split", f"{_path(self.a)}: {{count}} samples are in no split", idle))
        for expert in (*self.a.experts, *self.b.experts):
            if isinstance(expert, ParquetSequences) and expert.largest_group > LARGE_ROW_GROUP:
                message = (
                    f"{expert.path}: row groups of {expert.largest_group:,} rows make random reading slow; write it "
                    "with row_group_size=1000"
                )
                findings.append(Finding("warning", "large-row-groups", message))
        return findings

    def _check_counts(self, names: list[str], owners: list[str], by_id: bool) -> None:
        if len(names) != len(self.a):
            raise DataError(f"{_path(self.a)}: {len(self.a)} rows but {len(names)} ids")
        if len(owners) != len(self.b):
            advice = "every row needs an id" if by_id else "pair them by id, or give arrays with equal numbers of rows"
            raise DataError(f"{_path(self.b)}: {len(self.b)} rows for {len(owners)} ids of modality A; {advice}")

    def _assign_rows(self, owners: list[str]) -> list[str]:
        """Sort the rows of B by the number of their sample; return the owners that are no sample."""
        number = np.array([self._number.get(name, -1) for name in owners], dtype=np.int64)
        strangers = [owners[row] for row in np.flatnonzero(number < 0)]
        self._order = np.argsort(number, kind="stable")[len(strangers) :]
        counts = np.bincount(number[number >= 0], minlength=len(self._number))
        self._offsets: npt.NDArray[np.int64] = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return list(dict.fromkeys(strangers))

    def _rows_of_b(self, number: int) -> list[int]:
        rows: list[int] = self._order[self._offsets[number] : self._offsets[number + 1]].tolist()
        return rows

    def _find_unpaired(self, names: list[str], strangers: list[str], drop: bool) -> tuple[str, ...]:
        alone = [names[row] for row in np.flatnonzero(np.diff(self._offsets) == 0)]
        if not drop and (alone or strangers):
            have, lack, keys = (self.a, self.b, alone) if alone else (self.b, self.a, strangers)
            raise DataError(
                f"{_path(have)}: {len(keys)} keys have no partner in {_path(lack)} (first: {keys[0]!r}); correct the "
                "ids, or omit such keys with unpaired=drop"
            )
        return tuple(alone + strangers)

    def _check_splits(self, splits: Mapping[str, Sequence[str]], dropped: set[str]) -> dict[str, list[str]]:
        keys: dict[str, list[str]] = {}
        for split, members in splits.items():
            listed = [str(name) for name in members]
            unknown = [name for name in listed if name not in self._number and name not in dropped]
            if unknown:
                raise DataError(
                    f"split {split!r} names {len(unknown)} keys that {_path(self.a)} does not have "
                    f"(first: {unknown[0]!r}); the splits belong to other data"
                )
            keys[split] = [name for name in listed if name not in dropped]
        return keys


def _path(sequences: JoinedSequences) -> Path:
    return sequences.experts[0].path


def _joined(values: Any, name: str) -> JoinedSequences:
    if isinstance(values, JoinedSequences):
        return values
    sequences = as_sequences(values, f"array {name}")
    return JoinedSequences([sequences], [np.arange(len(sequences))])


def _by_key(groups: Mapping[str, str] | Sequence[str] | None, names: Sequence[str]) -> Mapping[str, str]:
    if groups is None or isinstance(groups, Mapping):
        return groups or {}
    if len(groups) != len(names):
        raise DataError(f"there are {len(groups)} groups but modality A has {len(names)} rows")
    return dict(zip(names, groups, strict=True))
