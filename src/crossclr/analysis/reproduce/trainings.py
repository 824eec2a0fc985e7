"""Which trainings each table of the paper needs, and the results of its rows."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from crossclr.analysis.experiments import EXPERIMENTS
from crossclr.analysis.experiments.experts import Experts
from crossclr.analysis.experiments.losses import Losses
from crossclr.analysis.experiments.modalities import Modalities
from crossclr.analysis.reproduce.paper_numbers import PaperTable
from crossclr.analysis.studies.compared_losses import METHODS, configure
from crossclr.analysis.studies.open_study import Study, Variant, words
from crossclr.training import load_config

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
        rows = {name.removeprefix("experts ").removeprefix("expert "): found for name, found in rows.items()}
        rows |= {" ⊕ ".join(names): _fused(study, names) for names in study.settings.fused_experts}
    if table.target == "state-of-the-art" and study.settings.experts:
        rows = {name: found for name, found in rows.items() if not name.startswith("expert ")}
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
    return [{words(key): found[key] for key in variant.directions if key in found} for found in tests]


def _fused(study: Study, names: list[str]) -> list[Results]:
    found = [Experts().fused(study, names, number) for number in range(len(study.few_seeds))]
    return [{words(key): metrics for key, metrics in results.items()} for results in found]


def _modality_rows(study: Study) -> dict[str, list[Results]]:
    rows: dict[str, list[Results]] = {}
    experiment = Modalities()
    for first, second in experiment.pairs(study):
        for method in ("ntxent", "crossclr"):
            variant = experiment.variant(study, (first, second), method)
            tests = [results.get("test") or {} for results in study.results(variant)]
            for name, key in zip((f"{second} → {first}", f"{first} → {second}"), variant.directions, strict=True):
                row = f"{name}: {METHODS[method].title}"
                rows[row] = [{"retrieval": found.get(key, {})} for found in tests]
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
