"""Experiments on a tiny study: what they run, and that their tables hold the figures of those runs."""

import csv
import io
import json
import math
from itertools import product

import numpy as np
import pytest
from rich.console import Console

from crossclr.evaluation import retrieval_metrics
from crossclr.evaluation.evaluate import evaluate_runs
from crossclr.studies import open_study, run_experiments
from crossclr.studies.experiments import EXPERIMENTS, Experts, ModalityPairs, missing_jobs
from crossclr.studies.loss_experiments import PARTS, Ablation, Losses
from crossclr.studies.study_config import loss_option
from crossclr.studies.trainings import open_trainer
from crossclr.training import Run
from tests.support.pairs import first, second


def test_every_experiment_has_tables_as_csv_and_latex(tables, study):
    assert list(tables) == list(EXPERIMENTS)
    for name, found in tables.items():
        assert found, name
        for table in found:
            with (study.out / "tables" / f"{table.name}.csv").open() as file:
                lines = list(csv.reader(file))
            assert len(lines) == len(table.rows) + 1
            assert len({len(line) for line in lines}) == 1
            assert (study.out / "tables" / f"{table.name}.tex").read_text().count(r"\\") >= len(table.rows)
            assert table.caption


def test_tables_are_readable_in_80_columns(tables):
    console = Console(file=io.StringIO(), width=80)
    for found in tables.values():
        for table in found:
            console.print(*table.rich())
    assert "…" not in console.file.getvalue()


def test_the_table_of_losses_holds_mean_and_deviation_of_the_runs(tables, study):
    table = tables["losses"][0]
    assert [str(row[0]) for row in table.rows[:-1]] == [v.name for v in Losses().variants(study)]
    for row, variant in zip(table.rows, Losses().variants(study), strict=False):
        scores = [json.loads((study.finished.find(job) / "results.json").read_text()) for job in variant.jobs()]
        values = [found["test"]["clip/text->sound"]["R@1"] for found in scores]
        assert row[1].mean == pytest.approx(sum(values) / 2)
        assert row[1].std == pytest.approx(abs(values[0] - values[1]) / math.sqrt(2))
        kept = [found["neighbours"]["text"] for found in scores]
        assert row[-1].mean == pytest.approx(sum(kept) / 2)


def test_runs_are_ordinary_run_folders(tables, study):
    job = Losses().variants(study)[0].jobs()[0]
    run = Run.open(job.path(study.out))
    assert run.results["test"]["clip/text->sound"]["nDCG"] > 0
    found = evaluate_runs([run.path], baseline=False)
    for direction, scores in found.runs["seed-0"].items():
        assert run.results["test"][direction] == pytest.approx(scores, abs=1e-4)
    assert run.results["neighbours"] == pytest.approx(found.neighbours["seed-0"], abs=1e-4)
    assert [record["kind"] for record in run.metrics()].count("epoch") == 2


def test_ablation_has_all_eight_combinations(tables, study):
    table = tables["ablation"][0]
    marks = [tuple(str(cell) for cell in row[:3]) for row in table.rows[:-1]]  # the last row is linear CCA
    assert sorted(marks) == sorted(product("✓–", repeat=3))
    for variant, on in zip(Ablation().variants(study), product((False, True), repeat=3), strict=True):
        options = {n: loss_option(variant.config, n) for n in ("weight_scale", "intra_weight", "prune_threshold")}
        assert (
            options["weight_scale"] is not None,
            options["intra_weight"] > 0,
            options["prune_threshold"] is not None,
        ) == on
        assert loss_option(variant.config, "temperature") == study.tuner.best("crossclr").options["temperature"]


def test_the_gain_of_a_part_is_the_mean_difference(tables, study):
    ablation, main = Ablation(), study.directions[0]
    for place, part in enumerate(PARTS):
        differences = []
        for on in product((False, True), repeat=3):
            if on[place]:
                off = tuple(used and number != place for number, used in enumerate(on))
                pairs = (study.values(ablation.variant(study, which), main, "R@1") for which in (on, off))
                differences += [x - y for x, y in zip(*pairs, strict=True)]
        assert ablation.gain(study, part, main).difference == pytest.approx(np.mean(differences))


def test_pairs_of_modalities_keep_their_direction(tables, study):
    table = tables["modalities"][0]
    assert [str(row[0]) for row in table.rows] == [
        f"{m}: {x}" for m in ("sound", "text") for x in ("NT-Xent", "CrossCLR")
    ]
    variant = ModalityPairs().variant(study, ("sound", "text"), "crossclr")
    assert table.rows[3][1].mean == pytest.approx(np.mean(study.values(variant, "clip/text->sound", "R@1")))
    assert str(table.rows[3][3]) == "–"  # text asks text


