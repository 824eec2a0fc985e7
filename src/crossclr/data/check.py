"""A check of a data set before training: its contents, its errors, and the effect of pruning.

Memory grows by a few numbers for each clip, so a million clips need about a hundred megabytes.
"""

import hashlib
import tempfile
from array import array
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from crossclr.data.dataset import Dataset
from crossclr.data.info import TEXT
from crossclr.data.kinds import AnyData, open_data
from crossclr.data.report import (
    EXAMPLES,
    DataReport,
    Examples,
    Finding,
    InfluenceSummary,
    Lengths,
    SplitSummary,
    finding_about,
    summarise_connectivity,
)
from crossclr.data.sample import Content, Rows, Sample, check_clips, clip_keys
from crossclr.data.sequences import mean_row
from crossclr.errors import DataError
from crossclr.progress_bar import Progress

BLOCK = 4096  # rows held in memory at a time
COMPARED = 32  # repeated ids whose features are compared


def check_data(
    data: AnyData | Dataset,
    max_rows: Mapping[str, int | None] | None = None,
    splits: Sequence[str] | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
) -> DataReport:
    """Check data with all rows of each sequence.

    Args:
        data: a data config, or a data set without a limit of rows.
        max_rows: the limits of rows that training will use, by modality; by default those of the config.
        splits: the splits to check; by default all but unions and parts.
        limit: check only the first N samples of each split.
        progress: called with the number of samples done and in total.

    Raises:
        DataError: the data cannot be opened at all.

    Example:
        >>> report = check_data(Dataset.from_arrays({"video": np.eye(4), "text": np.eye(4)}))
        >>> report.splits["train"].clips, report.faults
        (4, [])
    """
    if not isinstance(data, Dataset):
        max_rows = data.row_limits() if max_rows is None else max_rows
        data = open_data(data.without_row_limits())
    names = list(data.splits if splits is None else splits)
    if not names:
        raise DataError("there are no splits to check: the data lists none, and none were given")
    return _Check(data, names, max_rows or {}, limit, progress).run()


