"""The paper's numbers next to ours: as a table of 80 columns, as JSON, as an HTML report.

How long trainings will take, from a few measured steps.

Reproduce a table or figure of the paper: plan its trainings, run those that are missing, compare.
"""

import html
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from crossclr.data import open_data
from crossclr.evaluation.result_tables import mean_and_deviation
from crossclr.storage import write_file, write_json
from crossclr.studies.experiment_runs import missing_jobs, run_all, show_trainings
from crossclr.studies.html_page import Page
from crossclr.studies.paper_numbers import Caption, PaperTable, Results, paper_table, planned, results_by_row
from crossclr.studies.report import ReportFigures
from crossclr.studies.study import Study, Variant, open_study
from crossclr.studies.tables import Cell, Table
from crossclr.studies.trainings import Job, open_trainer, perform
from crossclr.studies.worker_pool import Perform, open_pool
from crossclr.training import JointTraining, RunConfig
from crossclr.training.processes import make_fabric
from crossclr.training.torch_settings import torch_settings, torch_threads


@dataclass(frozen=True)
class ComparedNumber:
    """One number of the paper and ours."""

    row: str  # row of the paper's table, or a training of ours that the paper does not list
    group: str  # direction or kind of measurement
    metric: str  # such as R@1
    paper: float | None  # the paper's mean, None where it prints none
    paper_std: float | None  # its standard deviation
    ours: float | None  # our mean over seeds, None where nothing was trained
    ours_std: float | None  # our sample standard deviation, None for a single seed
    seeds: int  # trainings behind our mean

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.paper is None or self.ours is None else self.ours - self.paper


def compare(table: PaperTable, rows: Mapping[str, Sequence[Results]]) -> list[ComparedNumber]:
    """Every number of the table with ours next to it; rows of ours that the paper lacks come last.

    Example:
        >>> from crossclr.studies.reproduce import paper_table
        >>> ours = {"CrossCLR": [{"text → video": {"R@1": 20.0}}, {"text → video": {"R@1": 21.0}}]}
        >>> found = compare(paper_table("losses", "youcook2"), ours)
        >>> first = next(number for number in found if number.row == "CrossCLR")
        >>> first.paper, first.ours, first.difference, first.seeds
        (19.5, 20.5, 1.0, 2)
    """
    numbers = []
    for row in dict.fromkeys([*table.rows, *rows]):
        for group, metrics in table.columns.items():
            for metric in metrics:
                printed = table.number(row, group, metric)
                values = [_value(results, group, metric) for results in rows.get(row, ())]
                mean, deviation = mean_and_deviation(values)
                numbers.append(
                    ComparedNumber(
                        row,
                        group,
                        metric,
                        paper=None if printed is None else printed.mean,
                        paper_std=None if printed is None else printed.std,
                        ours=None if math.isnan(mean) else mean,
                        ours_std=None if math.isnan(deviation) else deviation,
                        seeds=sum(not math.isnan(value) for value in values),
                    )
                )
    return numbers


def comparison_tables(table: PaperTable, numbers: Sequence[ComparedNumber]) -> list[Table]:
    """Tables of at most 80 columns: a group's metrics by twos or threes."""
    tables: list[Table] = []
    for group, metrics in table.columns.items():
        size = 3 if max(map(len, metrics)) <= 5 else 2  # with paper, ours and difference each, a table fits 80 columns
        for start in range(0, len(metrics), size):
            shown = metrics[start : start + size]
            by_cell = {(number.row, number.metric): number for number in numbers if number.group == group}
            rows = []
            for row in dict.fromkeys(number.row for number in numbers):
                cells = [by_cell[row, metric] for metric in shown]
                words = [word for cell in cells for word in _words(cell)]
                rows.append([Cell(text=word) for word in (row, *words)])
            heads = ["", *(f"{metric}\n{what}" for metric in shown for what in ("paper", "ours", "diff."))]
            name = f"reproduce-{table.target}-{len(tables) + 1}"
            tables.append(Table(name, f"{table.title}, {group}", heads, rows))
    return tables


