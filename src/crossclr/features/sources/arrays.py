"""Data as plain arrays: one vector or one sequence for each sample, on disk or in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from crossclr.features.check.findings import Finding, warn
from crossclr.features.errors import DataError
from crossclr.features.keys import stable_hash
from crossclr.features.reading.parquet import ParquetSequences
from crossclr.features.reading.sampling import limit_rows
from crossclr.features.reading.sequences import JoinedSequences, as_sequences
from crossclr.features.sample import Sample

LARGE_ROW_GROUP = 10_000


class ArraySource:
    """Pairs of two arrays; a sample of A may have several rows of B (several sentences for one clip).

    Args:
        a: modality A: (N, dim), (N, rows, dim), a list of (rows, dim) arrays, or opened sequences.
        b: modality B, likewise.
        ids: the key of each row of A; the row number as text where it is left out.
        owners: for each row of B the key of the sample it belongs to; left out, row i of B belongs to row i of A.
        splits: keys of each split; left out, there is one split ``train`` with everything.
        texts: the sentence of each row of B, for people.
        groups: a coarse label of each sample (its parent video), by key or by row of A.
        max_frames: longer sequences of A are sampled down to so many rows; None keeps all.
        max_frames_b: the same for B.
        unpaired: what to do with samples that only one side has: ``error`` or ``drop``.

    Example:
        >>> source = ArraySource(np.ones((3, 4)), np.zeros((3, 5, 2)))
        >>> source.dims, list(source.keys("train")), source.read("1").sentences[0].shape
        ((4, 2), ['0', '1', '2'], (5, 2))
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
    ) -> None:
        self.a, self.b = _joined(a, "a"), _joined(b, "b")
        self.max_frames, self.max_frames_b = max_frames, max_frames_b
        names = [str(name) for name in ids] if ids is not None else [str(row) for row in range(len(self.a))]
        owner_names = [str(name) for name in owners] if owners is not None else names
        self._check_counts(names, owner_names, owners is not None)
        self._number = {name: row for row, name in enumerate(names)}
        if len(self._number) != len(names):
            twice = next(name for row, name in enumerate(names) if self._number[name] != row)
            raise DataError(f"{self._path('a')}: id {twice!r} stands twice; the ids of modality A must be unique")
        self._order, self._offsets = self._rows_of_b(owner_names)
        self.unpaired: tuple[str, ...] = self._find_unpaired(names, unpaired)
        dropped = set(self.unpaired)
        self._names = [name for name in names if name not in dropped] if dropped else names
        if texts is not None and len(texts) != len(self.b):
            raise DataError(f"there are {len(texts)} texts but modality B has {len(self.b)} rows")
        self._texts = texts
        self._groups = _by_key(groups, names)
        self._keys = self._check_splits(splits, dropped) if splits is not None else {"train": self._names}
        self.splits: tuple[str, ...] = tuple(self._keys)

    @property
    def dims(self) -> tuple[int, int]:
        """Channels of both modalities."""
        return self.a.dim, self.b.dim

    @property
    def two_level(self) -> bool:
        """Arrays have one level."""
        return False

    def keys(self, split: str) -> Sequence[str]:
        """Keys of a split, in the order in which the splits name them."""
        if split not in self._keys:
            raise DataError(f"there is no split {split!r}; there are {', '.join(self._keys)}")
        return self._keys[split]

    def read(self, key: str, rng: np.random.Generator | None = None) -> Sample:
        """One sample: all its sentences, or with a generator one of them at random."""
        number = self._number.get(key)
        if number is None:
            raise DataError(f"{self._path('a')}: there is no sample {key!r}")
        rows_of_b = self._order[self._offsets[number] : self._offsets[number + 1]]
        if rng is not None and len(rows_of_b) > 1:
            rows_of_b = rows_of_b[[int(rng.integers(len(rows_of_b)))]]
        clip = limit_rows(self.a.read(number, key), self.max_frames, rng)
        sentences = [limit_rows(self.b.read(row, key), self.max_frames_b, rng) for row in rows_of_b.tolist()]
        return Sample(
            key,
            [clip],
            sentences,
            clip_of=(0,) * len(sentences),
            texts=() if self._texts is None else tuple(self._texts[row] for row in rows_of_b.tolist()),
            group=str(self._groups.get(key, "")),
        )

    def add_split_names(self, split_names: Mapping[str, Sequence[str]]) -> None:
        """Give names to unions of splits."""
        self._keys.update(
            {name: [key for part in parts for key in self.keys(part)] for name, parts in split_names.items()}
        )

    def add_split_parts(self, split_parts: Mapping[str, Mapping[str, float]]) -> None:
        """Cut splits into parts by share; samples of one group stay together."""
        for name, fractions in split_parts.items():
            self._keys.update(split_by_fraction(self.keys(name), fractions, self._groups))

    def missing_experts(self, key: str) -> list[Path]:
        """Files of joined experts that have nothing for a sample: their channels are zero."""
        number = self._number[key]
        rows_of_b = self._order[self._offsets[number] : self._offsets[number + 1]]
        return self.a.missing(number) + [path for row in rows_of_b.tolist() for path in self.b.missing(row)]

    def audit(self) -> list[Finding]:
        """What only arrays can tell: samples that are not used."""
        findings = []
        if self.unpaired:
            findings.append(warn("unpaired", "{count} keys are in one modality only and were dropped", self.unpaired))
        used = {key for split in self.splits for key in self._keys[split]}
        if idle := [name for name in self._names if name not in used]:
            findings.append(warn("no-split", f"{self._path('a')}: {{count}} samples are in no split", idle))
        for expert in (*self.a.experts, *self.b.experts):
            if isinstance(expert, ParquetSequences) and expert.largest_group > LARGE_ROW_GROUP:
                message = (
                    f"{expert.path}: row groups of {expert.largest_group:,} rows make random reading slow; write it"
                )
                findings.append(Finding("warning", "large-row-groups", f"{message} with row_group_size=1000"))
        return findings

    def _path(self, side: str) -> Path:
        return (self.a if side == "a" else self.b).experts[0].path

    def _check_counts(self, names: list[str], owners: list[str], by_id: bool) -> None:
        if len(names) != len(self.a):
            raise DataError(f"{self._path('a')}: {len(self.a)} rows but {len(names)} ids")
        if len(owners) != len(self.b):
            advice = (
                "one id is needed for each row"
                if by_id
                else "pair them by id, or give arrays with as many rows as each other"
            )
            raise DataError(f"{self._path('b')}: {len(self.b)} rows for {len(owners)} ids of modality A; {advice}")

    def _rows_of_b(self, owners: list[str]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Rows of B sorted by the number of their sample, and where each sample's rows start."""
        number = np.array([self._number.get(name, -1) for name in owners], dtype=np.int64)
        self._strangers = [owners[row] for row in np.flatnonzero(number < 0)]
        order = np.argsort(number, kind="stable")[len(self._strangers) :]
        counts = np.bincount(number[number >= 0], minlength=len(self._number))
        return order, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    def _find_unpaired(self, names: list[str], unpaired: str) -> tuple[str, ...]:
        alone = [names[row] for row in np.flatnonzero(np.diff(self._offsets) == 0)]
        strangers = list(dict.fromkeys(self._strangers))
        if unpaired != "drop" and (alone or strangers):
            have, lack, keys = ("a", "b", alone) if alone else ("b", "a", strangers)
            raise DataError(
                f"{self._path(have)}: {len(keys)} keys have no partner in {self._path(lack)} (first: {keys[0]!r}); "
                "correct the ids, or leave such keys out with unpaired=drop"
            )
        return tuple(alone + strangers)

    def _check_splits(self, splits: Mapping[str, Sequence[str]], dropped: set[str]) -> dict[str, list[str]]:
        keys: dict[str, list[str]] = {}
        for split, members in splits.items():
            listed = [str(name) for name in members]
            unknown = [name for name in listed if name not in self._number and name not in dropped]
            if unknown:
                raise DataError(
                    f"split {split!r} names {len(unknown)} keys that {self._path('a')} does not have "
                    f"(first: {unknown[0]!r}); the splits belong to other data"
                )
            keys[split] = [name for name in listed if name not in dropped]
        return keys


def split_by_fraction(
    keys: Sequence[str], fractions: Mapping[str, float], groups: Mapping[str, str] | None = None
) -> dict[str, list[str]]:
    """Splits drawn by a hash of each key (or of its group, so that a parent video stays in one split).

    A sample keeps its split when others are added or taken away.

    Example:
        >>> parts = split_by_fraction([str(n) for n in range(1000)], {"train": 0.8, "val": 0.2})
        >>> 750 < len(parts["train"]) < 850, len(parts["train"]) + len(parts["val"])
        (True, 1000)
    """
    total = sum(fractions.values())
    if not fractions or min(fractions.values()) < 0 or total <= 0:
        raise DataError(f"split fractions must be positive, got {dict(fractions)}")
    names, edges = list(fractions), np.cumsum(list(fractions.values())) / total
    parts: dict[str, list[str]] = {name: [] for name in names}
    for key in keys:
        place = stable_hash(f"split:{(groups or {}).get(key) or key}") / 2**63
        parts[names[min(int(np.searchsorted(edges, place, side="right")), len(names) - 1)]].append(key)
    return parts


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
