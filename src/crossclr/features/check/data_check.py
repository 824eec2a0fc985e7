"""A check of a data set before training: its contents, its errors, and the effect of pruning."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from crossclr.features.batching.collate import check_clips
from crossclr.features.check.data_report import DataReport, Finding, Lengths, SplitSummary, fault, warn
from crossclr.features.check.influence_summary import InfluenceSummary, PooledSpool, summarise_connectivity
from crossclr.features.errors import DataError
from crossclr.features.sample import Content, Rows, Sample, clip_keys
from crossclr.features.source import Source
from crossclr.features.sources.data_config import AnyData
from crossclr.features.sources.registry import open_source

Progress = Callable[[int, int], None]


def check_data(config: AnyData, limit: int | None = None, progress: Progress | None = None) -> DataReport:
    """Check the data that a config describes, with all rows of each sequence.

    Args:
        config: the data config.
        limit: check only the first N samples of each split.
        progress: called with the number of samples done and in total.

    Raises:
        DataError: the data cannot be opened at all.
    """
    source = open_source(config.without_row_limits())
    return check_source(source, config.row_limits(), limit=limit, progress=progress)


def check_source(
    source: Source,
    max_rows: Mapping[str, int | None] | None = None,
    splits: Sequence[str] | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
) -> DataReport:
    """Check any source. Memory grows by a few numbers per sample only.

    Args:
        source: the data, without a limit of rows.
        max_rows: the limits of rows that training will use, by modality.
        splits: the splits to check; by default the source's own.
        limit: check only the first N samples of each split.
        progress: called with the number of samples done and in total.

    Example:
        >>> from crossclr.features import ArraySource
        >>> report = check_source(ArraySource({"video": np.eye(4), "text": np.eye(4)}))
        >>> report.splits["train"].clips, report.faults
        (4, [])
    """
    names = list(source.splits if splits is None else splits)
    if not names:
        raise DataError("there are no splits to check: the source lists none in 'splits', and none were given")
    return _Check(source, names, max_rows or {}, limit, progress).run()


class _Check:
    """The state of one pass over the data."""

    def __init__(
        self,
        source: Source,
        splits: list[str],
        max_rows: Mapping[str, int | None],
        limit: int | None,
        progress: Progress | None,
    ) -> None:
        self.source, self.splits, self.progress = source, splits, progress
        self.max_rows = max_rows
        self.keys = {split: list(source.keys(split))[:limit] for split in splits}
        self.findings: list[Finding] = []
        self.summaries: dict[str, SplitSummary] = {}
        self.pooled: dict[str, PooledSpool] = {}
        self.pooled_split = "train" if "train" in splits else splits[0]
        # kind -> digest -> the first key in each split that has it; a digest with two splits is a leak
        self.seen: dict[str, dict[int | str, dict[str, str]]] = defaultdict(dict)
        self.repeated: dict[str, list[str]] = defaultdict(list)
        self.lacking: dict[Path, list[str]] = defaultdict(list)
        self.zero: list[str] = []
        self.worded: set[str] = set()  # modalities that have texts

    def run(self) -> DataReport:
        """Read everything once and describe it."""
        dims = self.source.dims  # opens the files: data that cannot be read at all fails here
        done, total = 0, sum(len(keys) for keys in self.keys.values())
        self._find_shared_keys()
        for split in self.splits:
            rows: dict[str, list[int]] = defaultdict(list)
            self.summaries[split] = SplitSummary(samples=len(self.keys[split]))
            for key in self.keys[split]:
                self._check_key(split, key, dims, rows)
                done += 1
                if self.progress is not None:
                    self.progress(done, total)
            for kind, lengths in rows.items():
                self.summaries[split].lengths[kind] = Lengths.of(lengths, self.max_rows.get(kind.partition(",")[0]))
        self._add_findings()
        influence = {
            name: summarise_connectivity(spool.connectivity()) for name, spool in self.pooled.items() if spool.count > 1
        }
        self._find_narrow_connectivity(influence)
        return DataReport(
            dict(dims),
            self.source.two_level,
            self.summaries,
            self.findings,
            self.pooled_split,
            influence,
        )

    def _check_key(self, split: str, key: str, dims: Mapping[str, int], rows: dict[str, list[int]]) -> None:
        summary = self.summaries[split]
        try:
            sample = self.source.read(key)
            _check_sample(sample, dims)
        except DataError as error:
            summary.unreadable += 1
            self.findings.append(Finding("fault", "unreadable", f"split {split}: {error}", 1, (key,)))
            return
        summary.clips += sample.clip_count
        summary.count_presence(sample)
        parts: dict[str, Sequence[Rows]] = {name: content.clips for name, content in sample.modalities.items()}
        wholes = {name: content.whole for name, content in sample.modalities.items()}
        parts |= {f"{name}, whole": [whole] for name, whole in wholes.items() if whole is not None}
        for kind, sequences in parts.items():
            rows[kind].extend(len(sequence) for sequence in sequences)
            if not all(sequence.any() for sequence in sequences):
                self.zero.append(key)
            if split == self.pooled_split:
                pooled = np.stack([sequence.mean(axis=0, dtype=np.float32) for sequence in sequences])
                self.pooled.setdefault(kind, PooledSpool()).add(pooled)
        names = clip_keys(key, sample.clip_count)
        for modality, content in sample.modalities.items():
            if content.texts:
                self.worded.add(modality)
            for owner, found in zip(content.clip_of, _contents(content), strict=True):
                self._remember(modality, _digest(found), split, names[owner])
        if sample.group and self.source.groups_are_parents:
            self.seen["group"].setdefault(sample.group, {}).setdefault(split, key)
        for path in self.source.missing_experts(key):
            self.lacking[path].append(key)

    def _remember(self, kind: str, digest: int, split: str, key: str) -> None:
        found = self.seen[kind].setdefault(digest, {})
        if found.get(split, key) != key:  # a clip may have the same caption twice
            self.repeated[kind].append(key)
        found.setdefault(split, key)

    def _find_shared_keys(self) -> None:
        first: dict[str, str] = {}
        for split, keys in self.keys.items():
            if not keys:
                self.findings.append(Finding("warning", "empty-split", f"split {split!r} has no samples"))
            ids = list(self.source.ids(split))[: len(keys)]
            if "" in ids:
                self.findings.append(
                    fault("no-id", f"{{count}} samples of split {split!r} have no id", [keys[ids.index("")]])
                )
            once = ids == keys  # else an id may have several rows: the sentences of one clip
            twice = [
                name for name in ids if (first.get(name) == split and once) or first.setdefault(name, split) != split
            ]
            if twice:
                message = f"{{count}} keys of split {split!r} occur twice in it or also in an earlier split"
                self.findings.append(fault("shared-key", f"{message}; assign each key to one split", twice))

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
        about = {"group": ("shared-group", "{count} groups (parent videos) have samples")}
        for name in self.source.modalities:
            if name in self.worded:
                about[name] = "shared-sentence", f"{{count}} sentences of {name} occur"
            else:
                about[name] = "shared-features", f"{{count}} clips have identical {name} features"
        for kind, (title, message) in about.items():
            shared = [next(iter(places.values())) for places in self.seen[kind].values() if len(places) > 1]
            if shared:
                message += " in more than one split: the test may contain what training has seen"
                self.findings.append(warn(title, message, shared))
        for name in self.source.modalities:
            if self.repeated[name]:
                what = "sentences" if name in self.worded else "features"
                message = f"{{count}} {what} of {name} repeat others of the same split: they are false negatives"
                self.findings.append(warn(f"repeated-{what}", message, self.repeated[name]))
        for split, summary in self.summaries.items():
            if summary.alone:
                message = f"{{count}} samples of split {split!r} have one modality only: they are in no pair"
                self.findings.append(warn("one-modality", message, summary.alone))
        for path, keys in self.lacking.items():
            message = f"{path}: {{count}} samples lack this expert; its channels are zero for them"
            self.findings.append(warn("missing-expert", message, keys))
        if self.zero:
            message = "{count} sequences have only zeros: nothing can be learned from them"
            self.findings.append(warn("all-zero", message, self.zero))
        self.findings.extend(self.source.audit())


def _check_sample(sample: Sample, dims: Mapping[str, int]) -> None:
    """Errors that no source should return."""
    for name, content in sample.modalities.items():
        for number, rows in enumerate(content.clips):
            if rows.ndim != 2 or not len(rows) or rows.shape[1] != dims[name]:
                raise DataError(
                    f"{name} {number} of {sample.key!r} has shape {rows.shape}; (rows, {dims[name]}) is needed"
                )
            if not np.isfinite(rows.sum()) and not np.isfinite(rows).all():
                raise DataError(f"{name} {number} of {sample.key!r} has NaN or infinite values")
    check_clips(sample)


def _contents(content: Content) -> Sequence[Rows | str]:
    """What is compared to find repetitions: the texts, or the rows if there are none."""
    return [" ".join(text.lower().split()) for text in content.texts] or content.clips


def _digest(content: Rows | str) -> int:
    data = content.encode() if isinstance(content, str) else np.ascontiguousarray(content).tobytes()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
