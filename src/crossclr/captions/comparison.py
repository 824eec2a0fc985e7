"""Compare captions from several encoders and seeds in one table, with human captions as an upper bound."""

import contextlib
import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from crossclr.captions.caption_config import CaptionConfig
from crossclr.captions.caption_metrics import METRICS, human_ceiling, shown_name
from crossclr.captions.meteor import Meteor, MeteorError
from crossclr.captions.pipeline import final_part, load_part, resume_captions, train_captions
from crossclr.evaluation.result_tables import mean_and_deviation, plain_table
from crossclr.storage import write_file
from crossclr.training import Run

UNTRAINED, PEOPLE = "untrained", "people"
SHOWN = ("Bleu_3", "Bleu_4", "METEOR", "ROUGE_L", "CIDEr", "RE@4")


@dataclass(frozen=True)
class Row:
    """One encoder."""

    name: str  # of the run
    seeds: tuple[int, ...]  # of the captioners
    mean: dict[str, float | None]  # of each metric over the seeds; None where it could not be computed
    std: dict[str, float | None]  # the sample standard deviation
    each: tuple[dict[str, float | None], ...]  # metrics of every seed


@dataclass(frozen=True)
class CaptionComparison:
    """What `compare_captions` measured.

    Args:
        part: the scored split or file.
        videos: number of videos.
        rows: one for each encoder, people last.
        notes: remarks for the reader.
    """

    part: str
    videos: int
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    def table(self) -> Table:
        """A table for the terminal."""
        table = plain_table(f"Captions on {self.part}: {self.videos:,} videos", [*map(shown_name, SHOWN)])
        for row in self.rows:
            table.add_row(row.name, *(_cell(row, name) for name in SHOWN))
        return table

    def markdown(self) -> str:
        """The same table in Markdown, with all metrics."""
        lines = [
            "| embedding | " + " | ".join(map(shown_name, METRICS)) + " |",
            "|---" + "|---:" * len(METRICS) + "|",
            *(f"| {row.name} | " + " | ".join(_cell(row, name) for name in METRICS) + " |" for row in self.rows),
        ]
        seeds = ", ".join(str(seed) for seed in self.rows[0].seeds)
        head = f"Captions on {self.part}, {self.videos:,} videos; seeds {seeds}; mean ± sample standard deviation."
        return "\n".join([head, "", *lines, *(f"\n{note}" for note in self.notes)]) + "\n"

    def csv(self) -> str:
        """One line for each encoder and seed."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["embedding", "seed", *METRICS])
        for row in self.rows:
            for seed, metrics in zip(row.seeds, row.each, strict=True):
                writer.writerow([row.name, seed, *(metrics[name] for name in METRICS)])
        return text.getvalue()


def compare_captions(
    runs: Sequence[str | Path],
    config: CaptionConfig,
    seeds: Sequence[int],
    out: str | Path,
    *,
    untrained: bool = True,
    meteor: bool = True,
    console: Console | None = None,
) -> CaptionComparison:
    """Train a captioner for each run and seed, and put their scores into one table.

    Call it again to resume: finished captioners in ``out`` are kept and stopped ones resume.

    Args:
        runs: run folders; all have the same data.
        config: the captioner; its data.run, data.untrained and seed are set here.
        seeds: of the captioners.
        out: the folder of all captioners and of ``comparison.json``, ``.csv`` and ``.md``.
        untrained: include the first run's encoder with its initial weights.
        meteor: include METEOR.
        console: where to show progress; None shows nothing.

    Raises:
        Interrupted: after Ctrl-C; call again to resume.
    """
    if not runs or not seeds or len(set(seeds)) != len(seeds):
        raise ValueError(
            f"at least one run and different seeds are needed, got {len(runs)} runs and seeds {list(seeds)}"
        )
    names = distinct_names([Run.open(run).path for run in runs], "-")
    if len(set(names)) < len(names) or {UNTRAINED, PEOPLE} & set(names):
        raise ValueError(f"the runs need different names (and not {UNTRAINED} or {PEOPLE}), got {', '.join(names)}")
    sources = [(name, str(run), False) for name, run in zip(names, runs, strict=True)]
    if untrained:
        sources.append((UNTRAINED, str(runs[0]), True))
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    notes: list[str] = []
    with _meteor(meteor, notes) as running:
        rows = []
        for name, run, fresh in sources:
            data = config.data.model_copy(update={"run": run, "untrained": fresh})
            each = [
                _scores(config.model_copy(update={"seed": seed, "data": data}), folder / name, console, running)
                for seed in seeds
            ]
            rows.append(_row(name, seeds, each))
        part = final_part(config)
        first = config.model_copy(update={"data": config.data.model_copy(update={"run": str(runs[0])})})
        references = load_part(first, part).references()
        people = [human_ceiling(references, seed, meteor=running) for seed in seeds]
    if measured := [scores.metrics for scores in people if scores is not None]:
        rows.append(_row(PEOPLE, seeds, measured))
        notes.append(
            "people: a random caption of each clip is scored against the others (leave-one-out), so it has one "
            "reference fewer than the captioners."
        )
    comparison = CaptionComparison(Path(part).stem, len(references), tuple(rows), tuple(notes))
    write_file(folder / "comparison.json", json.dumps(asdict(comparison), indent=2))
    write_file(folder / "comparison.csv", comparison.csv())
    write_file(folder / "comparison.md", comparison.markdown())
    return comparison


def _scores(
    config: CaptionConfig, folder: Path, console: Console | None, meteor: Meteor | bool
) -> dict[str, float | None]:
    """The metrics of a captioner, which is trained, resumed or only read."""
    path = folder / f"seed-{config.seed}"
    if console is not None:
        console.print(f"{folder.name}, seed {config.seed}", highlight=False)
    if path.exists():
        done = resume_captions(path, console=console, meteor=meteor)
    else:
        done = train_captions(config, out=path, console=console, meteor=meteor)
    metrics: dict[str, float | None] = (done.results or {})["metrics"]
    return metrics


@contextlib.contextmanager
def _meteor(include: bool, notes: list[str]) -> Iterator[Meteor | bool]:
    """One METEOR process for the whole table; False, and a note, without Java."""
    running: contextlib.AbstractContextManager[Meteor | bool] = contextlib.nullcontext(False)
    if include:
        try:
            running = Meteor()
        except MeteorError as error:
            notes.append(f"no METEOR: {error}")
    with running as meteor:
        yield meteor


def _row(name: str, seeds: Sequence[int], each: Sequence[dict[str, float | None]]) -> Row:
    mean: dict[str, float | None] = {}
    std: dict[str, float | None] = {}
    for metric in METRICS:
        values = [value for value in (metrics.get(metric) for metrics in each) if value is not None]
        complete = len(values) == len(each)
        average, deviation = mean_and_deviation(values)
        mean[metric] = average if complete else None
        std[metric] = (deviation if len(values) > 1 else 0.0) if complete else None
    return Row(name, tuple(seeds), mean, std, tuple(each))


def _cell(row: Row, metric: str) -> str:
    mean, std = row.mean[metric], row.std[metric]
    if mean is None or std is None:
        return "—"
    return f"{mean:.1f} ± {std:.1f}" if len(row.each) > 1 else f"{mean:.1f}"


def distinct_names(paths: Sequence[Path], separator: str) -> list[str]:
    """Names of folders; with the name of the parent folder if two are equal."""
    names = [path.resolve().name for path in paths]
    if len(set(names)) == len(names):
        return names
    return [f"{path.resolve().parent.name}{separator}{path.resolve().name}" for path in paths]
