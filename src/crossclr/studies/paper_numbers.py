"""The numbers that the paper prints, which trainings each table needs, and our results next to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from statistics import mode
from typing import Any

import yaml

from crossclr.evaluation.result_tables import mean_and_deviation
from crossclr.studies.experiments import EXPERIMENTS, Experts, ModalityPairs
from crossclr.studies.loss_experiments import Losses
from crossclr.studies.study import Study, Variant, words
from crossclr.studies.study_config import METHODS, configure
from crossclr.studies.tables import Cell, Table
from crossclr.training import load_config

TARGETS = {
    "losses": "Table 1: CrossCLR against five other losses",
    "ablation": "Table 2: the parts of CrossCLR switched on and off",
    "state-of-the-art": "Tables 3 and 4: CrossCLR against COOT",
    "modalities": "Table 5: every pair of modalities (LSMDC)",
    "captioning": "Table 6: captions from the embeddings (YouCook2)",
    "multiple-positives": "Appendix: extra positives",
    "experts": "Appendix: single experts and their combinations (LSMDC)",
    "sweeps": "Appendix: curves over γ, κ and the queue size",
    "figures": "Figures: similarities, joint space, connectivity",
}


@dataclass(frozen=True)
class PaperNumber:
    """A number of the paper and its standard deviation, where it prints one.

    Example:
        >>> PaperNumber.parse("19.5±0.49"), PaperNumber.parse(10.91).decimals
        (PaperNumber(mean=19.5, std=0.49, decimals=1), 2)
    """

    mean: float
    std: float | None = None
    decimals: int = 1  # of the printed mean

    @classmethod
    def parse(cls, value: str | float) -> PaperNumber:
        """Read ``19.5±0.49`` or a plain number."""
        mean, _, std = str(value).partition("±")
        return cls(float(mean), float(std) if std else None, len(mean.partition(".")[2]))


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper."""

    target: str  # what it reproduces, a key of `TARGETS`
    title: str  # its number and subject
    columns: Mapping[str, Sequence[str]]  # metrics by group; a group is a direction such as ``text → video``
    # by row, numbers in the order of the columns; None where the paper prints none
    rows: Mapping[str, Sequence[PaperNumber | None]]
    claims: Sequence[str] = ()  # what the paper says in words, where it prints no numbers

    def number(self, row: str, group: str, metric: str) -> PaperNumber | None:
        """One number; None where the paper prints none."""
        places = [(name, column) for name, metrics in self.columns.items() for column in metrics]
        return self.rows[row][places.index((group, metric))] if row in self.rows else None

    def decimals(self, group: str, metric: str) -> int:
        """Decimals that the paper prints in most rows of a column."""
        printed = [number.decimals for row in self.rows if (number := self.number(row, group, metric))]
        return mode(printed) if printed else 1


def paper_table(target: str, dataset: str) -> PaperTable:
    """The paper's numbers for a target on a data set.

    Args:
        target: a key of `TARGETS`.
        dataset: ``youcook2`` or ``lsmdc``.

    Raises:
        ValueError: the paper does not show this target on this data set.

    Example:
        >>> paper_table("losses", "youcook2").number("CrossCLR", "text → video", "R@1")
        PaperNumber(mean=19.5, std=0.49, decimals=1)
    """
    if target not in TARGETS:
        raise ValueError(f"there is no target {target!r}; choose one of {', '.join(TARGETS)}")
    tables = _all_tables()[target]
    values = tables.get(dataset, tables.get("any"))
    if values is None:
        raise ValueError(f"the paper shows {target} on {' and '.join(tables)} only, and --data holds {dataset}")
    rows = {
        name: [None if value is None else PaperNumber.parse(value) for value in numbers]
        for name, numbers in values["rows"].items()
    }
    return PaperTable(target, values["title"], values["columns"], rows, values.get("claims", ()))


@cache
def _all_tables() -> dict[str, dict[str, dict[str, Any]]]:
    text = (resources.files("crossclr.studies") / "paper_numbers.yaml").read_text(encoding="utf-8")
    tables: dict[str, dict[str, dict[str, Any]]] = yaml.safe_load(text)
    return tables


Results = Mapping[str, Mapping[str, float]]  # group of columns -> metric -> value
Caption = Callable[[Path, str, Path, int], Mapping[str, float]]  # run folder, features, own folder, seed -> scores
CAPTION_FEATURES = {"": "clip", "+": "vidclip"}  # the paper's + adds the embedding of the whole video
COOT_LOSSES = "COOT's losses in this model"  # not COOT as a whole, whose number the paper prints
LSMDC_EXPERTS = ["action", "appearance", "scene", "object", "howto100m"]


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


