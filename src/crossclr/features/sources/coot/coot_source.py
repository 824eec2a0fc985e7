"""Videos with clips and sentences in COOT's layout."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from crossclr.features.check.data_report import Finding, warn
from crossclr.features.errors import DataError
from crossclr.features.sample import Content, Sample, clip_keys
from crossclr.features.source import Source
from crossclr.features.sources.coot.coot_config import CootConfig
from crossclr.features.sources.coot.coot_readers import (
    Entry,
    FrameReader,
    TokenReader,
    WholeAndParts,
    open_modality,
    read_meta,
)
from crossclr.features.sources.splits import SplitKeys

Cut = Mapping[str, WholeAndParts]  # by modality


class CootSource(Source):
    """A meta JSON, feature rows of whole videos, token rows of whole paragraphs.

    With one level, each clip is a sample of its own, without the whole video, named ``video/index``.

    Args:
        config: where the files are and how they are cut.
    """

    def __init__(self, config: CootConfig) -> None:
        entries = read_meta(config.resolve(config.meta, "meta"), config.max_datapoints, config.concepts)
        self.two_level, readers = config.two_level, {name: open_modality(config, name) for name in config.modalities}
        self.readers, self.dims = readers, {name: reader.dim for name, reader in readers.items()}
        # With two modalities a video needs both; with more it may lack any that is cut by times.
        self.optional = {name for name, one in readers.items() if config.also and isinstance(one, FrameReader)}
        every = list(readers.values())
        # Without sentences, the texts of the segments describe the second modality.
        self._texts = next((reader for reader in every if isinstance(reader, TokenReader)), every[1])
        self.entries = {entry.key: entry for entry in entries}
        self._last: tuple[str, Cut] = ("", {})
        self._clips: dict[str, tuple[Entry, slice]] = {}  # of each sample: its video, and which clips of it
        keys: dict[str, list[str]] = {}
        for entry in entries:
            if self.two_level:
                self._clips[entry.key] = (entry, slice(None))
                names = [entry.key]
            else:
                names = clip_keys(entry.key, len(entry.texts))
                self._clips |= {name: (entry, slice(number, number + 1)) for number, name in enumerate(names)}
            keys.setdefault(entry.split, []).extend(names)
        parents = {key: entry.data_key for key, (entry, _) in self._clips.items()}
        self._keys = SplitKeys(keys, config.split_parts, config.split_names, parents)
        self.splits = self._keys.names

    def keys(self, split: str) -> Sequence[str]:
        """Keys of a split in the sorted order of the meta file's keys."""
        return self._keys[split]

    def read(self, key: str, rng: np.random.Generator | None = None) -> Sample:
        """One video (or one clip); with a generator, frames are drawn at random."""
        entry, chosen = self._find(key)
        contents = {}
        for name, (whole, clips) in self._cut(entry, rng).items():
            texts = entry.texts[chosen] if self.readers[name] is self._texts else ()
            contents[name] = Content(clips[chosen], (), whole if self.two_level else None, texts)
        count = len(entry.texts[chosen])
        return Sample(key, contents, clip_count=count, group=entry.data_key, concepts=entry.concepts[chosen])

    def _find(self, key: str) -> tuple[Entry, slice]:
        if key not in self._clips:
            raise DataError(f"there is no sample {key!r} in the meta file")
        return self._clips[key]

    def _cut(self, entry: Entry, rng: np.random.Generator | None) -> Cut:
        """All modalities of a video. The last video is kept: clips of one video that are samples are adjacent."""
        if rng is not None or self.two_level:
            return self._read(entry, rng)
        key, cut = self._last
        if key != entry.key:
            cut = self._read(entry, None)
            self._last = entry.key, cut  # one assignment, so that threads see a complete pair
        return cut

    def _read(self, entry: Entry, rng: np.random.Generator | None) -> Cut:
        lacking = {name for name in self.optional if not self.readers[name].has(entry)}
        return {name: reader.read(entry, rng) for name, reader in self.readers.items() if name not in lacking}

    def clip_times(self, key: str) -> Sequence[tuple[float, float]]:
        """First and last second of each clip of a sample."""
        entry, chosen = self._find(key)
        return list(zip(entry.starts.tolist(), entry.stops.tolist(), strict=True))[chosen]

    def missing_experts(self, key: str) -> list[Path]:
        """Files of joined experts that have no rows for a sample, so that their channels are zero."""
        entry, _ = self._find(key)
        return [
            expert.path
            for reader in self.readers.values()
            for expert in reader.experts
            if expert.find(reader.name_of(entry)) is None
        ]

    def audit(self) -> list[Finding]:
        """Entries that no datapoint uses, and segments that exceed their video."""
        findings = []
        for reader in self.readers.values():
            used = {reader.name_of(entry) for entry in self.entries.values()}
            for expert in reader.experts:
                stored = {expert.find(name) for name in used}
                if unused := [name for name in expert.names() if name not in stored]:
                    findings.append(warn("unused", f"{expert.path}: {{count}} entries belong to no datapoint", unused))
        late = [
            clip_keys(entry.key, len(entry.texts))[number]
            for entry in self.entries.values()
            for number in np.flatnonzero((entry.stops > entry.duration + 1) | (entry.starts < 0)).tolist()
        ]
        if late:
            message = "{count} segments exceed their video by more than a second; they are cut off"
            findings.append(warn("outside", message, late))
        return findings