class _Check:
    """The state of one pass over the data."""

    def __init__(
        self,
        data: Dataset,
        splits: list[str],
        max_rows: Mapping[str, int | None],
        limit: int | None,
        progress: Progress | None,
    ) -> None:
        self.data, self.progress, self.max_rows = data, progress, max_rows
        self.splits = {split: data.where(split=split) for split in splits}
        if limit is not None:
            self.splits = {name: one.select(range(min(limit, len(one)))) for name, one in self.splits.items()}
        self.findings: list[Finding] = []
        self.summaries: dict[str, SplitSummary] = {}
        self.pooled: dict[str, PooledSpool] = {}
        self.pooled_split = "train" if "train" in splits else splits[0]
        self.seen: dict[str, _Seen] = defaultdict(_Seen)
        self.groups: dict[str, dict[str, str]] = {}  # group -> the first key in each split
        self.lacking: dict[Path, Examples] = defaultdict(Examples)
        self.zero = Examples()
        self.worded: set[str] = set()  # modalities that have texts

    def run(self) -> DataReport:
        """Read everything once and describe it."""
        dims = self.data.dims  # opens the files: data that cannot be read at all fails here
        done, total = 0, sum(map(len, self.splits.values()))
        self._find_shared_keys()
        for number, (split, samples) in enumerate(self.splits.items()):
            rows: dict[str, array[int]] = defaultdict(lambda: array("I"))
            self.summaries[split] = SplitSummary(samples=len(samples))
            for place in range(len(samples)):
                self._check_sample(number, split, place, rows)
                done += 1
                if self.progress is not None:
                    self.progress(done, total)
            for kind, lengths in rows.items():
                limit = self.max_rows.get(kind.partition(",")[0])
                self.summaries[split].lengths[kind] = Lengths.of(np.frombuffer(lengths, np.uint32), limit)
        self._add_findings()
        influence = {
            name: summarise_connectivity(spool.connectivity()) for name, spool in self.pooled.items() if spool.count > 1
        }
        self._find_narrow_connectivity(influence)
        return DataReport(dict(dims), self.data.two_level, self.summaries, self.findings, self.pooled_split, influence)

    def _check_sample(self, number: int, split: str, place: int, rows: dict[str, Any]) -> None:
        samples, summary = self.splits[split], self.summaries[split]
        key = samples.keys[place]
        try:
            sample = samples[place]
            _check_rows(sample, self.data.dims, self.data.with_gaps)
        except DataError as error:
            summary.unreadable += 1
            self.findings.append(Finding("fault", "unreadable", f"split {split}: {error}", 1, (key,)))
            return
        summary.clips += sample.clip_count
        summary.count_presence(sample)
        sequences: dict[str, Sequence[Rows]] = {name: content.clips for name, content in sample.modalities.items()}
        wholes = {name: content.whole for name, content in sample.modalities.items()}
        sequences |= {f"{name}, whole": [whole] for name, whole in wholes.items() if whole is not None}
        for kind, own in sequences.items():
            rows[kind].extend(map(len, own))
            if not all(sequence.any() for sequence in own):
                self.zero.add(key)
            if split == self.pooled_split:
                pooled = np.stack([mean_row(sequence) for sequence in own])
                self.pooled.setdefault(kind, PooledSpool()).add(pooled)
        for modality, content in sample.modalities.items():
            if content.texts:
                self.worded.add(modality)
            for clip, contents in zip(content.clip_of, _contents(content), strict=True):
                name = -1 if sample.clip_count == 1 else clip
                self.seen[modality].add(_digest(contents), number, place, name)
        if sample.group and self.data.groups_are_parents:
            self.groups.setdefault(sample.group, {}).setdefault(split, key)
        for path in samples.missing_experts(place):
            self.lacking[path].add(key)

    def _name(self, split: int, place: int, clip: int) -> str:
        """The name of a clip that `_Seen` holds."""
        key = list(self.splits.values())[split].keys[place]
        return key if clip < 0 else clip_keys(key, clip + 2)[clip]

    def _named(self, count: int, clips: Iterable[tuple[int, int, int]]) -> Examples:
        return Examples(count, [self._name(*clip) for clip in clips])

    def _add(
        self, kind: str, message: str, keys: Sequence[str] | Examples, level: Literal["fault", "warning"] = "warning"
    ) -> None:
        self.findings.append(finding_about(kind, message, keys, level))

    def _find_shared_keys(self) -> None:
        earlier: list[pa.Array] = []
        for split, samples in self.splits.items():
            if not len(samples):
                self.findings.append(Finding("warning", "empty-split", f"split {split!r} has no samples"))
                continue
            keys: pa.Array = samples.column("key")
            empty = np.flatnonzero(np.asarray(pc.equal(keys, "")))
            if len(empty):
                names = [samples.keys[int(place)] for place in empty[:EXAMPLES]]
                message = f"{{count}} samples of split {split!r} have no id"
                self._add("no-id", message, Examples(len(empty), names[:1]), "fault")
            known = pa.concat_arrays([pa.array([], TEXT), *earlier])
            twice = np.asarray(pc.is_in(keys, value_set=known))
            if samples.keys[0] == keys[0].as_py():  # else an id may have several rows: the sentences of one clip
                twice = twice | _repeated(keys)
            if twice.any():
                places = np.flatnonzero(twice)
                named = Examples(len(places), [keys[int(place)].as_py() for place in places[:EXAMPLES]])
                message = f"{{count}} keys of split {split!r} occur twice in it or also in an earlier split"
                self.findings.append(
                    finding_about("shared-key", f"{message}; assign each key to one split", named, "fault")
                )
            earlier.append(keys)

    def _find_narrow_connectivity(self, influence: dict[str, InfluenceSummary]) -> None:
        for kind, summary in influence.items():
            if summary.relative[0.9] > 0.75:
                least, most = summary.quantiles[0.0], summary.quantiles[1.0]
                message = (
                    f"all samples are similar in {kind} (connectivity {least:.3f} to {most:.3f}): "
                    f"the relative rule prunes {summary.relative[0.9]:.0%} of them at 0.9; prune by quantile"
                )
                self.findings.append(Finding("warning", "narrow-connectivity", message, summary.count))

    def _add_findings(self) -> None:
        leak = " in more than one split: the test may contain what training has seen"
        shared = Examples()
        for first in self.groups.values():
            if len(first) > 1:
                shared.add(next(iter(first.values())))
        if shared.count:
            self.findings.append(
                finding_about("shared-group", f"{{count}} groups (parent videos) have samples{leak}", shared)
            )
        for name in self.data.modalities:
            found = self._named(*self.seen[name].shared())
            if found.count and name in self.worded:
                self.findings.append(
                    finding_about("shared-sentence", f"{{count}} sentences of {name} occur{leak}", found)
                )
            elif found.count:
                message = f"{{count}} clips have identical {name} features{leak}"
                self._add("shared-features", message, found)
        for name in self.data.modalities:
            found = self._named(*self.seen[name].repeated())
            if found.count:
                what = "sentences" if name in self.worded else "features"
                message = f"{{count}} {what} of {name} repeat others of the same split: they are false negatives"
                self._add(f"repeated-{what}", message, found)
        for split, summary in self.summaries.items():
            if summary.alone.count:
                message = f"{{count}} samples of split {split!r} have one modality only: they are in no pair"
                self._add("one-modality", message, summary.alone)
        for path, keys in self.lacking.items():
            message = f"{path}: {{count}} samples lack this expert; its channels are zero for them"
            self._add("missing-expert", message, keys)
        if self.zero.count:
            message = "{count} sequences have only zeros: nothing can be learned from them"
            self._add("all-zero", message, self.zero)
        self.findings.extend(self.data.findings())


