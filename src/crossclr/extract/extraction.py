"""`crossclr extract` as a function: recordings and sentences in, a feature set to train on out."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save

from crossclr import __version__
from crossclr.errors import ReadError
from crossclr.extract.contract import Expert, ExpertError, TokenExpert
from crossclr.extract.decoding import probe
from crossclr.extract.finished_rows import FinishedRows, describe_times, write_arrays
from crossclr.extract.media import MediaError, media_kind
from crossclr.extract.pipeline import EncodedRecording, Pipeline, Progress
from crossclr.extract.plan import Report, Settings, StrictError
from crossclr.extract.recordings import Listing, Omission, Recording, list_media
from crossclr.extract.registry import load
from crossclr.extract.segments import Cutting, Span
from crossclr.extract.training_set import (
    FeatureSet,
    Segments,
    build_dataset,
    choose_modalities,
    coot_section,
    media_table,
    segments_within,
    shared_space,
    training_config,
)
from crossclr.notices import warn
from crossclr.storage import FolderLock, sweep, write_file, write_json
from crossclr.storage.reading import read_json_object, reading

META, MANIFEST, CONFIG, MEDIA = "meta_all.json", "manifest.json", "config.yaml", "media.json"
SHARED = "shared_space.safetensors"
PARAGRAPHS_AT_ONCE = 256
FEWEST = 10  # files with rows of an expert that training needs; for small sets, half of the files


def extract(
    source: Path | str,
    out: Path | str,
    experts: Sequence[Expert | str] = ("appearance", "text"),
    captions: Path | str | None = None,
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> Report:
    """Turn recordings and sentences into a feature set in COOT's layout.

    Rows that an earlier call finished are kept, even if it was killed; only what changed since is encoded again.

    Args:
        source: a folder, a recording, or a CSV or JSON file that names recordings.
        out: the folder to write.
        experts: experts, or their specs (see ``load``).
        captions: a caption file; without it, the subtitles next to a recording are its sentences.
        settings: how to extract.
        progress: called with the name of an expert and the number of rows it has finished.

    Raises:
        StrictError: with ``strict``, something would be omitted.
        ExpertError, MissingExtraError: an expert cannot be used.
        ValueError: there is nothing to extract.
    """
    built = [load(expert) if isinstance(expert, str) else expert for expert in experts]
    return Extraction(list_media(source, captions), Path(out), built, settings or Settings(), progress).run()


class Extraction:
    """One extraction: it knows what is missing, and does it.

    Args:
        listing: recordings and sentences.
        out: the folder to write.
        experts: the experts.
        settings: how to extract.
        progress: called with the name of an expert and the number of rows it has finished.
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
        self.experts = list(experts)
        self.modalities = choose_modalities(self.experts, settings.modalities)
        self.progress = progress or (lambda name, rows: None)
        self.report_files: Callable[[int, int], None] = lambda done, total: None  # files decoded, and all to decode
        self.media_experts = [expert for expert in experts if not isinstance(expert, TokenExpert)]
        self.text_experts = [expert for expert in experts if isinstance(expert, TokenExpert)]
        if self.text_experts and not listing.captioned and not settings.keep_all:
            raise ValueError(
                f"expert {self.text_experts[0].name!r} needs sentences, but there are none: name a caption file with "
                "--captions, or put subtitles (.srt, .vtt) next to the videos"
            )
        self.files = {recording.key: recording.path for recording in listing.recordings}
        self.durations: dict[str, float] = {}
        self.report = Report(out, unused=list(listing.unused))
        self.finished = FinishedRows(out, settings.stored)
        states = {key: path.stat() for key, path in self.files.items()}
        self._recall(out / MANIFEST)
        for expert in self.media_experts:
            self.finished.expect(expert, {key: [state.st_size, state.st_mtime_ns] for key, state in states.items()})

    def _recall(self, manifest: Path) -> None:
        """Take over what the manifest of an earlier extraction says; a damaged one is reported and written again."""
        if not manifest.exists():
            return
        try:
            recordings = read_json_object(manifest, "recordings")["recordings"]
            with reading(manifest, "a manifest of crossclr extract"):
                self.finished.recall_absences(recordings)
        except ReadError as error:
            warn(f"{error}. Recordings in which an expert found no input are decoded again, and the file is rewritten")

    def missing(self) -> list[tuple[Recording, list[Expert]]]:
        """Unfinished recordings, each with the experts whose rows it lacks."""
        lacking = []
        for recording in self.listing.recordings:
            absent = self.finished.absences(recording.key)
            experts = [
                expert
                for expert in self.media_experts
                if expert.name not in absent and not self.finished.find(expert.name, recording.key)
            ]
            if experts:
                lacking.append((recording, experts))
        return lacking

    def run(self) -> Report:
        """Encode everything that is missing and write the folder."""
        for problem in self.listing.problems:
            self._omit(problem)
        with FolderLock(self.out):
            return self._run()

    def _run(self) -> Report:
        self.out.mkdir(parents=True, exist_ok=True)
        sweep(self.out, recursive=True)
        todo = self.missing()
        self.report.kept = len(self.listing.recordings) - len(todo)
        if todo:
            self._encode_media(todo)
        for recording in self.listing.recordings:
            absent = self.finished.absences(recording.key)
            if self.settings.keep_all and len(absent) == len(self.media_experts):
                self._omit(Omission(recording.path.name, f"none of the experts {', '.join(absent)} takes such a file"))
            elif not self.settings.keep_all:  # where all are kept, a photo without sound is as it should be
                for expert in (expert for expert in self.media_experts if expert.name in absent):
                    self._omit(self._absence(recording.key, expert))
        self._find_durations()
        segments = self._segments()
        self._encode_texts(segments)
        self._write(segments)
        return self.report

    def _encode_media(self, todo: Sequence[tuple[Recording, list[Expert]]]) -> None:
        cores = os.cpu_count() or 1
        workers = self.settings.workers or max(1, min(4, cores // 2))
        before = torch.get_num_threads()
        torch.set_num_threads(self.settings.threads or before)
        experts = {recording.key: lacking for recording, lacking in todo}
        try:
            for done, finished in enumerate(Pipeline(workers, 1 if cores <= 2 else 0, self.progress).run(todo), 1):
                self._keep(finished, experts[finished.recording.key])
                self.report_files(done, len(todo))
        finally:
            torch.set_num_threads(before)

    def _keep(self, finished: EncodedRecording, experts: Sequence[Expert]) -> None:
        name = finished.recording.path.name
        if finished.error:
            self._omit(Omission(name, finished.error))
            return
        self.report.done += 1
        if finished.damaged:
            self._omit(Omission(name, f"{finished.damaged} damaged packets were skipped"))
        for expert in experts:
            rows = finished.rows.get(expert.name)
            if rows is None:
                self.finished.mark_absent(expert.name, finished.recording.key)
                if self.settings.strict:
                    self._omit(self._absence(finished.recording.key, expert))
                continue
            times = describe_times(expert.needs, len(rows), finished.duration)
            about = {"file": name, "duration_sec": finished.duration, **times}
            self.finished.add(expert, finished.recording.key, rows, **about)

    def _absence(self, key: str, expert: Expert) -> Omission:
        lacks = "sound track" if expert.needs.kind == "sound" else "images"
        what = f"it has no {lacks}, so no rows of {expert.name!r}"
        return Omission(self.files[key].name, what, minor=bool(self.text_experts) and len(self.media_experts) > 1)

    def _find_durations(self) -> None:
        for key, path in self.files.items():
            descriptions = [self.finished.find(expert.name, key) for expert in self.media_experts]
            known = [float(description["duration_sec"]) for description in descriptions if description is not None]
            try:
                if known or not self.media_experts:
                    self.durations[key] = known[0] if known else probe(path).duration
            except MediaError as error:
                self._omit(Omission(path.name, str(error)))

    def _segments(self) -> dict[str, Segments]:
        """The segments of each datapoint that lie in its recording."""
        segments: dict[str, Segments] = {}
        for point in self.listing.datapoints:
            duration, name = self.durations.get(point.recording), self.files[point.recording].name
            if duration is None:
                continue
            if point.segments:
                segments[point.key], problems = segments_within(point, duration, name)
                for problem in problems:
                    self._omit(problem)
            elif self.text_experts and not self.settings.keep_all:
                self._omit(Omission(name, "it has no sentence"))
            else:
                text = "" if self.settings.keep_all else point.recording
                segments[point.key] = [
                    {"text": text, "start_sec": start, "stop_sec": stop}
                    for start, stop in self._spans(point.recording, duration)
                ]
        return segments

    def _spans(self, key: str, duration: float) -> list[Span]:
        """The spans of a recording without sentences."""
        if self.settings.segments is None or media_kind(self.files[key]) == "image":
            return [(0.0, round(duration, 3))]
        rows = None
        for expert in self.media_experts:
            if rows is None and expert.needs.kind != "sound" and self.finished.find(expert.name, key) is not None:
                rows = self.finished.rows(expert.name, key)
        return Cutting.parse(self.settings.segments).spans(duration, rows)

    def _encode_texts(self, segments: Mapping[str, Segments]) -> None:
        texts = {key: [segment["text"] for segment in paragraph] for key, paragraph in segments.items() if paragraph}
        texts = {key: sentences for key, sentences in texts.items() if all(sentences)}
        for expert in self.text_experts:
            self.finished.expect(expert, texts)
            todo = [key for key in texts if self.finished.find(expert.name, key) is None]
            for start in range(0, len(todo), PARAGRAPHS_AT_ONCE):
                block = todo[start : start + PARAGRAPHS_AT_ONCE]
                for key, paragraph in zip(block, expert.paragraphs([texts[key] for key in block]), strict=True):
                    self.finished.add(expert, key, paragraph.rows, sentence_tokens=paragraph.counts)
                    self.progress(expert.name, len(paragraph.rows))
            long_texts = expert.long_texts(list(texts.values()))
            if long_texts is not None and long_texts.count:
                self.report.long_texts[expert.name] = long_texts

    def _write(self, segments: Mapping[str, Segments]) -> None:
        """Join all rows; each file appears when it is complete."""
        finished = {
            expert.name: {key for key in keys if self.finished.find(expert.name, key) is not None}
            for experts, keys in ((self.media_experts, list(self.files)), (self.text_experts, list(segments)))
            for expert in experts
        }
        settings = self.settings
        points, modalities = self.listing.datapoints, self.modalities
        data = build_dataset(
            points, self.durations, segments, finished, modalities, settings.fractions, settings.keep_all
        )
        data.stored = settings.stored
        if not data.meta:
            reason = f" ({self.report.problems[0]})" if self.report.problems else ""
            raise ValueError(f"nothing could be extracted{reason}")
        self._join_rows(data, finished)
        write_json(self.out / META, data.meta)
        write_json(self.out / MEDIA, media_table(data, self.files))
        self.report.datapoints, self.report.clips = len(data.meta), data.clips
        data.modalities = data.modalities.only(self._common(data, finished))
        if len(data.modalities.experts) > 1:
            name = re.sub(r"[^\w.+-]+", "-", self.out.resolve().name) or "features"
            section = write_arrays(self.out, data) if data.as_arrays else coot_section(data, self.out)
            zero_shot = self._write_shared_space(data)
            write_file(self.out / CONFIG, training_config(data, section, name, zero_shot, settings.keep_all))
            self.report.config = self.out / CONFIG
        write_json(self.out / MANIFEST, self._manifest(finished, data))
        self.finished.remove_parts()

    def _write_shared_space(self, data: FeatureSet) -> Path | None:
        """The file of the space that experts share; an earlier one stays if it is of the same experts."""
        path = self.out / SHARED
        made_from = repr([data.modalities, *((one.name, one.space, one.version, one.dim) for one in self.experts)])
        if path.is_file():
            with reading(path, "shared space"), safe_open(path, "pt") as file:
                if file.metadata()["made_from"] == made_from:
                    return path
        space = shared_space(self.experts, data.modalities, every=self.settings.keep_all)
        if space is None:
            return None
        write_file(path, save(space.tensors(), {"about": space.about, "made_from": made_from}))
        return path

    def _common(self, data: FeatureSet, finished: Mapping[str, set[str]]) -> list[str]:
        """The experts that have rows of enough files to train with."""
        keys = {entry["data_key"] for entry in data.meta.values()} | data.meta.keys()
        counts = {name: len(present & keys) for name, present in finished.items()}
        if self.settings.keep_all:
            return [
                name
                for name, count in counts.items()
                if count or name in self.modalities.experts.get(self.modalities.text or "", ())
            ]
        enough = min(FEWEST, len(data.meta) / 2)
        for name in (name for name, count in counts.items() if 0 < count < enough):
            what = f"only {counts[name]} of {len(data.meta)} files have rows, so training does not use it"
            self.report.problems.append(Omission(name, what, minor=True))
        return [name for name, count in counts.items() if count >= enough]

    def _join_rows(self, data: FeatureSet, finished: Mapping[str, set[str]]) -> None:
        used = {entry["data_key"] for entry in data.meta.values()}
        recordings = [key for key in self.files if key in used]
        for expert in self.experts:
            reads = isinstance(expert, TokenExpert)
            keys = [key for key in (data.meta if reads else recordings) if key in finished[expert.name]]
            self.report.rows[expert.name] = 0
            if keys or (reads and self.settings.keep_all):
                joined = self.finished.join(expert, keys)
                self.report.rows[expert.name] = joined.rows
                if reads:
                    write_json(self.out / f"{expert.name}_sentence_splits.json", joined.sentence_tokens)

    def _manifest(self, finished: Mapping[str, set[str]], data: FeatureSet) -> dict[str, Any]:
        return {
            "crossclr": __version__,
            "experts": {
                expert.name: {
                    **asdict(expert.origin()),
                    "needs": asdict(expert.needs),
                    "stored": self.settings.stored,
                    "spec": expert.spec,
                    "options": dict(expert.options),
                }
                for expert in self.experts
            },
            "modalities": data.modalities.experts,
            "recordings": {
                key: {
                    "file": str(path),
                    "duration_sec": self.durations[key],
                    "experts": [expert.name for expert in self.media_experts if key in finished[expert.name]],
                    "without": self.finished.absences(key),
                }
                for key, path in self.files.items()
                if key in self.durations
            },
            "omitted": [asdict(problem) for problem in self.report.problems],
            "long_texts": {name: asdict(counts) for name, counts in self.report.long_texts.items()},
        }

    def _omit(self, problem: Omission) -> None:
        if self.settings.strict:
            raise StrictError(f"{problem} (--strict stops here; finished rows are kept)")
        self.report.problems.append(problem)
