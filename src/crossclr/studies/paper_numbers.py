"""The numbers that the paper prints, read from ``paper_numbers.yaml``.

Which trainings each table of the paper needs, and the results of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from crossclr.studies.experiments import EXPERIMENTS, Experts, ModalityPairs
from crossclr.studies.loss_experiments import Losses
from crossclr.studies.study import Study, Variant, words
from crossclr.studies.study_config import METHODS, configure
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
        >>> PaperNumber.parse("19.5±0.49"), PaperNumber.parse(7.6)
        (PaperNumber(mean=19.5, std=0.49), PaperNumber(mean=7.6, std=None))
    """

    mean: float
    std: float | None = None

    @classmethod
    def parse(cls, value: str | float) -> PaperNumber:
        """Read ``19.5±0.49`` or a plain number."""
        mean, _, std = str(value).partition("±")
        return cls(float(mean), float(std) if std else None)


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


def paper_table(target: str, dataset: str) -> PaperTable:
    """The paper's numbers for a target on a data set.

    Args:
        target: a key of `TARGETS`.
        dataset: ``youcook2`` or ``lsmdc``.

    Raises:
        ValueError: the paper does not show this target on this data set.

    Example:
        >>> paper_table("losses", "youcook2").number("CrossCLR", "text → video", "R@1")
        PaperNumber(mean=19.5, std=0.49)
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
Caption = Callable[[Path, str, Path], Mapping[str, float]]  # run folder, features, captioner's folder -> scores
CAPTION_FEATURES = {"": "clip", "+": "vidclip"}  # the paper's + adds the embedding of the whole video
LSMDC_EXPERTS = ["action", "appearance", "scene", "object", "howto100m"]


def planned(study: Study, table: PaperTable) -> list[Variant]:
    """The trainings that a table needs."""
    if table.target == "state-of-the-art":
        return _state_of_the_art(study)
    if table.target == "captioning":
        return [_kept(variant, 1) for variant in _state_of_the_art(study)]
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
        return [*experts, Variant("COOT", configure(study.base, METHODS["coot"]), study.seeds)]
    coot = load_config("youcook2-100m-coot").model_copy(update={"data": study.base.data})
    if not study.base.loss.two_level:  # at clip level: COOT's losses in the same small model
        coot = configure(study.base, METHODS["coot"])
    return [Variant("COOT", coot, study.seeds), Variant("CrossCLR", study.tuned("crossclr"), study.seeds)]


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
    return rows


def _caption_rows(study: Study, variants: Sequence[Variant], caption: Caption | None) -> dict[str, list[Results]]:
    if caption is None:
        raise ValueError("captioning needs a function that trains captioners")
    rows: dict[str, list[Results]] = {}
    for mark, features in CAPTION_FEATURES.items():
        for variant in variants:
            run = study.finished.open(variant.jobs()[0]).path
            scores = caption(run, features, run / "captions" / f"paper-{features}")
            rows[f"{variant.name}{mark}"] = [{"captions": scores}]
    return rows