class _Seen:
    """What the clips of one modality contain: a digest, and the split, sample and clip of each sequence."""

    def __init__(self) -> None:
        self._digests, self._clips = array("Q"), array("i")  # three numbers for each clip

    def add(self, digest: int, split: int, sample: int, clip: int) -> None:
        """One more sequence."""
        self._digests.append(digest)
        self._clips.extend((split, sample, clip))

    def shared(self) -> tuple[int, list[tuple[int, int, int]]]:
        """The number of contents that occur in several splits, and the first clips that have them."""
        if not self._digests:
            return 0, []
        digests, clips = self._columns()
        order = np.argsort(digests, kind="stable")
        start = np.flatnonzero(np.diff(digests[order], prepend=~digests[order[:1]]))
        splits = clips[order, 0]
        several = np.minimum.reduceat(splits, start) < np.maximum.reduceat(splits, start)
        return self._first(order[start[several]])

    def repeated(self) -> tuple[int, list[tuple[int, int, int]]]:
        """The number of sequences that repeat those of another clip of their split, and the first of these."""
        if not self._digests:
            return 0, []
        digests, clips = self._columns()
        order = np.lexsort((clips[:, 0], digests))
        change = np.diff(digests[order], prepend=~digests[order[:1]]) != 0
        change |= np.diff(clips[order, 0], prepend=-1) != 0
        start = np.flatnonzero(change)
        original = order[start][np.cumsum(change) - 1]  # the first sequence with the same content in the split
        return self._first(order[(clips[order] != clips[original]).any(1)])  # a clip may have a caption twice

    def _columns(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int32]]:
        return np.frombuffer(self._digests, np.uint64), np.frombuffer(self._clips, np.int32).reshape(-1, 3)

    def _first(self, sequences: npt.NDArray[np.int64]) -> tuple[int, list[tuple[int, int, int]]]:
        clips = self._columns()[1]
        return len(sequences), [tuple(clips[at].tolist()) for at in islice(np.sort(sequences).tolist(), EXAMPLES)]


class PooledSpool:
    """Collects any number of pooled rows in an unnamed temporary file, to measure their connectivity."""

    def __init__(self) -> None:
        self._file: Any = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the spool
        self._sum: npt.NDArray[np.float64] | None = None
        self.count = 0

    def add(self, rows: Rows) -> None:
        """Add (samples, dim) pooled rows."""
        rows = np.asarray(rows, dtype=np.float32)
        unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        total = unit.sum(0, dtype=np.float64)
        self._sum = total if self._sum is None else self._sum + total
        self._file.write(unit.tobytes())
        self.count += len(unit)

    def connectivity(self) -> npt.NDArray[np.float64]:
        """(samples,) the mean cosine of each row to all others: equation (4) of the paper."""
        if self._sum is None or self.count < 2:
            return np.zeros(self.count)
        parts = [(block @ self._sum - (block**2).sum(1)) / (self.count - 1) for block in self._blocks(len(self._sum))]
        return np.concatenate(parts)

    def _blocks(self, dim: int) -> Iterator[npt.NDArray[np.float64]]:
        self._file.flush()
        self._file.seek(0)
        while data := self._file.read(BLOCK * dim * 4):
            yield np.frombuffer(data, np.float32).reshape(-1, dim).astype(np.float64)
        self._file.seek(0, 2)


