"""Reproduce a table or figure of the paper: plan its trainings, run those that are missing, compare."""

import html
import itertools
import json
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from crossclr.data import open_data
from crossclr.losses.names import printed_options
from crossclr.storage import write_file, write_json
from crossclr.studies import plots
from crossclr.studies.experiments import missing_jobs, run_all, show_trainings
from crossclr.studies.loss_experiments import Sweeps
from crossclr.studies.paper_numbers import (
    CAPTION_FEATURES,
    Caption,
    ComparedNumber,
    PaperTable,
    caption_folder,
    compare,
    comparison_tables,
    findings,
    paper_table,
    planned,
    results_by_row,
)
from crossclr.studies.plots import Page, save_figures
from crossclr.studies.report import FIGURES, ReportFigures
from crossclr.studies.study import Study, Variant, open_study
from crossclr.studies.tables import Cell, Table
from crossclr.studies.trainings import Job, Perform, open_pool, open_trainer, perform
from crossclr.suggestions import suggest
from crossclr.training import JointTraining, RunConfig
from crossclr.training.processes import make_fabric
from crossclr.training.run_folder import RESULTS
from crossclr.training.torch_settings import torch_settings, torch_threads


def write_comparison(
    reproduction: "Reproduction", numbers: Sequence[ComparedNumber], page: Page | None
) -> tuple[Path, Path]:
    """Write ``reproduce-<target>.json`` and ``.html`` (and the tables as CSV and LaTeX); returns the two files.

    The figures of ``page`` follow the tables.
    """
    folder, table = reproduction.study.out, reproduction.table
    facts, unlike = reproduction.facts, reproduction.unlike_the_paper
    stem = f"reproduce-{table.target}"
    values: dict[str, Any] = {"target": table.target, "title": table.title, **facts, "unlike_the_paper": list(unlike)}
    values |= {"claims": list(table.claims), "findings": findings(table, numbers)}
    values["numbers"] = [{**asdict(number), "difference": number.difference} for number in numbers]
    write_json(folder / f"{stem}.json", values)
    report = Page(f"{table.title}: the paper and ours")
    report.facts(list(facts.items()))
    for line in unlike:
        report.text(f"Not as in the paper: {line}.", "loud")
    for shown in comparison_tables(table, numbers):
        shown.write(folder / "tables")
        report.html(f'<h3>{html.escape(shown.title)}</h3><div class="scroll">{shown.html()}</div>')
    if numbers:
        report.text(
            "± is the sample standard deviation over seeds, as the paper prints it and of our trainings.", "dim"
        )
    for line in (*(f"The paper: {claim}." for claim in table.claims), *findings(table, numbers)):
        report.text(line)
    script = ""
    if page is not None:
        from plotly.offline import get_plotlyjs

        report.parts += page.parts
        report.links += page.links
        script = get_plotlyjs()
        save_figures(page.figures, folder / FIGURES, script)
    write_file(folder / f"{stem}.html", report.render(script))
    return folder / f"{stem}.json", folder / f"{stem}.html"


STEPS = 2  # measured, after one that warms up
VALIDATION = 1.15  # validation and checkpoints add about this factor


def seconds_per_epoch(config: RunConfig, in_memory: bool) -> float:
    """Estimated seconds of an epoch on this machine: a few steps are taken and thrown away.

    Args:
        config: the training.
        in_memory: it is one of several on one thread each, with the data in memory. Otherwise it has all threads, and
            reads its data from files.
    """
    train = config.splits.train
    data = open_trainer(config).samples(train) if in_memory else open_data(config.data).where(split=train)
    with torch_threads(1 if in_memory else None), torch_settings(config.training):
        training = JointTraining(config, data, make_fabric(config.training.accelerator, 1, "32-true"))
        stream = (batch for epoch in itertools.count() for batch in training.batches(epoch))
        training.step(next(stream))
        began = time.monotonic()
        for batch in itertools.islice(stream, STEPS):
            training.step(batch)
        seconds = (time.monotonic() - began) / STEPS
    return seconds * training.batches_per_epoch * VALIDATION


DATASETS = {"youcook2": "video_feat_100m.h5", "lsmdc": "video_feat_action.h5"}  # the features that tell them apart
_MLP = "{kind: mlp, sequence_pooling: mean, blocks: 1, dropout: 0.1}"
CLIP_LEVEL = (
    "data.two_level=false",
    "loss.global=null",
    f"model={{dim: 384, encoder: {_MLP}}}",
    "training.batch_size=496",  # the clips of 64 videos
)


