"""`crossclr extract` as a function: recordings and sentences in, a feature set that can be trained on out."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from crossclr import __version__
from crossclr.experts.contract import Expert, ExpertError, TokenExpert
from crossclr.experts.extraction.caption_arrays import write_arrays
from crossclr.experts.extraction.feature_files import (
    CONFIG,
    MANIFEST,
    MEDIA,
    META,
    FeatureFile,
    times_of,
    write_features,
)
from crossclr.experts.extraction.finished_parts import Shard, Shards, file_state, fingerprint
from crossclr.experts.extraction.pipeline import Finished, Pipeline
from crossclr.experts.extraction.recordings import FRACTIONS, Datapoint, Listing, Problem, Recording, list_media
from crossclr.experts.extraction.training_set import (
    build_dataset,
    choose_sides,
    coot_section,
    media_table,
    segments_within,
    training_config,
)
from crossclr.experts.registry import load, split_spec
from crossclr.experts.texts.segments import Segment
from crossclr.storage import write_file, write_json

PARAGRAPHS_AT_ONCE = 256
STORED = ("float16", "float32")
Progress = Callable[[str, int], None]


class StrictError(ValueError):
    """With ``strict``, the first thing that would have been left out."""


@dataclass
class Report:
    """What an extraction did.

    Args:
        out: the folder.
        rows: rows of each expert in the folder.
        done: recordings that were worked on.
        kept: recordings that an earlier run had finished.
        problems: everything that was left out, one line each.
        unused: files that the captions do not name.
        config: the config to train with; None where one modality is missing.
        datapoints: entries of the meta file.
        clips: segments in it.
    """

    out: Path
    rows: dict[str, int] = field(default_factory=dict)
    done: int = 0
    kept: int = 0
    problems: list[Problem] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    config: Path | None = None
    datapoints: int = 0
    clips: int = 0


@dataclass(frozen=True)
class Settings:
    """How to extract.

    Args:
        strict: stop at the first thing that would be left out.
        stored: number type of the rows, ``float16`` or ``float32``.
        fractions: share of each split, where the captions name none.
        workers: recordings decoded at once; None chooses by the machine.
        threads: of the networks; None takes as many as torch would (decoders need little).
    """

    strict: bool = False
    stored: str = "float16"
    fractions: Mapping[str, float] = field(default_factory=lambda: dict(FRACTIONS))
    workers: int | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.stored not in STORED:
            raise ValueError(f"rows are stored as {' or '.join(STORED)}, got {self.stored!r}")
        if not self.fractions or min(self.fractions.values()) < 0 or sum(self.fractions.values()) <= 0:
            raise ValueError(f"shares of splits must be positive, got {dict(self.fractions)}")


def load_experts(specs: Sequence[str], options: Mapping[str, Mapping[str, Any]] | None = None) -> list[Expert]:
    """Experts by their specs (see ``load``), with options by label.

    Raises:
        ExpertError: a label stands twice, or options are for an expert that is not there.
    """
    labels = [split_spec(spec)[0] for spec in specs]
    twice = [label for label in labels if labels.count(label) > 1]
    if twice:
        raise ExpertError(f"expert {twice[0]!r} stands twice; give one of them another name, as label={twice[0]}:model")
    unknown = set(options or {}) - set(labels)
    if unknown:
        raise ExpertError(f"an option is set for {sorted(unknown)[0]!r}, but the experts are {', '.join(labels)}")
    return [load(spec, **(options or {}).get(label, {})) for spec, label in zip(specs, labels, strict=True)]


def extract(
    source: Path | str,
    out: Path | str,
    experts: Sequence[Expert | str] = ("appearance", "text"),
    captions: Path | str | None = None,
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> Report:
    """Turn recordings and sentences into a feature set in COOT's layout.

    What an earlier call finished is kept, also after a kill; what changed since is made again.

    Args:
        source: a folder, a recording, or a CSV or JSON file that names recordings.
        out: the folder to write.
        experts: experts, or their specs.
        captions: a caption file; without one, subtitles beside a recording are its sentences.
        settings: how.
        progress: called with the name of an expert and the rows that were done.

    Raises:
        StrictError: with ``strict``, something would be left out.
        ExpertError, ImportError: an expert cannot be used.
        ValueError: nothing is left to extract.
    """
    built = [load(expert) if isinstance(expert, str) else expert for expert in experts]
    return Extraction(list_media(source, captions), Path(out), built, settings or Settings(), progress).run()


class Extraction:
    """One extraction: what there is to do, and doing it.

    Args:
        listing: recordings and sentences.
        out: the folder to write.
        experts: who makes rows.
        settings: how.
        progress: called with the name of an expert and the rows that were done.
    """

    def __init__(
        self,
        listing: Listing,
        out: Path,
        experts: Sequence[Expert],
        settings: Settings,
        progress: Progress | None = None,
    ) -> None:
        if not experts:
            raise ExpertError("name at least one expert")
        self.listing, self.out, self.settings = listing, out, settings
        self.progress = progress or (lambda name, rows: None)
        self.seeing = [expert for expert in experts if not isinstance(expert, TokenExpert)]
        self.reading = [expert for expert in experts if isinstance(expert, TokenExpert)]
        if self.reading and not listing.captioned:
            raise ValueError(
                f"expert {self.reading[0].name!r} needs sentences, but there are none: name a caption file with "
                "--captions, or put subtitles (.srt, .vtt) beside the videos"
            )
        self.experts = list(experts)
        self.shards = Shards(out)
        self.before = {expert.name: FeatureFile(out / f"{expert.name}.h5") for expert in experts}
        self.prints = {expert.name: self._fingerprints(expert) for expert in self.seeing}
        self.durations: dict[str, float] = {}
        self.report = Report(out, unused=list(listing.unused))

    def missing(self) -> list[tuple[Recording, list[Expert]]]:
        """Recordings that are not finished, each with the experts that it lacks."""
        lacking = []
        for recording in self.listing.recordings:
            experts = [expert for expert in self.seeing if self._found(expert.name, recording.key) is None]
            if experts:
                lacking.append((recording, experts))
        return lacking

    def run(self) -> Report:
        """Do everything that is missing and write the folder."""
        for problem in self.listing.problems:
            self._leave_out(problem)
        self.out.mkdir(parents=True, exist_ok=True)
        todo = self.missing()
        self.report.done, self.report.kept = len(todo), len(self.listing.recordings) - len(todo)
        if todo:
            self._see(todo)
        for recording in self.listing.recordings:
            for expert in self.seeing:
                about = self._found(expert.name, recording.key)
                if about is not None:
                    self.durations[recording.key] = float(about["duration_sec"])
        if not self.seeing:
            self._probe()
        segments = self._segments()
        self._read(segments)
        self._write(segments)
        return self.report

    def _see(self, todo: Sequence[tuple[Recording, list[Expert]]]) -> None:
        """Pictures and sound: everything that decodes files."""
        cores = os.cpu_count() or 1
        workers = self.settings.workers or max(1, min(4, cores // 2))
        before = torch.get_num_threads()
        torch.set_num_threads(self.settings.threads or before)
        pipeline = Pipeline(workers, 1 if cores <= 2 else 0, self.progress)
        experts = {recording.key: wanted for recording, wanted in todo}
        try:
            for finished in pipeline.run(todo):
                self._keep(finished, experts[finished.recording.key])
        finally:
            torch.set_num_threads(before)

    def _keep(self, finished: Finished, experts: Sequence[Expert]) -> None:
        name = finished.recording.path.name
        if finished.error:
            self._leave_out(Problem(name, finished.error))
            return
        if finished.damaged:
            self._leave_out(Problem(name, f"{finished.damaged} damaged packets were skipped"))
        for expert in experts:
            rows = finished.rows.get(expert.name)
            if rows is None:
                lacks = "sound track" if expert.needs.kind == "sound" else "pictures"
                self._leave_out(Problem(name, f"it has no {lacks}, so no rows of {expert.name!r}"))
                continue
            about = {
                "fingerprint": self.prints[expert.name][finished.recording.key],
                "file": name,
                "duration_sec": finished.duration,
                **times_of(expert, len(rows), finished.duration),
            }
            self._store(expert, finished.recording.key, Shard(rows, about))

    def _store(self, expert: Expert, key: str, shard: Shard) -> None:
        if not np.isfinite(shard.rows).all():
            raise ExpertError(f"expert {expert.name!r} gave NaN or infinite values for {key!r}")
        if self.settings.stored == "float16" and np.abs(shard.rows).max(initial=0) > np.finfo(np.float16).max:
            raise ExpertError(f"rows of expert {expert.name!r} do not fit into float16; use --dtype float32")
        about = {**asdict(expert.origin()), **shard.about}
        self.shards.write(expert.name, key, Shard(shard.rows.astype(self.settings.stored), about, shard.counts))

    def _segments(self) -> dict[str, list[dict[str, Any]]]:
        """What of each datapoint lies within its recording."""
        found: dict[str, list[dict[str, Any]]] = {}
        names = {recording.key: recording.path.name for recording in self.listing.recordings}
        for point in self.listing.datapoints:
            duration = self.durations.get(point.recording)
            if duration is None:
                continue
            if not point.segments:
                if self.reading:
                    self._leave_out(Problem(names[point.recording], "it has no sentence"))
                    continue
                point = Datapoint(point.key, point.recording, point.split, (Segment(point.recording),))
            found[point.key], problems = segments_within(point, duration, names[point.recording])
            for problem in problems:
                self._leave_out(problem)
        return found

    def _read(self, segments: Mapping[str, list[dict[str, Any]]]) -> None:
        """Sentences: paragraphs through the text experts."""
        texts = {key: [segment["text"] for segment in found] for key, found in segments.items() if found}
        for expert in self.reading:
            self.prints[expert.name] = {
                key: fingerprint(expert.origin(), self.settings.stored, sentences=sentences)
                for key, sentences in texts.items()
            }
            todo = [key for key in texts if self._found(expert.name, key) is None]
            for start in range(0, len(todo), PARAGRAPHS_AT_ONCE):
                block = todo[start : start + PARAGRAPHS_AT_ONCE]
                for key, (rows, counts) in zip(block, expert.paragraphs([texts[key] for key in block]), strict=True):
                    about = {"fingerprint": self.prints[expert.name][key]}
                    self._store(expert, key, Shard(rows, about, counts))
                    self.progress(expert.name, len(rows))

    def _write(self, segments: dict[str, list[dict[str, Any]]]) -> None:
        """Join everything; each file appears when it is complete."""
        recordings = [recording.key for recording in self.listing.recordings]
        have: dict[str, set[str]] = {}
        for expert in self.experts:
            order = list(segments) if isinstance(expert, TokenExpert) else recordings
            keys = [key for key in order if self._found(expert.name, key) is not None]
            have[expert.name] = set(keys)
        sides = choose_sides(self.experts, bool(self.reading))
        data = build_dataset(self.listing.datapoints, self.durations, segments, have, sides, self.settings.fractions)
        if not data.meta:
            told = f" ({self.report.problems[0]})" if self.report.problems else ""
            raise ValueError(f"nothing could be extracted{told}")
        used = {entry["data_key"] for entry in data.meta.values()}
        for expert in self.experts:
            wanted = [*data.meta] if isinstance(expert, TokenExpert) else [key for key in recordings if key in used]
            keys = [key for key in wanted if key in have[expert.name]]
            if not keys:
                self.report.rows[expert.name] = 0
                continue
            counts = write_features(
                self.out,
                expert,
                keys,
                self.before[expert.name],
                self.shards,
                self.settings.stored,
                self.prints[expert.name],
            )
            if isinstance(expert, TokenExpert):
                write_json(self.out / f"{expert.name}_sentence_splits.json", counts)
            self.report.rows[expert.name] = _rows_in(self.out / f"{expert.name}.h5")
        write_json(self.out / META, data.meta)
        files = {recording.key: recording.path for recording in self.listing.recordings}
        write_json(self.out / MEDIA, media_table(data, files))
        self.report.datapoints = len(data.meta)
        self.report.clips = sum(len(entry["segments"]) for entry in data.meta.values())
        data.a = [name for name in data.a if self.report.rows[name]]
        if data.a and data.b:
            name = re.sub(r"[^\w.+-]+", "-", self.out.resolve().name) or "features"
            section = write_arrays(self.out, data) if data.many else coot_section(data, self.out)
            write_file(self.out / CONFIG, training_config(data, section, name))
            self.report.config = self.out / CONFIG
        write_json(self.out / MANIFEST, self._manifest(files, have))
        self.shards.remove()

    def _manifest(self, files: Mapping[str, Path], have: Mapping[str, set[str]]) -> dict[str, Any]:
        return {
            "crossclr": __version__,
            "experts": {
                expert.name: {**asdict(expert.origin()), "needs": asdict(expert.needs), "stored": self.settings.stored}
                for expert in self.experts
            },
            "recordings": {
                key: {
                    "file": str(path),
                    "duration_sec": self.durations[key],
                    "experts": [expert.name for expert in self.seeing if key in have[expert.name]],
                }
                for key, path in files.items()
                if key in self.durations
            },
            "left_out": [asdict(problem) for problem in self.report.problems],
        }

    def _fingerprints(self, expert: Expert) -> dict[str, str]:
        return {
            recording.key: fingerprint(
                expert.origin(), self.settings.stored, needs=asdict(expert.needs), **file_state(recording.path)
            )
            for recording in self.listing.recordings
        }

    def _found(self, expert: str, key: str) -> dict[str, Any] | None:
        """What is known of finished rows; None where there are none, or where they are out of date."""
        wanted = self.prints.get(expert, {}).get(key)
        for about in (self.shards.about(expert, key), self.before[expert].about(key)):
            if about is not None and wanted is not None and about.get("fingerprint") == wanted:
                return about
        return None

    def _probe(self) -> None:
        from crossclr.experts.media.decoding import MediaError, probe

        for recording in self.listing.recordings:
            try:
                self.durations[recording.key] = probe(recording.path).duration
            except MediaError as error:
                self._leave_out(Problem(recording.path.name, str(error)))

    def _leave_out(self, problem: Problem) -> None:
        if self.settings.strict:
            raise StrictError(f"{problem} (--strict stops here; what is finished is kept)")
        self.report.problems.append(problem)


def _rows_in(path: Path) -> int:
    import h5py

    with h5py.File(path, "r", locking=False) as file:
        return sum(len(data) for data in file.values())
