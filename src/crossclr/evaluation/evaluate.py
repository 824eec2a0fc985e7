"""The paper's ⊕: the normalised embeddings of several runs, concatenated.

Evaluate run folders: embed a split, fuse several runs, compare with the CCA baseline.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch
from rich.markup import escape
from rich.table import Table
from torch import Tensor
from torch.nn.functional import normalize

from crossclr.evaluation.baseline import embed_baseline, pooled_rows
from crossclr.evaluation.metrics import METRICS, evaluate_embeddings, fused_directions
from crossclr.evaluation.result_tables import grid_table, is_grid, plain_table
from crossclr.evaluation.semantics import KEPT, SEMANTIC, Semantics, kept_neighbours
from crossclr.models import embed_data
from crossclr.models.directions import direction_words
from crossclr.models.embeddings import Embeddings
from crossclr.progress_bar import show_progress
from crossclr.training import Run, RunConfig

PARTS = ("rows", "videos", "context")


def fuse(embeddings: Sequence[Embeddings]) -> Embeddings:
    """Fuse the embeddings of several runs on the same samples.

    The rows of every run are normalised and concatenated, separately for each modality. The dot product of two fused
    rows is the sum of the runs' cosines, so each run has one vote.

    Args:
        embeddings: at least one; all of the same samples in the same order.

    Returns:
        embeddings whose width is the sum of the runs' widths; a modality that has several names gets all of them, as
        in ``video+audio``.

    Raises:
        ValueError: the samples differ, or only some runs have the video level.
    """
    if not embeddings:
        raise ValueError("there is nothing to fuse; name at least one run")
    first = embeddings[0]
    if any(one.experts for one in embeddings):
        raise ValueError("runs whose experts have weights cannot be fused; their model fuses the experts itself")
    for number, other in enumerate(embeddings[1:], start=2):
        _same(first.clip_keys, other.clip_keys, "clips", number)
        _same(first.video_keys, other.video_keys, "videos", number)
        if len(first.names) != len(other.names):
            raise ValueError(
                f"run 1 has the modalities {', '.join(first.names)} and run {number} {', '.join(other.names)}; runs "
                "can be fused only with the same number of modalities"
            )
        for mine, theirs in zip(first.modalities.values(), other.modalities.values(), strict=True):
            if not torch.equal(mine.clip_of, theirs.clip_of):
                raise ValueError(
                    f"run 1 and run {number} assign their sentences to different clips, or lack other samples; "
                    "evaluate them on the same captions"
                )
    fused = {}
    for names in zip(*(one.names for one in embeddings), strict=True):
        vectors = [one[name] for one, name in zip(embeddings, names, strict=True)]
        joined = {part: _side_by_side([getattr(one, part) for one in vectors], part) for part in PARTS}
        if any(one.items is not None for one in vectors):
            joined["items"] = _side_by_side([one.gallery for one in vectors], "items")
        fused["+".join(dict.fromkeys(names))] = replace(vectors[0], **joined)  # type: ignore[arg-type]
    return replace(first, modalities=fused)


def _same(first: tuple[str, ...], other: tuple[str, ...], what: str, number: int) -> None:
    if first == other:
        return
    if len(first) != len(other):
        found = f"{len(first)} and {len(other)}"
    else:
        row = next(i for i, (x, y) in enumerate(zip(first, other, strict=True)) if x != y)
        found = f"row {row} is {first[row]!r} and {other[row]!r}"
    raise ValueError(
        f"run 1 and run {number} were not embedded on the same {what}: {found}; "
        "runs can be fused only on the same data set and split"
    )


def _side_by_side(parts: Sequence[Tensor | None], name: str) -> Tensor | None:
    present = [part for part in parts if part is not None]
    if not present:
        return None
    if len(present) < len(parts):
        missing = next(i for i, part in enumerate(parts) if part is None)
        raise ValueError(f"run {missing + 1} has no {name!r} but others do; fuse runs with the same number of levels")
    return torch.cat([normalize(part, dim=1) for part in present], dim=1)


Results = dict[str, dict[str, float]]  # metrics by level and direction


@dataclass(frozen=True)
class Evaluation:
    """The result of `evaluate_runs`.

    Args:
        split: where it was measured.
        which: checkpoint of the runs, ``best`` or ``last``.
        samples: number of clips, of rows of each modality (sentences of text), and of whole videos.
        runs: results by run.
        joined: results of all runs fused (⊕), or None for a single run.
        baseline: results of CCA on the same features, or None if it was not requested.
        neighbours: by run, percent of the nearest input-space neighbours that it keeps within each modality.
    """

    split: str
    which: str
    samples: dict[str, int]
    runs: dict[str, Results]
    joined: Results | None = None
    baseline: Results | None = None
    neighbours: dict[str, dict[str, float]] = field(default_factory=dict)

    def rows(self) -> dict[str, Results]:
        """Results by the name that a table shows, the baseline first."""
        rows = {} if self.baseline is None else {"CCA baseline": self.baseline}
        rows.update(self.runs)
        if self.joined is not None:
            rows["⊕ all runs"] = self.joined
        return rows

    def tables(self) -> list[Table]:
        """Tables for a terminal of 80 columns: strict metrics, meaning-aware metrics, neighbours kept."""
        counts = ", ".join(f"{count:,} {what}" for what, count in self.samples.items())
        title = f"Retrieval on {self.split!r}: {counts}"
        rows = self.rows()
        if any(map(is_grid, rows.values())):
            tables = [grid_table(results, f"{title}\n{name}") for name, results in rows.items()]
            fused = {name: {key: one[key] for key in one if "+" in key} for name, one in rows.items()}
            if any(fused.values()):
                tables.append(_table("Fused modalities (normalised mean of those present)", tuple(METRICS), fused))
        else:
            tables = [_table(title, tuple(METRICS), rows)]
        if any(metric in found for results in rows.values() for found in results.values() for metric in SEMANTIC):
            tables.append(_table(f"Meaning-aware metrics on {self.split!r}", SEMANTIC, rows))
        if self.neighbours:
            modalities = list(dict.fromkeys(modality for kept in self.neighbours.values() for modality in kept))
            table = plain_table(f"Neighbours kept ({KEPT}, %)", [f"within {modality}" for modality in modalities])
            for name, kept in self.neighbours.items():
                cells = (f"{kept[modality]:.1f}" if modality in kept else "" for modality in modalities)
                table.add_row(escape(name), *cells)
            tables.append(table)
        return tables


def evaluate_runs(
    paths: str | Path | Sequence[str | Path],
    *,
    split: str | None = None,
    which: Literal["best", "last"] = "best",
    baseline: bool = True,
    semantics: bool = True,
    fused: Sequence[str] | None = None,
    batch_size: int = 64,
    device: str = "cpu",
    progress: bool = False,
) -> Evaluation:
    """Retrieval metrics of one or more runs.

    Several runs are measured one by one and fused (the paper's ⊕: the normalised embeddings of all runs are
    concatenated). Their data may differ in features but not in samples.

    Args:
        paths: a run folder, or several.
        split: where to measure; None: the test split of the first run's config (without one, its validation split).
        which: the checkpoint.
        baseline: also fit CCA on the training split, its settings chosen on the validation split (or by folds of the
            training samples if that is the split to measure). Runs on different features have their CCA embeddings
            joined too.
        semantics: also measure nDCG and shared-caption recall where the data has texts, and the share of input-space
            neighbours that each run keeps.
        fused: directions with fused modalities, such as ``text->video+picture``; None: from each modality to all
            others and back, if there are more than two.
        batch_size: samples that are embedded at once.
        device: where to embed.
        progress: show progress bars.

    Returns:
        all results.

    Raises:
        FileNotFoundError: a path is not a run folder.
        ValueError: the split is unknown, or the runs have different samples.
    """
    opened = [Run.open(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    if not opened:
        raise ValueError("name at least one run folder")
    split = split or default_split(opened[0].config)
    embedded = [
        embed_run(run, split=split, which=which, batch_size=batch_size, device=device, progress=progress)
        for run in opened
    ]
    joined = fuse(embedded) if len(embedded) > 1 else None  # first, because it checks that the samples agree
    first = embedded[0]
    meaning = Semantics.of(first) if semantics else None

    wanted = fused_directions(first.names) if fused is None else fused

    def measure(embeddings: Embeddings) -> Results:
        found = evaluate_embeddings(embeddings, fused=wanted)
        for direction, scores in ({} if meaning is None else meaning.scores(embeddings)).items():
            found[direction].update(scores)
        return found

    names = _names(opened)
    samples = {"clips": len(first.clip_keys), **{name: len(found.rows) for name, found in first.modalities.items()}}
    if any(vectors.videos is not None for vectors in first.modalities.values()):
        samples["whole videos"] = len(first.video_keys)
    return Evaluation(
        split=split,
        which=which,
        samples=samples,
        runs={name: measure(embeddings) for name, embeddings in zip(names, embedded, strict=True)},
        joined=None if joined is None else measure(joined),
        baseline=measure(_baseline_of(opened, split)) if baseline else None,
        neighbours=_neighbours_of(opened, names, embedded, split) if semantics else {},
    )


def embed_run(
    run: Run | str | Path,
    *,
    split: str | None = None,
    which: Literal["best", "last"] = "best",
    batch_size: int = 64,
    device: str = "cpu",
    progress: bool = False,
) -> Embeddings:
    """Embeddings of a split by a trained run; see `evaluate_runs` for the arguments."""
    if not isinstance(run, Run):
        run = Run.open(run)
    split = split or default_split(run.config)
    data = run.open_data().where(split=split)
    with show_progress(f"embedding {split} with {run.path.name}", progress) as report:
        return embed_data(run.load_space(which).to(device), data, batch_size, device, report)


def default_split(config: RunConfig) -> str:
    """The split of the final evaluation: test, or validation where there is no test split."""
    split = config.splits.test or config.splits.validate_
    if split is None:
        raise ValueError("the run's config names neither a test nor a validation split; name one with --split")
    return split


def _table(title: str, metrics: Sequence[str], rows: Mapping[str, Results]) -> Table:
    """One block of rows for each level and direction."""
    table = plain_table(title, metrics)
    for direction, words in direction_words(key for results in rows.values() for key in results).items():
        found = {name: results[direction] for name, results in rows.items() if direction in results}
        if any(metric in scores for scores in found.values() for metric in metrics):
            table.add_row(f"[bold]{escape(words)}[/bold]")
            for name, scores in found.items():
                cells = (f"{scores[metric]:.1f}" if metric in scores else "" for metric in metrics)
                table.add_row(f"  {escape(name)}", *cells)
    return table


def _neighbours_of(
    runs: Sequence[Run], names: Sequence[str], embedded: Sequence[Embeddings], split: str
) -> dict[str, dict[str, float]]:
    pooled = {key: pooled_rows(run.open_data().where(split=split)) for key, run in _by_data(runs).items()}
    return {
        name: kept_neighbours(pooled[run.config.data.model_dump_json()], embeddings)
        for run, name, embeddings in zip(runs, names, embedded, strict=True)
    }


def _baseline_of(runs: Sequence[Run], split: str) -> Embeddings:
    """CCA embeddings of each distinct data set of the runs, fused."""
    baselines = []
    for run in _by_data(runs).values():
        splits = run.config.splits
        # If the validation split is measured, folds of the training samples choose the settings of CCA.
        validation = splits.validate_ if splits.validate_ != split else None
        baselines.append(embed_baseline(run.open_data(), split, train=splits.train, validation=validation))
    return fuse(baselines) if len(baselines) > 1 else baselines[0]


def _by_data(runs: Sequence[Run]) -> dict[str, Run]:
    """The first run of each distinct data set, by the config of the data."""
    found: dict[str, Run] = {}
    for run in runs:
        found.setdefault(run.config.data.model_dump_json(), run)
    return found


def _names(runs: Sequence[Run]) -> list[str]:
    """The names of the folders, or their paths if names repeat (`runs/a/seed-0`, `runs/b/seed-0`)."""
    short = [run.path.name for run in runs]
    if len(set(short)) == len(short):
        return short
    paths = [str(run.path) for run in runs]
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise ValueError(f"the run {twice} is named twice; fusing a run with itself changes nothing")
    return paths