GALLERY = {"youcook2": 3492, "lsmdc": 1000}  # the paper's test clips
EPOCHS = 40  # the paper's
CAPTIONER = "captions."  # changes with this prefix are for the captioners


@dataclass(frozen=True)
class Reproduction:
    """A table of the paper on a folder of features, and the trainings that it needs."""

    table: PaperTable
    study: Study
    variants: Sequence[Variant]
    facts: Mapping[str, str]  # how it is made
    unlike_the_paper: Sequence[str]  # settings that forbid a comparison with the printed numbers
    captioner: Sequence[str] = ()  # changes to the config of every captioner

    def missing(self) -> list[Job]:
        """The trainings that are not finished."""
        return missing_jobs(self.variants, self.study)

    def captioners(self) -> list[tuple[str, bool]]:
        """The name of each captioner that is needed, and whether it is finished."""
        if self.table.target != "captioning":
            return []
        folders = [
            (f"captioner of {variant.name}{mark}", caption_folder(job.path(self.study.out), features))
            for mark, features in CAPTION_FEATURES.items()
            for variant in self.variants
            for job in variant.jobs()
        ]
        return [(name, (folder / RESULTS).is_file()) for name, folder in folders]

    def estimated_seconds(self, in_memory: bool) -> dict[str, float]:
        """By name of the training: seconds of each. An epoch is measured once for each model, data and batch size."""
        epochs: dict[str, float] = {}
        seconds = {}
        for job in self.missing():
            config = job.config
            decisive = [config.data, config.model, config.training.batch_size, config.loss.two_level]
            key = repr(decisive)
            if key not in epochs:
                epochs[key] = seconds_per_epoch(config, in_memory)
            seconds[job.name] = epochs[key] * config.training.epochs
        return seconds

    def plan(self) -> Table:
        """What will be trained, for the terminal."""
        rows = []
        for variant in self.variants:
            done = sum(self.study.finished.find(job) is not None for job in variant.jobs())
            rows.append((variant.name, str(len(variant.seeds)), str(done), str(variant.config.training.epochs)))
        for name in dict.fromkeys(name for name, _ in self.captioners()):
            done_each = [done for other, done in self.captioners() if other == name]
            rows.append((name, str(len(done_each)), str(sum(done_each)), ""))
        cells = [[Cell(text=word) for word in row] for row in rows]
        return Table("plan", f"{self.table.title}: planned trainings", ["training", "seeds", "done", "epochs"], cells)


def open_reproduction(
    target: str,
    data: str | Path,
    out: str | Path,
    *,
    overrides: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    clip_level: bool = False,
    printed: str | None = None,
    sweep: str | None = None,
) -> Reproduction:
    """Prepare a table of the paper; nothing is trained or written.

    Args:
        target: a key of `TARGETS`.
        data: folder in COOT's layout with the features of YouCook2 or LSMDC.
        out: where trainings and results go; a second call continues there.
        overrides: changes to the config of every training, ``a.b=value``; ``captions.a.b=value`` is for captioners.
        seeds: instead of the paper's five (YouCook2) or one (LSMDC).
        clip_level: an MLP on pooled clips in place of the two-level model, as a quick check.
        printed: a literal reading of the paper instead of ours, see `CrossCLR.printed`.
        sweep: the only option that ``sweeps`` varies; None varies all.

    Raises:
        ValueError: the folder holds neither data set, or the paper does not show the target on it.
    """
    folder = Path(data)
    dataset = find_dataset(folder)
    table = paper_table(target, dataset)
    if target == "captioning" and clip_level:
        raise ValueError("captioning needs the embeddings of videos, which --clip-level does not train; omit one")
    captioner = [change.removeprefix(CAPTIONER) for change in overrides if change.startswith(CAPTIONER)]
    user = [change for change in overrides if not change.startswith(CAPTIONER)]
    given = [f"data.root={json.dumps(str(folder.resolve()))}", *_text_file(folder, dataset)]
    reading = [] if printed is None else _literally(printed, dataset, clip_level)
    changes = [*given, *(CLIP_LEVEL if clip_level else ()), *reading, *user]
    study = open_study(dataset, out, changes, seeds)
    if sweep is not None:
        study.settings = study.settings.model_copy(update={"sweeps": _one_sweep(study, sweep)})
    variants = planned(study, table, len(seeds) if seeds else 1)
    used = sorted({seed for variant in variants for seed in variant.seeds})
    words = ["crossclr", "study", "reproduce", target, "--data", str(data), "--out", str(out)]
    words += [] if seeds is None else ["--seeds", ",".join(map(str, seeds))]
    words += [*(["--clip-level"] if clip_level else []), *([] if printed is None else ["--printed", printed])]
    words += [*([] if sweep is None else ["--sweep", sweep]), *(w for change in overrides for w in ("--set", change))]
    config, clips = study.base, study.clip_count()
    facts = {
        "command": shlex.join(words),
        "data": str(folder),
        "level": "clips, with an MLP on pooled rows" if clip_level else "clips of the two-level model",
        "reading": "ours, see docs/losses/choices.md" if printed is None else f"the printed {printed}",
        "changes": "; ".join(overrides) or "none",
        "epochs": ", ".join(map(str, sorted({variant.config.training.epochs for variant in variants}))),
        "seeds": ", ".join(map(str, used)),
        "features": f"{DATASETS[dataset]}, {_text_name(config)}",
        "gallery": f"{clips:,} clips of split {config.splits.test}",
        "version": metadata.version("crossclr"),
    }
    unlike = _unlike(dataset, target, config, clips, len(used), clip_level)
    return Reproduction(table, study, variants, facts, unlike, captioner)