def _check_rows(sample: Sample, dims: Mapping[str, int], gaps: Collection[str] = ()) -> None:
    """Errors that no data set should return."""
    for name, content in sample.modalities.items():
        for number, rows in enumerate(content.clips):
            if rows.ndim != 2 or not len(rows) or rows.shape[1] != dims[name]:
                raise DataError(
                    f"{name} {number} of {sample.key!r} has shape {rows.shape}; (rows, {dims[name]}) is needed"
                )
            if name in gaps:
                rows = mean_row(rows)
            if not np.isfinite(rows.sum()) and not np.isfinite(rows).all():
                raise DataError(f"{name} {number} of {sample.key!r} has NaN or infinite values")
    check_clips(sample)


def _contents(content: Content) -> Sequence[Rows | str]:
    """What is compared to find repetitions: the texts, or the rows if there are none."""
    return [" ".join(text.lower().split()) for text in content.texts] or content.clips


def _digest(content: Rows | str) -> int:
    data = content.encode() if isinstance(content, str) else np.ascontiguousarray(content).tobytes()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def check_splits(data: Dataset, train: str, others: Iterable[str | None] = ()) -> None:
    """Refuse splits that would make a result wrong; None in ``others`` is skipped."""
    measured = [split for split in dict.fromkeys(others) if split is not None]
    if train in measured:
        raise DataError(
            f"split {train!r} is trained on and also measured; the results would not be honest: name another split "
            "in the section splits of the config, or null to measure nothing"
        )
    chosen = {split: data.where(split=split) for split in (train, *measured)}
    for split, samples in chosen.items():
        if not len(samples):
            raise DataError(f"split {split!r} has no samples; see the section splits of the config")
    if len(chosen[train]) < 2:
        raise DataError(f"split {train!r} has one sample; contrastive training needs at least two")
    known = _checked_keys(chosen[train], train)
    for split in measured:
        keys = _checked_keys(chosen[split], split)
        shared = np.flatnonzero(np.asarray(pc.is_in(keys, value_set=known)))
        if len(shared):
            raise DataError(
                f"{len(shared):,} samples of split {split!r} are also in split {train!r} (first: "
                f"{keys[int(shared[0])].as_py()!r}); the results would not be honest: assign each sample to one split"
            )


def _repeated(keys: pa.Array) -> npt.NDArray[np.bool_]:
    """Which keys occur earlier."""
    found = np.ones(len(keys), np.bool_)
    found[np.unique(np.asarray(keys.dictionary_encode().indices), return_index=True)[1]] = False
    return found


def _checked_keys(data: Dataset, split: str) -> pa.Array:
    """The distinct keys of a split; rows of one key must be several sentences of one clip."""
    keys: pa.Array = data.column("key")
    empty = np.flatnonzero(np.asarray(pc.equal(keys, "")))
    if len(empty):
        raise DataError(f"split {split!r}: sample {data.keys[int(empty[0])]} has no id; give it one")
    distinct = pc.unique(keys)
    if len(distinct) < len(keys):
        _compare_repeated(data, split, np.asarray(keys.dictionary_encode().indices))
    return distinct


def _compare_repeated(data: Dataset, split: str, numbers: npt.NDArray[np.int32]) -> None:
    _, first = np.unique(numbers, return_index=True)
    again = np.setdiff1d(np.arange(len(numbers)), first)[:COMPARED]
    for place, before in zip(again.tolist(), first[numbers[again]].tolist(), strict=True):
        rows = (data[at].modalities[data.modalities[0]].clips for at in (before, place))
        if data.keys[before] == data.keys[place] or not all(map(np.array_equal, *rows)):
            key = data.column("key")[place].as_py()
            raise DataError(f"split {split!r}: id {key!r} occurs twice with different features; give each its own id")