def write_comparison(
    folder: Path, table: PaperTable, numbers: Sequence[ComparedNumber], facts: Mapping[str, str], page: Page | None
) -> tuple[Path, Path]:
    """Write ``reproduce-<target>.json`` and ``.html`` (and the tables as CSV and LaTeX); returns the two files.

    ``facts`` say how it was made (data, seeds, command); the figures of ``page`` follow the tables.
    """
    stem = f"reproduce-{table.target}"
    values: dict[str, Any] = {"target": table.target, "title": table.title, **facts, "claims": list(table.claims)}
    values["numbers"] = [{**asdict(number), "difference": number.difference} for number in numbers]
    write_json(folder / f"{stem}.json", values)
    report = Page(f"{table.title}: the paper and ours")
    report.facts(list(facts.items()))
    for shown in comparison_tables(table, numbers):
        shown.write(folder / "tables")
        report.html(f'<h3>{html.escape(shown.title)}</h3><div class="scroll">{shown.html()}</div>')
    for claim in table.claims:
        report.text(f"The paper: {claim}.")
    script = ""
    if page is not None:
        from plotly.offline import get_plotlyjs

        report.parts += page.parts
        report.links += page.links
        script = get_plotlyjs()
    write_file(folder / f"{stem}.html", report.render(script))
    return folder / f"{stem}.json", folder / f"{stem}.html"


def _value(results: Results, group: str, metric: str) -> float:
    return float(results.get(group, {}).get(metric, math.nan))


def _words(number: ComparedNumber) -> tuple[str, str, str]:
    paper, ours = ("–" if value is None else f"{value:.1f}" for value in (number.paper, number.ours))
    return paper, ours, "–" if number.difference is None else f"{number.difference:+.1f}"


STEPS = 2  # measured, after one that warms up
VALIDATION = 1.15  # validation and checkpoints add about this factor


def estimated_seconds(config: RunConfig, in_memory: bool) -> float:
    """Estimated seconds of a training on this machine: a few steps are taken and thrown away.

    Args:
        config: the training.
        in_memory: it is one of several on one thread each, with the data in memory. Otherwise it has all threads, and
            reads its data from files.
    """
    train = config.splits.train
    data = open_trainer(config).samples(train) if in_memory else open_data(config.data).where(split=train)
    with torch_threads(1 if in_memory else None), torch_settings(config.training):
        training = JointTraining(config, data, make_fabric(config.training.accelerator, 1, "32-true"))
        stream = training.batches(0)
        training.step(next(stream))
        count, began = 0, time.monotonic()
        for batch, _ in zip(stream, range(STEPS), strict=False):
            training.step(batch)
            count += 1
        seconds = (time.monotonic() - began) / max(1, count)
    return seconds * training.batches_per_epoch * config.training.epochs * VALIDATION


DATASETS = {"youcook2": "video_feat_100m.h5", "lsmdc": "video_feat_action.h5"}  # the features that tell them apart
_MLP = "{kind: mlp, sequence_pooling: mean, blocks: 1, dropout: 0.1}"
CLIP_LEVEL = (
    "data.two_level=false",
    "loss.global=null",
    f"model={{dim: 384, encoder: {_MLP}}}",
    "training.batch_size=496",  # the clips of 64 videos
)


@dataclass(frozen=True)
class Reproduction:
    """A table of the paper on a folder of features, and the trainings that it needs."""

    data: str
    table: PaperTable
    study: Study
    variants: Sequence[Variant]

    def missing(self) -> list[Job]:
        """The trainings that are not finished."""
        return missing_jobs(self.variants, self.study)

    def plan(self) -> Table:
        """What will be trained, for the terminal."""
        rows = []
        for variant in self.variants:
            done = sum(self.study.finished.find(job) is not None for job in variant.jobs())
            counts = (variant.name, str(len(variant.seeds)), str(done), str(variant.config.training.epochs))
            rows.append([Cell(text=word) for word in counts])
        return Table("plan", f"{self.table.title}: planned trainings", ["training", "seeds", "done", "epochs"], rows)