def _unlike(dataset: str, target: str, config: RunConfig, clips: int, seeds: int, clip_level: bool) -> list[str]:
    """Settings that forbid a comparison with the printed numbers, each as the end of a sentence."""
    lines = []
    if clip_level:
        lines.append("an MLP on pooled clips instead of the two-level model")
    if clips != GALLERY[dataset]:
        lines.append(f"a gallery of {clips:,} clips instead of {GALLERY[dataset]:,}; in a smaller one recall is higher")
    epochs, warmup = config.training.epochs, config.schedule.warmup_epochs
    if epochs != EPOCHS:
        within = ", within the warm-up" if epochs <= warmup else ""
        lines.append(f"{epochs} epoch{'s' if epochs > 1 else ''} instead of {EPOCHS}{within}")
    paper = {"captioning": 1, "figures": 1, "sweeps": 3}.get(target, 5) if dataset == "youcook2" else 1
    if seeds < paper:
        lines.append(f"{seeds} seed{'s' if seeds > 1 else ''} instead of {paper}")
    if "bert" not in _text_name(config):
        lines.append(f"text features {_text_name(config)} instead of BERT's")
    return lines


def _text_name(config: RunConfig) -> str:
    text = config.data.model_dump(mode="json").get("text") or ""
    return text if isinstance(text, str) else ", ".join(text)


def _literally(reading: str, dataset: str, clip_level: bool) -> list[str]:
    """Changes that put a literal reading on both levels: without a queue on the upper one, and without clipping."""
    options = printed_options(reading, dataset)
    levels = {"local": options} if clip_level else {"local": options, "global": options | {"queue_size": 0}}
    changes = [
        f"loss.{level}.{name}={json.dumps(value)}" for level, own in levels.items() for name, value in own.items()
    ]
    return [*changes, "training.gradient_clip=null"]


def _one_sweep(study: Study, name: str) -> dict[str, list[Any]]:
    sweeps = study.settings.sweeps
    if name not in sweeps:
        raise ValueError(f"there is no sweep over {name!r}; {suggest(name, sweeps)}")
    return {name: sweeps[name]}


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
    if table.target == "sweeps":
        page = Page("")
        for curve in Sweeps().curves(study):
            page.section(f"sweep-{curve.option}", curve.title.capitalize())
            page.plot(plots.curve(curve), curve.sentence)
    written = write_comparison(reproduction, numbers, page)
    if console is not None:
        for shown in comparison_tables(table, numbers, narrow=True):
            console.print(*shown.rich())
        for line in (*(f"The paper: {claim}." for claim in table.claims), *findings(table, numbers)):
            console.print(line, highlight=False)
        show_differences(reproduction, console)
        for path in written:
            console.print(str(path), highlight=False, markup=False, soft_wrap=True)
    return numbers


def show_differences(reproduction: Reproduction, console: Console) -> None:
    """Print where the settings are not the paper's."""
    for line in reproduction.unlike_the_paper:
        console.print(f"[bold]Not as in the paper:[/bold] {escape(line)}.", highlight=False)


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