def comparison_tables(table: PaperTable, numbers: Sequence[ComparedNumber], narrow: bool = False) -> list[Table]:
    """A table for each group; ``narrow`` ones have at most 80 columns: metrics by twos or threes, no deviations."""
    tables: list[Table] = []
    for group, metrics in table.columns.items():
        size = len(metrics)
        if narrow:  # with paper, ours and difference each
            size = 3 if max(map(len, metrics)) <= 5 else 2
        for start in range(0, len(metrics), size):
            shown = metrics[start : start + size]
            by_cell = {(number.row, number.metric): number for number in numbers if number.group == group}
            rows = []
            for row in dict.fromkeys(number.row for number in numbers):
                cells = [by_cell[row, metric] for metric in shown]
                words = [word for cell in cells for word in _words(cell, table, not narrow)]
                rows.append([Cell(text=word) for word in (row, *words)])
            heads = ["", *(f"{metric}\n{what}" for metric in shown for what in ("paper", "ours", "diff."))]
            name = f"reproduce-{table.target}-{len(tables) + 1}"
            tables.append(Table(name, f"{table.title}, {group}", heads, rows))
    return tables


def findings(table: PaperTable, numbers: Sequence[ComparedNumber]) -> list[str]:
    """CrossCLR against the best other training of ours, in the first metric of each group."""
    lines = []
    for group, metrics in table.columns.items():
        here = [n for n in numbers if (n.group, n.metric) == (group, metrics[0]) and n.ours is not None]
        ours = next((number for number in here if number.row == "CrossCLR"), None)
        others = [number for number in here if number is not ours]
        if ours is None or not others:
            continue
        best = max(others, key=lambda number: number.ours or 0.0)
        own, other = (_shown(number.ours, number.ours_std, 1) for number in (ours, best))
        lines.append(f"Here CrossCLR has {group} {metrics[0]} {own}; the best other training, {best.row}, has {other}.")
    return lines


def _value(results: Results, group: str, metric: str) -> float:
    return float(results.get(group, {}).get(metric, math.nan))


def _words(number: ComparedNumber, table: PaperTable, spread: bool) -> tuple[str, str, str]:
    decimals = table.decimals(number.group, number.metric)
    printed = table.number(number.row, number.group, number.metric)
    paper = _shown(number.paper, number.paper_std if spread else None, printed.decimals if printed else decimals)
    ours = _shown(number.ours, number.ours_std if spread else None, decimals)
    return paper, ours, "–" if number.difference is None else f"{number.difference:+.{decimals}f}"


def _shown(mean: float | None, std: float | None, decimals: int) -> str:
    if mean is None:
        return "–"
    return f"{mean:.{decimals}f}" + ("" if std is None else f" ± {std:.{max(2, decimals)}f}")


def planned(study: Study, table: PaperTable, captioners: int = 1) -> list[Variant]:
    """The trainings that a table needs; ``captioners`` is how many seeds of a model get one."""
    if table.target == "state-of-the-art":
        return _state_of_the_art(study)
    if table.target == "captioning":
        return [_kept(variant, captioners) for variant in _state_of_the_art(study)]
    if table.target == "multiple-positives":
        return _multiple_positives(study)
    if table.target == "figures":
        losses = [*study.settings.histograms, "crossclr", "ntxent"]
        titles = {METHODS[name].title for name in losses}
        return [_kept(variant, 1) for variant in Losses().variants(study) if variant.name in titles]
    variants = EXPERIMENTS[table.target].variants(study)
    if table.target in ("losses", "ablation"):  # the paper prints five of the eight combinations
        variants = [variant for variant in variants if variant.name in table.rows]
    return variants


def results_by_row(
    study: Study, table: PaperTable, variants: Sequence[Variant], caption: Caption | None = None
) -> dict[str, list[Results]]:
    """The results of every row that was trained, one entry for each seed."""
    if table.target == "modalities":
        return _modality_rows(study)
    if table.target == "captioning":
        return _caption_rows(study, variants, caption)
    rows = {variant.name: _directions(study, variant) for variant in variants}
    if table.target == "experts":
        rows = {name.removeprefix("experts ").removeprefix("expert "): results for name, results in rows.items()}
        rows |= {" ⊕ ".join(names): _fused(study, names) for names in study.settings.fused_experts}
    if table.target == "state-of-the-art" and study.settings.experts:
        rows = {name: results for name, results in rows.items() if not name.startswith("expert ")}
        rows["CrossCLR"] = _fused(study, LSMDC_EXPERTS)
    return rows