def open_reproduction(
    target: str,
    data: str | Path,
    out: str | Path,
    *,
    overrides: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    clip_level: bool = False,
) -> Reproduction:
    """Prepare a table of the paper; nothing is trained or written.

    Args:
        target: a key of `TARGETS`.
        data: folder in COOT's layout with the features of YouCook2 or LSMDC.
        out: where trainings and results go; a second call continues there.
        overrides: changes to the config of every training, ``a.b=value``.
        seeds: instead of the paper's five (YouCook2) or one (LSMDC).
        clip_level: an MLP on pooled clips in place of the two-level model, as a quick check.

    Raises:
        ValueError: the folder holds neither data set, or the paper does not show the target on it.
    """
    folder = Path(data)
    dataset = find_dataset(folder)
    table = paper_table(target, dataset)
    given = [f"data.root={json.dumps(str(folder.resolve()))}", *_text_file(folder, dataset)]
    changes = [*given, *(CLIP_LEVEL if clip_level else ()), *overrides]
    study = open_study(dataset, out, changes, seeds)
    return Reproduction(str(folder), table, study, planned(study, table))


def reproduce(
    reproduction: Reproduction,
    *,
    train: Perform = perform,
    caption: Caption | None = None,
    jobs: int = 1,
    console: Console | None = None,
) -> list[ComparedNumber]:
    """Run the trainings that are missing and compare their results with the paper's numbers.

    Writes ``reproduce-<target>.json`` and ``.html`` into the folder.

    Args:
        reproduction: from `open_reproduction`.
        train: trains one job and leaves its run folder; the default keeps the data in memory and starts a training that
            was interrupted again from its beginning.
        caption: trains and scores a captioner on a run folder; only captioning needs it.
        jobs: trainings at the same time.
        console: shows progress.

    Raises:
        Interrupted: after Ctrl-C; calling it again resumes.
    """
    study, table = reproduction.study, reproduction.table
    missing = reproduction.missing()
    study.prepare_folder()
    with open_pool(study.out, jobs, train) as pool, show_trainings("trainings", len(missing), console) as step:
        run_all(missing, pool, step)
    numbers: list[ComparedNumber] = []
    page: Page | None = None
    if table.target == "figures":
        page = Page("")
        ReportFigures(study).add(page)
    else:
        numbers = compare(table, results_by_row(study, table, reproduction.variants, caption))
    facts = {"data": reproduction.data, "seeds": ", ".join(map(str, study.seeds))}
    written = write_comparison(study.out, table, numbers, facts, page)
    if console is not None:
        for shown in comparison_tables(table, numbers):
            console.print(*shown.rich())
        for claim in table.claims:
            console.print(f"The paper: {claim}.", highlight=False)
        for path in written:
            console.print(str(path), highlight=False, markup=False, soft_wrap=True)
    return numbers


def find_dataset(folder: Path) -> str:
    """Which data set a folder holds, by its feature files."""
    names = [name for name, features in DATASETS.items() if (folder / features).is_file()]
    if "lsmdc" in names:  # it has HowTo100M features too
        return "lsmdc"
    if not names:
        files = " nor ".join(f"{features} ({name})" for name, features in DATASETS.items())
        raise ValueError(f"{folder} holds neither {files}; docs/reproduce.md describes the folder")
    return names[0]


def _text_file(folder: Path, dataset: str) -> list[str]:
    """Text features of another name than the paper's, where the folder has exactly one such file."""
    paper = f"text_feat_{dataset}_meta_all_transformers_bert-base-uncased_-2,-1.h5"
    others = sorted(path.name for path in folder.glob("text_feat_*.h5"))
    return [f"data.text={json.dumps(others[0])}"] if paper not in others and len(others) == 1 else []
