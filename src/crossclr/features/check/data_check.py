"""A look at a data set before any training: what is in it, what is wrong with it, what pruning would do to it."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crossclr.features.check.data_report import DataReport, Lengths, SplitSummary
from crossclr.features.check.findings import Finding, fault, warn
from crossclr.features.check.influence_summary import InfluenceSummary, PooledSpool, summarise_connectivity
from crossclr.features.errors import DataError
from crossclr.features.keys import clip_keys
from crossclr.features.sample import Rows, Sample
from crossclr.features.source import Source
from crossclr.features.sources.data_config import AnyData, CootConfig, EmojiConfig
from crossclr.features.sources.registry import open_source

Progress = Callable[[int, int], None]


def check_data(config: AnyData, limit: int | None = None, progress: Progress | None = None) -> DataReport:
    """Check the data that a config describes, with all rows of each sequence.

    Args:
        config: the data config.
        limit: look at so many samples of each split only.
        progress: called with the samples done and their number.

    Raises:
        DataError: the data cannot be opened at all.
    """
    if isinstance(config, EmojiConfig):
        splits = ("train", "val", "test")  # its further split "all" is their union, and its groups are classes
        return check_source(open_source(config), splits=splits, parents=False, limit=limit, progress=progress)
    if isinstance(config, CootConfig):
        source = open_source(config.model_copy(update={"max_frames": None}))
        limits = (config.max_frames, config.max_frames if config.cut_text_by == "times" else None)
    else:
        source = open_source(config.model_copy(update={"max_frames": None, "max_frames_b": None}))
        limits = (config.max_frames, config.max_frames_b)
    return check_source(source, limits, limit=limit, progress=progress)


def check_source(
    source: Source,
    max_rows: tuple[int | None, int | None] = (None, None),
    splits: Sequence[str] | None = None,
    parents: bool = True,
    limit: int | None = None,
    progress: Progress | None = None,
) -> DataReport:
    """Check any source; memory grows by a few numbers for each sample only.

    Args:
        source: the data, without a limit of rows.
        max_rows: the limits that training will use, for both modalities.
        splits: the splits to look at; left out, the source's attribute ``splits``.
        parents: whether a sample's group is its parent video, which should be in one split only, and not a class.
        limit: look at so many samples of each split only.
        progress: called with the samples done and their number.

    Example:
        >>> from crossclr.features import ArraySource
        >>> report = check_source(ArraySource(np.eye(4), np.eye(4)))
        >>> report.splits["train"].clips, report.faults
        (4, [])
    """
    names = list(splits if splits is not None else getattr(source, "splits", ()))
    if not names:
        raise DataError("there are no splits to check: the source has no attribute 'splits', and none were named")
    return _Check(source, names, max_rows, parents, limit, progress).run()


class _Check:
    """The state of one pass over the data."""

    def __init__(
        self,
        source: Source,
        splits: list[str],
        max_rows: tuple[int | None, int | None],
        parents: bool,
        limit: int | None,
        progress: Progress | None,
    ) -> None:
        self.source, self.splits, self.max_rows, self.progress = source, splits, max_rows, progress
        self.parents = parents
        self.keys = {split: list(source.keys(split))[:limit] for split in splits}
        self.findings: list[Finding] = []
        self.summaries: dict[str, SplitSummary] = {}
        self.pooled: dict[str, PooledSpool] = {}
        self.pooled_split = "train" if "train" in splits else splits[0]
        # digest -> for each split that has it the first key; what stands under two splits leaks
        self.seen: dict[str, dict[int | str, dict[str, str]]] = defaultdict(dict)
        self.repeated: dict[str, list[str]] = defaultdict(list)
        self.lacking: dict[Path, list[str]] = defaultdict(list)
        self.zero: list[str] = []

    def run(self) -> DataReport:
        """Read everything once and describe it."""
        dims = self.source.dims  # opens the files: what cannot be read at all ends here
        done, total = 0, sum(len(keys) for keys in self.keys.values())
        self._shared_keys()
        for split in self.splits:
            rows: dict[str, list[int]] = defaultdict(list)
            self.summaries[split] = SplitSummary(samples=len(self.keys[split]))
            for key in self.keys[split]:
                self._sample(split, key, dims, rows)
                done += 1
                if self.progress is not None:
                    self.progress(done, total)
            for kind, lengths in rows.items():
                self.summaries[split].lengths[kind] = self._lengths(kind, np.array(lengths))
        self._conclude()
        influence = {
            name: summarise_connectivity(spool.connectivity()) for name, spool in self.pooled.items() if spool.count > 1
        }
        self._narrow(influence)
        return DataReport(dims, self.source.two_level, self.summaries, self.findings, self.pooled_split, influence)

    def _sample(self, split: str, key: str, dims: tuple[int, int], rows: dict[str, list[int]]) -> None:
        summary = self.summaries[split]
        try:
            sample = self.source.read(key)
            _check_sample(sample, dims)
        except DataError as error:
            summary.unreadable += 1
            self.findings.append(Finding("fault", "unreadable", f"split {split}: {error}", 1, (key,)))
            return
        summary.clips += len(sample.clips)
        summary.sentences += len(sample.sentences)
        parts: dict[str, Sequence[Rows]] = {"clip": sample.clips, "sentence": sample.sentences}
        if sample.video is not None and sample.paragraph is not None:
            parts |= {"video": [sample.video], "paragraph": [sample.paragraph]}
        for kind, sequences in parts.items():
            rows[kind].extend(len(sequence) for sequence in sequences)
            pooled = np.stack([sequence.mean(axis=0, dtype=np.float32) for sequence in sequences])
            if not all(sequence.any() for sequence in sequences):
                self.zero.append(key)
            if split == self.pooled_split:
                self.pooled.setdefault(kind, PooledSpool()).add(pooled)
        names = clip_keys(key, len(sample.clips))
        for name, clip in zip(names, sample.clips, strict=True):
            self._remember("clip", _digest(clip), split, name)
        sentences: Sequence[Rows | str] = [" ".join(text.lower().split()) for text in sample.texts] or sample.sentences
        for owner, content in zip(sample.clip_of, sentences, strict=True):
            self._remember("sentence", _digest(content), split, names[owner])
        if sample.group and self.parents:
            self.seen["group"].setdefault(sample.group, {}).setdefault(split, key)
        for path in getattr(self.source, "missing_experts", lambda _: [])(key):
            self.lacking[path].append(key)

    def _remember(self, kind: str, digest: int, split: str, key: str) -> None:
        found = self.seen[kind].setdefault(digest, {})
        if found.get(split, key) != key:  # a clip may have the same caption twice
            self.repeated[kind].append(key)
        found.setdefault(split, key)

    def _lengths(self, kind: str, lengths: Any) -> Lengths:
        most = self.max_rows[0] if kind in ("clip", "video") else self.max_rows[1]
        return Lengths(
            count=len(lengths),
            least=int(lengths.min()),
            median=float(np.median(lengths)),
            mean=float(lengths.mean()),
            most=int(lengths.max()),
            over_limit=0 if most is None else int((lengths > most).sum()),
        )

    def _shared_keys(self) -> None:
        first: dict[str, str] = {}
        for split, keys in self.keys.items():
            if not keys:
                self.findings.append(Finding("warning", "empty-split", f"split {split!r} has no samples"))
            twice = [key for key in keys if first.get(key) == split or first.setdefault(key, split) != split]
            if twice:
                message = f"{{count}} keys of split {split!r} stand twice in it or in an earlier split"
                self.findings.append(fault("shared-key", f"{message}; give each key one split", twice))

    def _narrow(self, influence: dict[str, InfluenceSummary]) -> None:
        for kind, summary in influence.items():
            if summary.relative[0.9] > 0.75:
                least, most = summary.quantiles[0.0], summary.quantiles[1.0]
                message = (
                    f"all {kind}s are alike (connectivity {least:.3f} to {most:.3f}): "
                    f"the relative rule prunes {summary.relative[0.9]:.0%} of them at 0.9; prune by quantile"
                )
                self.findings.append(Finding("warning", "narrow-connectivity", message, summary.count))

    def _conclude(self) -> None:
        about = {
            "group": ("shared-group", "{count} groups (parent videos) have samples in more than one split"),
            "clip": ("shared-features", "{count} clips have identical features in more than one split"),
            "sentence": ("shared-sentence", "{count} sentences stand in more than one split"),
        }
        for kind, (name, message) in about.items():
            shared = [next(iter(places.values())) for places in self.seen[kind].values() if len(places) > 1]
            if shared:
                self.findings.append(warn(name, f"{message}: what is learned on one may be tested on itself", shared))
        for kind, name in (("clip", "features"), ("sentence", "sentences")):
            if self.repeated[kind]:
                message = f"{{count}} {kind}s repeat {name} of the same split: they are each other's false negatives"
                self.findings.append(warn(f"repeated-{name}", message, self.repeated[kind]))
        for path, keys in self.lacking.items():
            message = f"{path}: {{count}} samples lack this expert; its channels are zero for them"
            self.findings.append(warn("missing-expert", message, keys))
        if self.zero:
            message = "{count} sequences have only zeros: nothing can be learned from them"
            self.findings.append(warn("all-zero", message, self.zero))
        self.findings.extend(getattr(self.source, "audit", list)())


def _check_sample(sample: Sample, dims: tuple[int, int]) -> None:
    """What no source should give, whoever wrote it."""
    both = ((sample.clips, dims[0], "clip"), (sample.sentences, dims[1], "sentence"))
    for sequences, dim, kind in both:
        for number, rows in enumerate(sequences):
            if rows.ndim != 2 or not len(rows) or rows.shape[1] != dim:
                raise DataError(f"{kind} {number} of {sample.key!r} has shape {rows.shape}; (rows, {dim}) is needed")
            if not np.isfinite(rows.sum()) and not np.isfinite(rows).all():
                raise DataError(f"{kind} {number} of {sample.key!r} has NaN or infinite values")
    if set(sample.clip_of) != set(range(len(sample.clips))):
        raise DataError(f"sample {sample.key!r}: some clip has no sentence")


def _digest(content: Rows | str) -> int:
    data = content.encode() if isinstance(content, str) else np.ascontiguousarray(content).tobytes()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