def _state_of_the_art(study: Study) -> list[Variant]:
    if study.settings.experts:  # LSMDC: one model for each of five experts, fused
        experts = [Experts().single(study, name) for name in LSMDC_EXPERTS]
        return [*experts, Variant(COOT_LOSSES, configure(study.base, METHODS["coot"]), study.seeds)]
    ours = Variant("CrossCLR", study.tuned("crossclr"), study.seeds)
    if not study.base.loss.two_level:
        return [Variant(COOT_LOSSES, configure(study.base, METHODS["coot"]), study.seeds), ours]
    # Changes of the loss are for CrossCLR's.
    changes = [change for change in study.overrides if not change.startswith("loss.")]
    coot = load_config("youcook2-100m-coot", changes)
    return [Variant("COOT", coot, study.seeds), ours]


def _multiple_positives(study: Study) -> list[Variant]:
    options = {"extra_positives": study.settings.positives[0], "positive_weight": study.settings.positive_weights[0]}
    return [
        Variant("CrossCLR", study.tuned("crossclr"), study.seeds),
        Variant("CrossCLR+MP", study.tuned("crossclr", options), study.seeds),
    ]


def _kept(variant: Variant, seeds: int) -> Variant:
    return Variant(variant.name, variant.config, variant.seeds[:seeds], keep=seeds)


def _directions(study: Study, variant: Variant) -> list[Results]:
    """By seed: metrics by direction in words; a training that failed has none."""
    tests = [results.get("test") or {} for results in study.results(variant)]
    return [{words(key): test[key] for key in variant.directions if key in test} for test in tests]


def _fused(study: Study, names: list[str]) -> list[Results]:
    by_seed = [Experts().fused(study, names, number) for number in range(len(study.few_seeds))]
    return [{words(key): metrics for key, metrics in results.items()} for results in by_seed]


def _modality_rows(study: Study) -> dict[str, list[Results]]:
    rows: dict[str, list[Results]] = {}
    experiment = ModalityPairs()
    for first, second in experiment.pairs(study):
        for method in ("ntxent", "crossclr"):
            variant = experiment.variant(study, (first, second), method)
            tests = [results.get("test") or {} for results in study.results(variant)]
            for name, key in zip((f"{second} → {first}", f"{first} → {second}"), variant.directions, strict=True):
                row = f"{name}: {METHODS[method].title}"
                rows[row] = [{"retrieval": test.get(key, {})} for test in tests]
    return rows | _means(rows)


def _means(rows: Mapping[str, list[Results]]) -> dict[str, list[Results]]:
    """The paper's Mean column (over what is searched) and Mean row (over what is the query), for each seed."""
    members: dict[str, list[list[Results]]] = {}
    for row, results in rows.items():
        pair, _, loss = row.partition(": ")
        query, _, target = pair.partition(" → ")
        for mean in (f"{query} → mean: {loss}", f"mean → {target}: {loss}"):
            members.setdefault(mean, []).append(results)
    means: dict[str, list[Results]] = {}
    for mean, several in members.items():
        means[mean] = []
        for seed in zip(*several, strict=True):
            scores = [each["retrieval"] for each in seed]
            known = [metric for metric in scores[0] if all(metric in score for score in scores)]
            values = {metric: sum(score[metric] for score in scores) / len(scores) for metric in known}
            means[mean].append({"retrieval": values})
    return means


def _caption_rows(study: Study, variants: Sequence[Variant], caption: Caption | None) -> dict[str, list[Results]]:
    if caption is None:
        raise ValueError("captioning needs a function that trains captioners")
    rows: dict[str, list[Results]] = {}
    for mark, features in CAPTION_FEATURES.items():
        for variant in variants:
            runs = [(study.finished.open(job).path, job.config.seed) for job in variant.jobs()]
            scores = [caption(run, features, caption_folder(run, features), seed) for run, seed in runs]
            rows[f"{variant.name}{mark}"] = [{"captions": score} for score in scores]
    return rows


def caption_folder(run: Path, features: str) -> Path:
    """Where the captioner of a run goes."""
    return run / "captions" / f"paper-{features}"
