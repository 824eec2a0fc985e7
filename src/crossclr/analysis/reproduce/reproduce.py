"""Reproduce a table or figure of the paper: plan its trainings, run those that are missing, compare."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from crossclr.analysis.report.html_page import Page
from crossclr.analysis.report.write import Drawn
from crossclr.analysis.reproduce.comparison import ComparedNumber, compare, comparison_tables, write_comparison
from crossclr.analysis.reproduce.paper_numbers import PaperTable, paper_table
from crossclr.analysis.reproduce.trainings import Caption, planned, results_by_row
from crossclr.analysis.studies.open_study import Study, Variant, open_study
from crossclr.analysis.studies.run_experiments import missing_jobs, run_all, show_trainings
from crossclr.analysis.studies.stored_trainings import Job, perform
from crossclr.analysis.studies.worker_pool import Perform, open_pool
from crossclr.analysis.tables import Cell, Table

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
    wanted: Reproduction,
    *,
    train: Perform = perform,
    caption: Caption | None = None,
    jobs: int = 1,
    console: Console | None = None,
) -> list[ComparedNumber]:
    """Run the trainings that are missing and compare their results with the paper's numbers.

    Writes ``reproduce-<target>.json`` and ``.html`` into the folder.

    Args:
        wanted: from `open_reproduction`.
        train: trains one job and leaves its run folder; the default keeps the data in memory and starts a training that
            was interrupted again from its beginning.
        caption: trains and scores a captioner on a run folder; only captioning needs it.
        jobs: trainings at the same time.
        console: shows progress.

    Raises:
        Interrupted: after Ctrl-C; calling it again resumes.
    """
    study, table = wanted.study, wanted.table
    missing = wanted.missing()
    study.prepare_folder()
    with open_pool(study.out, jobs, train) as pool, show_trainings("trainings", len(missing), console) as step:
        run_all(missing, pool, step)
    numbers: list[ComparedNumber] = []
    page: Page | None = None
    if table.target == "figures":
        page = Page("")
        Drawn(study).add(page)
    else:
        numbers = compare(table, results_by_row(study, table, wanted.variants, caption))
    facts = {"data": wanted.data, "seeds": ", ".join(map(str, study.seeds))}
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
    found = [name for name, features in DATASETS.items() if (folder / features).is_file()]
    if "lsmdc" in found:  # it has HowTo100M features too
        return "lsmdc"
    if not found:
        files = " nor ".join(f"{features} ({name})" for name, features in DATASETS.items())
        raise ValueError(f"{folder} holds neither {files}; docs/reproduce.md describes the folder")
    return found[0]


def _text_file(folder: Path, dataset: str) -> list[str]:
    """Text features of another name than the paper's, where the folder has exactly one such file."""
    paper = f"text_feat_{dataset}_meta_all_transformers_bert-base-uncased_-2,-1.h5"
    others = sorted(path.name for path in folder.glob("text_feat_*.h5"))
    return [f"data.text={json.dumps(others[0])}"] if paper not in others and len(others) == 1 else []