def test_joined_experts_see_both_and_fused_ones_vote(tables, study):
    experts = Experts()
    joined = experts.joined(study, "one + two")
    assert open_trainer(joined.config).raw.dims == {"sound": 10, "text": 7}
    rows = {str(row[0]): row for row in tables["experts"][0].rows}
    assert set(rows) == {"one", "two", "one + two", "mee", "one ⊕ two"}
    by_hand = []
    for seed in (0, 1):
        parts = []
        for name in ("one", "two"):
            job = experts.single(study, name).jobs()[seed]
            embedded = open_trainer(job.config).embed(Run.open(study.finished.find(job)).load_model(), "test")
            parts.append([x / x.norm(dim=1, keepdim=True) for x in (first(embedded).rows, second(embedded).rows)])
        a, b = (np.concatenate([part[side].numpy() for part in parts], axis=1) for side in (0, 1))
        by_hand.append(retrieval_metrics(b, a)["R@5"])
    assert rows["one ⊕ two"][2].mean == pytest.approx(np.mean(by_hand))


def test_the_weights_of_experts_are_shown(tables):
    weights = {str(row[0]): row for row in tables["experts"][1].rows}
    assert list(weights) == ["one", "two"]
    assert sum(row[1].mean for row in weights.values()) == pytest.approx(100)
    for row in weights.values():
        assert row[1].mean <= row[2].mean <= 100
        assert str(row[3]).startswith("a ")


def test_equal_configs_are_run_once(tables, study):
    whole = Ablation().variant(study, (True, True, True))
    tuned = next(variant for variant in Losses().variants(study) if variant.name == "CrossCLR")
    assert whole.config == tuned.config
    for one, other in zip(whole.jobs(), tuned.jobs(), strict=True):
        assert study.finished.find(one) == study.finished.find(other)


def test_nothing_is_missing_and_nothing_is_run_again(tables, study):
    assert (
        missing_jobs([v for one in EXPERIMENTS.values() if one.skip(study) is None for v in one.variants(study)], study)
        == []
    )
    assert study.tuner.missing(study.methods) == 0
    stamps = {path: path.stat().st_mtime_ns for path in study.out.glob("runs/*/*/results.json")}
    assert len(stamps) > 40
    again = run_experiments(["losses", "experts"], study)
    assert again["losses"][0].csv() == tables["losses"][0].csv()
    assert {path: path.stat().st_mtime_ns for path in study.out.glob("runs/*/*/results.json")} == stamps


def test_what_the_data_cannot_show_is_left_out(tmp_path, study_file):
    lonely = study_file.with_name("lonely.yaml")
    text = "\n".join(line for line in study_file.read_text().splitlines())
    lonely.write_text(text.replace("fused_experts:\n- - one\n  - two\n", "fused_experts: []\n"))
    study = open_study(lonely, tmp_path / "out")
    study.settings.experts.clear()
    assert "names no experts" in Experts().skip(study)
    assert run_experiments(["experts"], study) == {"experts": []}


def test_faults_are_named(tmp_path, study, study_file):
    with pytest.raises(ValueError, match="no experiment 'loses'"):
        run_experiments(["loses"], study)
    with pytest.raises(ValueError, match=r"both 'val'.*split_parts"):
        open_study(study_file, tmp_path / "x", ["splits.test=val"])
    with pytest.raises(ValueError, match="name both"):
        open_study(study_file, tmp_path / "x", ["splits.validate=null"])
    assert not (tmp_path / "x").exists()


def test_linear_cca_is_in_every_table_of_scores_and_among_the_rivals(tables, study):
    baseline = study.baseline()
    for name in ("losses", "ablation", "sweeps", "positives"):
        table = tables[name][0]
        last = table.rows[-1]
        assert str(last[0]) == "linear CCA"
        first_score = table.groups[0][1]
        assert last[first_score].mean == baseline[study.directions[0]]["R@1"]
    for direction in study.directions:
        values = Losses().values(study, direction, "R@10")
        found = Losses().compare(study, "crossclr", direction, "R@10")
        rivals = {name: np.mean(of_seeds) for name, of_seeds in values.items() if not name.startswith("CrossCLR")}
        assert found.rival == max(rivals, key=rivals.get)


def test_the_sentence_names_the_best_row_of_its_table(tables, study):
    table = tables["losses"][0]
    best = max(table.rows, key=lambda row: row[1].mean)
    assert table.caption.startswith(f"{best[0]} has the best ")
