"""Data as plain arrays: one vector or one sequence for each sample and modality, on disk or in memory."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from crossclr.data.array_files import ArrayRows, ParquetRows, open_sequences, read_plain_column
from crossclr.data.dataset import Dataset, Splits
from crossclr.data.info import TEXT, Info, as_texts, first_repeated, take_rows
from crossclr.data.kinds import ArrayConfig, ArrayModality, ArraysConfig
from crossclr.data.order import IntArray, Places, draw_splits, places_of_splits
from crossclr.data.report import Finding, finding_about
from crossclr.data.sample import same_words
from crossclr.data.sequences import JoinedRows, RowStore, Sequences
from crossclr.errors import DataError

LARGE_ROW_GROUP = 10_000
Labels = Mapping[str, str] | Sequence[str] | pa.Array | None


def from_arrays(
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
) -> Dataset:
    """A data set with an array for each modality.

    Samples may lack modalities, and may have several rows of one (several sentences).

    Args:
        arrays: by modality (N, dim), (N, rows, dim), a list of (rows, dim) arrays, or a `Ragged`. None in a list or a
            row of NaN marks a sample that lacks the modality.
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
        >>> data = from_arrays({"image": np.ones((3, 4)), "text": np.zeros((3, 5, 2))}, groups={"1": "red"})
        >>> data.dims, data[1].group, len(data.where(split="train"))
        ({'image': 4, 'text': 2}, 'red', 3)
    """
    if len(arrays) < 2:
        raise DataError(f"at least two modalities are needed, got {', '.join(arrays) or 'none'}")
    given, words = ids or {}, texts or {}
    for argument, names in (("ids", given), ("texts", words)):
        if unknown := set(names) - set(arrays):
            raise DataError(f"{argument} names {min(unknown)!r}, but the modalities are {', '.join(arrays)}")
    modalities = []
    for name, values in arrays.items():
        rows, gaps = rows_in_memory(values, f"array {name}")
        own = given.get(name)
        modality = _Modality(name, rows, len(rows), None if own is None else as_texts(own), gaps)
        modality.texts = as_texts(words[name]) if name in words else None
        modalities.append(modality)
    limits = max_frames if isinstance(max_frames, Mapping) else dict.fromkeys(arrays, max_frames)
    table = _Arrays(modalities, limits, unpaired)
    table.split_lists = splits
    table.groups, table.concepts = table.by_key(groups), table.by_key(concepts)
    return table.build(split_names or {}, split_parts or {})


def open_arrays(config: ArraysConfig) -> Dataset:
    """Open data given as arrays in files."""
    reader = _Places(config)
    modalities = [reader.modality(name, modality) for name, modality in config.modalities.items()]
    limits = {name: modality.max_frames for name, modality in config.modalities.items()}
    table = _Arrays(modalities, limits, config.unpaired)
    for modality in modalities:
        modality.texts = reader.texts(modality, config.modalities[modality.name])
    table.groups = table.by_key(reader.column(config.groups, "groups"), "groups")
    if isinstance(config.concepts, dict):
        table.concepts = table.first_sentences()
    else:
        table.concepts = table.by_key(reader.column(config.concepts, "concepts"), "concepts")
    splits = reader.column(config.splits, "splits")
    if splits is not None and config.split_fractions is not None:
        raise DataError("data.splits and data.split_fractions exclude each other; remove one of them")
    if isinstance(splits, Mapping) and all(isinstance(members, list) for members in splits.values()):
        table.split_lists = splits
    elif splits is not None:
        table.split_column = table.by_key(splits, "splits")
    table.fractions = config.split_fractions
    return table.build(config.split_names, config.split_parts)


def rows_in_memory(values: Any, name: str) -> tuple[ArrayRows, IntArray]:
    """The rows of an array, a tensor, a list of arrays or a Ragged, and the numbers of those that are gaps."""
    path, none = Path(name), np.zeros(0, np.int64)
    if hasattr(values, "lengths") and hasattr(values, "values"):  # a Ragged, without importing torch
        rows = ArrayRows(values.values.cpu().numpy(), path, values.lengths.numpy())
        return rows, rows.gaps()
    if isinstance(values, list | tuple) and len(values):
        known = next((np.asarray(value) for value in values if value is not None), None)
        if known is None:
            raise DataError(f"no sample has {name.removeprefix('array ')}; omit the modality")
        if known.ndim in (1, 2):
            gap = np.full(known.shape[-1], np.nan)
            parts = [np.asarray(gap if value is None else value) for value in values]
            for number, part in enumerate(parts):
                if part.ndim not in (1, 2) or part.shape[-1] != known.shape[-1]:
                    raise DataError(
                        f"{path}: sequence {number} has shape {part.shape}; (rows, {known.shape[-1]}) is needed"
                    )
            parts = [np.atleast_2d(part) for part in parts]
            rows = ArrayRows(np.concatenate(parts), path, np.array([len(part) for part in parts]))
            return rows, rows.gaps()
    rows = ArrayRows(np.asarray(values), path)
    return rows, rows.gaps() if rows.values.dtype.kind == "f" else none


class _Modality:
    """The rows of one modality, and which samples they belong to."""

    def __init__(self, name: str, rows: RowStore, count: int, ids: pa.Array | None, gaps: IntArray) -> None:
        self.name, self.rows, self.count, self.ids, self.gaps = name, rows, count, ids, gaps
        self.texts: pa.Array | None = None
        if ids is not None and len(ids) != count:
            raise DataError(f"{rows.path}: {count} rows but {len(ids)} ids")

    def assign(self, keys: pa.Array, identity: bool) -> None:
        """Find the sample of each row: ``samples`` ascending, and ``numbers``, the row of each."""
        self.samples: Places = range(self.count)
        self.numbers: Places = range(self.count)
        if not identity or len(self.gaps):
            sample = np.arange(self.count)
            if not identity:
                sample = np.asarray(pc.index_in(self.ids, value_set=keys), dtype=np.int64)
            sample[self.gaps] = -1
            order = np.argsort(sample, kind="stable")[len(self.gaps) :]
            self.samples, self.numbers = sample[order], order
            if len(order) == len(keys) and bool((self.samples == np.arange(len(keys))).all()):
                self.samples = range(len(keys))
        self.present = np.zeros(len(keys), np.bool_)
        self.present[np.asarray(self.samples, dtype=np.int64)] = True

    def sequences(self, limit: int | None) -> Sequences:
        """As a column."""
        if self.texts is not None and len(self.texts) != self.count:
            raise DataError(f"there are {len(self.texts)} texts but {self.name} has {self.count} rows")
        return Sequences(self.rows, self.numbers, self.samples, self.texts, limit)


class _Arrays:
    """Matches the rows of all modalities."""

    def __init__(self, modalities: Sequence[_Modality], limits: Mapping[str, int | None], unpaired: str) -> None:
        self.modalities, self.limits = modalities, limits
        first, *others = modalities
        self.first, self.path = first, first.rows.path
        if first.ids is None:
            first.ids = as_texts(np.arange(first.count))
        elif (twice := first_repeated(first.ids)) is not None:
            raise DataError(f"{self.path}: id {twice!r} occurs twice; the ids of the first modality must be unique")
        for modality in others:
            if modality.ids is None:
                if modality.count != first.count:
                    raise DataError(
                        f"{modality.rows.path}: {modality.count} rows but {self.path} has {first.count}; match them by "
                        "id, or give arrays with equal numbers of rows"
                    )
                modality.ids = first.ids
        same = [modality.ids is first.ids or first.ids.equals(modality.ids) for modality in modalities]
        lists = [modality.ids for modality, own in zip(modalities, same, strict=True) if not own]
        self.keys = pc.unique(pa.concat_arrays([first.ids, *lists])) if lists else first.ids
        for modality, own in zip(modalities, same, strict=True):
            modality.ids = first.ids if own else modality.ids  # one copy of equal ids
            modality.assign(self.keys, own and len(self.keys) == len(first.ids))
        self.unpaired = self._find_unpaired(unpaired)
        self.dropped = self.unpaired if unpaired != "keep" else np.zeros(0, np.int64)
        self.groups: pa.Array | None = None
        self.concepts: pa.Array | None = None
        self.split_lists: Mapping[str, Sequence[str]] | None = None
        self.split_column: pa.Array | None = None
        self.fractions: Mapping[str, float] | None = None

    def _find_unpaired(self, how: str) -> IntArray:
        """Samples that only one modality has."""
        has = np.stack([modality.present for modality in self.modalities])  # (modalities, samples)
        alone: IntArray = np.flatnonzero(has.sum(0) < 2)
        if not has.any(0).all() and (how != "drop" or len(alone) == len(self.keys)):
            lacking = self.keys[int(has.any(0).argmin())].as_py()
            raise DataError(f"{self.path}: sample {lacking!r} has no modality; drop it, or set unpaired=drop")
        if len(alone) and (how == "error" or (how == "drop" and len(alone) == len(self.keys))):
            own = next(modality for modality in self.modalities if modality.present[alone[0]])
            raise DataError(
                f"{own.rows.path}: {len(alone)} keys are in one modality only (first: "
                f"{self.keys[int(alone[0])].as_py()!r}, in {own.name}); correct the ids, omit such keys with "
                "unpaired=drop, or keep them with unpaired=keep"
            )
        return alone

    def by_key(self, values: Any, option: str = "") -> pa.Array | None:
        """A plain column for all samples, from a mapping by key or one value for each row of the first modality."""
        if values is None:
            return None
        if isinstance(values, Mapping):
            named = {str(key): str(value) for key, value in values.items()}
            return pa.array([named.get(key) for key in self.keys.to_pylist()], TEXT)
        if len(values) != self.first.count:
            raise DataError(
                f"data.{option} has {len(values)} values but {self.first.name} has {self.first.count} samples"
            )
        rest = len(self.keys) - self.first.count
        return pa.concat_arrays([as_texts(values), pa.nulls(rest, TEXT)]) if rest else as_texts(values)

    def first_sentences(self) -> pa.Array:
        """The first sentence of each sample, without regard to case and spaces: what it shows."""
        described = next((modality for modality in self.modalities if modality.texts is not None), None)
        if described is None:
            raise DataError("data.concepts is {from: text}, but no modality has texts; set modalities.NAME.texts")
        found: list[str | None] = [None] * len(self.keys)
        sequences = described.sequences(None)
        for number, sample in reversed(list(enumerate(np.asarray(sequences.item).tolist()))):
            found[sample] = same_words(sequences.text(number))
        return pa.array(found, TEXT)

    def build(self, unions: Mapping[str, Sequence[str]], parts: Mapping[str, Mapping[str, float]]) -> Dataset:
        """The data set."""
        groups = None if self.groups is None else self.groups.fill_null("")

        def label(place: int) -> str:
            return str((groups[place].as_py() if groups is not None else "") or self.keys[place].as_py())

        places, own = places_of_splits(self._splits(label), parts, unions, label)
        clips = {m.name: m.sequences(self.limits.get(m.name)) for m in self.modalities}
        info = Info({"key": self.keys, "group": groups, "concept": self.concepts})
        data = Dataset(
            info, clips, splits=Splits(places, own), findings=lambda: self._findings([places[name] for name in own])
        )
        if not len(self.dropped):
            return data
        kept = np.setdiff1d(np.arange(len(self.keys)), self.dropped)
        data = data.select(kept)
        data.splits_of = Splits({name: np.searchsorted(kept, found) for name, found in places.items()}, own)
        return data

    def _splits(self, label: Callable[[int], str]) -> dict[str, Places]:
        count = len(self.keys)
        kept = np.ones(count, np.bool_)
        kept[self.dropped] = False
        if self.split_lists is not None:
            return {name: self._listed(name, keys, kept) for name, keys in self.split_lists.items()}
        if self.split_column is not None:
            names = self.split_column.dictionary_encode()
            numbers = np.asarray(names.indices.fill_null(-1))
            values = names.dictionary.to_pylist()
            return {name: np.flatnonzero((numbers == number) & kept) for number, name in enumerate(values) if name}
        every: Places = np.flatnonzero(kept) if len(self.dropped) else range(count)
        if self.fractions is None:
            return {"train": every}
        drawn = draw_splits([label(place) for place in every], self.fractions)
        return {name: np.asarray(every)[chosen] for name, chosen in drawn.items()}

    def _findings(self, used: Sequence[Places]) -> list[Finding]:
        """Samples that are not used, and Parquet files that are slow to read."""
        findings = []
        idle = np.ones(len(self.keys), np.bool_)
        for places in (self.dropped, *used):
            idle[np.asarray(places)] = False
        if len(self.dropped):
            message = "{count} keys are in one modality only and were dropped"
            findings.append(finding_about("unpaired", message, take_rows(self.keys, self.dropped).to_pylist()))
        if idle.any():
            names = take_rows(self.keys, np.flatnonzero(idle)).to_pylist()
            findings.append(finding_about("no-split", f"{self.path}: {{count}} samples are in no split", names))
        stores = [modality.rows for modality in self.modalities]
        for expert in (expert for rows in stores for expert in getattr(rows, "experts", [rows])):
            if isinstance(expert, ParquetRows) and expert.largest_group > LARGE_ROW_GROUP:
                message = (
                    f"{expert.path}: row groups of {expert.largest_group:,} rows make random reading slow; write it "
                    "with row_group_size=1000"
                )
                findings.append(Finding("warning", "large-row-groups", message))
        return findings

    def _listed(self, split: str, members: Sequence[str], kept: npt.NDArray[np.bool_]) -> IntArray:
        found = pc.index_in(as_texts(list(members)), value_set=self.keys)
        if found.null_count:
            unknown = [key for key, place in zip(members, found.to_pylist(), strict=True) if place is None]
            raise DataError(
                f"split {split!r} names {len(unknown)} keys that {self.path} does not have (first: {unknown[0]!r}); "
                "the splits belong to other data"
            )
        places: IntArray = np.asarray(found, dtype=np.int64)
        return places[kept[places]]


class _Places:
    """Opens the places that a config names."""

    def __init__(self, config: ArraysConfig) -> None:
        self.config = config
        self._last: tuple[Any, Any] = (None, None)  # modalities often have the same ids

    def column(self, place: str | None, option: str, values: str = "") -> Any:
        """The content of a place, or None."""
        if place is None:
            return None
        found = self.find(place, option, values)
        if self._last[0] != found:
            self._last = found, read_plain_column(*found)
        return self._last[1]

    def find(self, place: str, option: str, values: str = "") -> tuple[Path, str | None]:
        """The file of a place, and the name in it; ``#name`` alone means the file of ``values``."""
        file, _, name = place.partition("#")
        return self.config.resolve(file or values.partition("#")[0], option), name or None

    def modality(self, name: str, modality: ArrayModality) -> _Modality:
        """The aligned experts of a modality."""
        option, none = f"modalities.{name}", np.zeros(0, np.int64)
        opened = [self._open(expert, option) for expert in modality.arrays]
        experts, keys = [rows for rows, _ in opened], [ids for _, ids in opened]
        separate = modality.join == "separate"
        if len(opened) == 1:
            return _Modality(name, experts[0], len(experts[0]), keys[0], none)
        if all(ids is None for ids in keys) or all(ids is not None and ids.equals(keys[0]) for ids in keys):
            for rows in experts:
                if len(rows) != len(experts[0]):
                    raise DataError(
                        f"{rows.path}: {len(rows)} samples but {experts[0].path} has {len(experts[0])}; give both ids"
                    )
            return _Modality(name, JoinedRows(experts, None, separate), len(experts[0]), keys[0], none)
        listed = [ids for ids in keys if ids is not None]
        if len(listed) != len(keys) or any(first_repeated(ids) is not None for ids in listed):
            raise DataError(
                f"data.{option}: the joined arrays cannot be aligned; every one needs the same ids in the same order, "
                "or each id only once"
            )
        names = pc.unique(pa.concat_arrays(listed))
        index = [np.asarray(pc.index_in(names, value_set=ids).fill_null(-1), dtype=np.int64) for ids in listed]
        return _Modality(name, JoinedRows(experts, index, separate), len(names), names, none)

    def _open(self, expert: ArrayConfig, option: str) -> tuple[ArrayRows | ParquetRows, pa.Array | None]:
        path, name = self.find(expert.values, f"{option}.values")
        lengths = self.column(expert.lengths, f"{option}.lengths", expert.values)
        rows = open_sequences(path, name, None if lengths is None else np.asarray(lengths))
        ids = self.column(expert.ids, f"{option}.ids", expert.values)
        if ids is None:
            return rows, None
        if len(ids) != len(rows):
            raise DataError(f"{path}: {len(rows)} samples but {len(ids)} ids in {expert.ids} (data.{option}.ids)")
        return rows, as_texts(list(ids) if isinstance(ids, dict) else ids)

    def texts(self, modality: _Modality, options: ArrayModality) -> pa.Array | None:
        """The sentence of each row of a modality."""
        option = f"modalities.{modality.name}.texts"
        found = self.column(options.texts, option, options.values)
        if found is None or not isinstance(found, Mapping):
            return None if found is None else as_texts(found)
        left = {key: iter([value] if isinstance(value, str) else value) for key, value in found.items()}
        texts = []
        for row, owner in enumerate(modality.ids.to_pylist()):  # type: ignore[union-attr]
            text = next(left.get(owner, iter(())), None)
            if text is None:
                raise DataError(f"data.{option} ({options.texts}) has too few sentences for {owner!r}, row {row}")
            texts.append(str(text))
        return pa.array(texts, TEXT)
