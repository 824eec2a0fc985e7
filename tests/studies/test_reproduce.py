"""The paper's tables on tiny folders with the paper's file names."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

from crossclr.losses.names import printed_options
from crossclr.studies.paper_numbers import compare, comparison_tables, paper_table
from crossclr.studies.reproduce import find_dataset, open_reproduction, reproduce
from tests.support.paper_data import SMALL, write_lsmdc, write_youcook2


@pytest.fixture(scope="module")
def youcook2(tmp_path_factory):
    return write_youcook2(tmp_path_factory.mktemp("data") / "youcook2")


@pytest.fixture(scope="module")
def lsmdc(tmp_path_factory):
    return write_lsmdc(tmp_path_factory.mktemp("data") / "lsmdc")


def test_losses_show_the_paper_next_to_ours_and_nothing_runs_twice(youcook2, tmp_path):
    shown = io.StringIO()
    wanted = open_reproduction("losses", youcook2, tmp_path, overrides=SMALL, seeds=[0, 1])
    assert len(wanted.missing()) == 12
    assert wanted.study.base.loss.local.options["temperature"] == 0.03  # nothing is tuned
    numbers = reproduce(wanted, console=Console(file=shown, width=80))
    assert wanted.missing() == []
    ours = next(one for one in numbers if (one.row, one.metric) == ("CLIP", "R@10") and one.group == "video → text")
    stored = [
        json.loads(path.read_text())["test"]["clip/video->text"]["R@10"]
        for path in tmp_path.glob("runs/clip-*/*/results.json")
    ]
    assert ours.paper == 55.0
    assert len(stored) == ours.seeds == 2
    assert ours.ours == pytest.approx(np.mean(stored))
    assert ours.difference == pytest.approx(np.mean(stored) - 55.0)
    written = json.loads((tmp_path / "reproduce-losses.json").read_text())
    assert {one["row"] for one in written["numbers"]} == set(paper_table("losses", "youcook2").rows)
    assert "MIL-NCE" in (tmp_path / "reproduce-losses.html").read_text()
    assert "MaxMargin" in shown.getvalue()

    again = open_reproduction("state-of-the-art", youcook2, tmp_path, overrides=SMALL, seeds=[0, 1])
    assert [job.name for job in again.missing()] == ["COOT", "COOT"]  # CrossCLR is the one of Table 1


@pytest.mark.parametrize("clip_level", [False, True])
def test_every_training_of_the_ablation_is_a_row_of_the_paper(youcook2, tmp_path, clip_level):
    wanted = open_reproduction("ablation", youcook2, tmp_path, overrides=SMALL[-4:], seeds=[0], clip_level=clip_level)
    assert [variant.name for variant in wanted.variants] == [
        "none",
        "intra-modal term",
        "weighting",
        "weighting + intra-modal term",
        "weighting + intra-modal term + pruning",
    ]
    assert wanted.study.base.data.two_level is not clip_level


def test_the_quick_check_trains_at_clip_level(youcook2, tmp_path):
    changes = ["training.epochs=1", "training.accelerator=cpu", "validation.first_epoch=0"]
    wanted = open_reproduction("multiple-positives", youcook2, tmp_path, overrides=changes, seeds=[0], clip_level=True)
    numbers = reproduce(wanted)
    assert all(one.ours is not None for one in numbers)
    assert {one.row for one in numbers} == {"CrossCLR", "CrossCLR+MP"}


def test_pairs_of_modalities_and_fused_experts_on_lsmdc(lsmdc, tmp_path):
    changes = [*SMALL, "splits.validate=val", "splits.test=val"]
    pairs = open_reproduction("modalities", lsmdc, tmp_path, overrides=changes)
    assert len(pairs.variants) == 20  # ten pairs, two losses
    numbers = reproduce(pairs)
    assert {one.row for one in numbers if one.ours is not None} == set(paper_table("modalities", "lsmdc").rows)

    experts = open_reproduction("experts", lsmdc, tmp_path, overrides=changes)
    found = reproduce(experts)
    assert {one.row for one in found if one.ours is None} == {"Random"}
    assert len([one for one in found if "⊕" in one.row and one.metric == "MdR"]) == 20


def test_captions_come_from_both_kinds_of_features_and_every_seed(youcook2, tmp_path):
    asked = []

    def caption(run, features, out, seed):
        asked.append((run.parent.name.split("-")[0], features, seed))
        return {"B@4": 10.0 + len(asked)}

    wanted = open_reproduction("captioning", youcook2, tmp_path, overrides=[*SMALL, "captions.seed=5"], seeds=[0, 1])
    assert wanted.captioner == ["seed=5"]
    assert len(wanted.captioners()) == 8
    assert [row[0].text for row in wanted.plan().rows][2:] == [
        f"captioner of {name}{mark}" for mark in ("", "+") for name in ("COOT", "CrossCLR")
    ]
    numbers = reproduce(wanted, caption=caption)
    runs = [(loss, features) for features in ("clip", "vidclip") for loss in ("coot", "crossclr")]
    assert asked == [(*run, seed) for run in runs for seed in (0, 1)]
    found = next(one for one in numbers if (one.row, one.metric) == ("CrossCLR+", "B@4"))
    assert (found.paper, found.ours, found.seeds) == (12.04, 17.5, 2)
    assert len(open_reproduction("captioning", youcook2, tmp_path, overrides=SMALL).captioners()) == 4
    with pytest.raises(ValueError, match="--clip-level"):
        open_reproduction("captioning", youcook2, tmp_path, clip_level=True)


def test_a_result_says_how_it_was_made_and_where_that_is_not_the_papers_way(youcook2, tmp_path):
    wanted = open_reproduction("multiple-positives", youcook2, tmp_path, overrides=SMALL, seeds=[0], printed="equation")
    shown = io.StringIO()
    reproduce(wanted, console=Console(file=shown, width=80))
    written = json.loads((tmp_path / "reproduce-multiple-positives.json").read_text())
    assert written["command"].startswith("crossclr study reproduce multiple-positives --data")
    assert "--seeds 0 --printed equation --set model.dim=8" in written["command"]
    assert written["reading"] == "the printed equation"
    unlike = " ".join(written["unlike_the_paper"])
    for words in ("instead of 3,492", "1 epoch instead of 40, within the warm-up", "1 seed instead of 5", "minilm"):
        assert words in unlike
    page = (tmp_path / "reproduce-multiple-positives.html").read_text()
    assert page.count("Not as in the paper:") == shown.getvalue().count("Not as in the paper:") == 4
    assert "19.5 ± 0.49" in page
    assert written["findings"][0].startswith("Here CrossCLR has text → video R@1 ")
    for loss in (wanted.study.base.loss.local, wanted.study.base.loss.global_):
        expected = printed_options("equation") | {"queue_size": 5000 if loss is wanted.study.base.loss.local else 0}
        assert {name: loss.options[name] for name in expected} == expected
    assert wanted.study.base.training.gradient_clip is None


def test_changes_reach_coot_but_those_of_the_loss_do_not(youcook2, tmp_path):
    changes = [*SMALL, "loss.local.temperature=0.07"]
    coot, ours = open_reproduction("state-of-the-art", youcook2, tmp_path, overrides=changes).variants
    assert (coot.config.model.dim, coot.config.training.epochs, coot.config.data) == (8, 1, ours.config.data)
    assert coot.config.loss.local.name == "coot"
    assert ours.config.loss.local.options["temperature"] == 0.07
    small, _ = open_reproduction("state-of-the-art", youcook2, tmp_path, clip_level=True).variants
    assert small.name == "COOT's losses in this model"  # not compared with the number of COOT


def test_one_sweep_changes_pruning_on_clips_alone_and_draws_its_curve(youcook2, tmp_path):
    wanted = open_reproduction("sweeps", youcook2, tmp_path, overrides=SMALL, seeds=[0], sweep="prune_threshold")
    assert len(wanted.missing()) == 10
    losses = [variant.config.loss for variant in wanted.variants]
    assert [loss.local.options["prune_threshold"] for loss in losses] == [n / 10 for n in range(1, 11)]
    assert {loss.local.options["min_keep"] for loss in losses} == {0.0}
    assert {loss.global_.options["prune_threshold"] for loss in losses} == {0.9}
    reproduce(wanted)
    assert 'data-plot="sweep-prune_threshold-1"' in (tmp_path / "reproduce-sweeps.html").read_text()
    with pytest.raises(ValueError, match="did you mean 'queue_size'"):
        open_reproduction("sweeps", youcook2, tmp_path, sweep="queue_sise")


@pytest.mark.parametrize("target", ["losses", "ablation", "state-of-the-art", "experts", "modalities", "captioning"])
def test_tables_fit_80_columns(target):
    dataset = "lsmdc" if target in ("experts", "modalities", "state-of-the-art") else "youcook2"
    table = paper_table(target, dataset)
    ours = {
        row: [{group: dict.fromkeys(metrics, 123.4) for group, metrics in table.columns.items()}] for row in table.rows
    }
    shown = io.StringIO()
    for one in comparison_tables(table, compare(table, ours), narrow=True):
        Console(file=shown, width=80).print(*one.rich())
    text = shown.getvalue()
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= 80
    assert all(f"{n.mean:.{n.decimals}f}" in text for numbers in table.rows.values() for n in numbers if n)


def test_a_folder_with_other_files_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"video_feat_100m\.h5"):
        find_dataset(tmp_path)
