"""Recipes best and closed-form as runs: what is stored, what is measured, and that all consumers use one space."""

import io
import json

import numpy as np
import pytest
import torch
from rich.console import Console

from crossclr import api
from crossclr.evaluation import evaluate_embeddings
from crossclr.evaluation.baseline import Pairs
from crossclr.evaluation.evaluate import embed_run, evaluate_runs
from crossclr.evaluation.fit_space import below_closed_form
from crossclr.models.embeddings import Embeddings, Vectors
from crossclr.training import Interrupted, Run, fit, load_config
from tests.support.pairs import keys_of, read
from tests.support.tiny_runs import write_config


@pytest.fixture(scope="module")
def config_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return write_config(folder, np.random.default_rng(1).normal(size=(150, 5)))


@pytest.fixture(scope="module")
def closed(config_file, tmp_path_factory):
    out = tmp_path_factory.mktemp("closed") / "run"
    return api.train(config_file, ["recipe=closed-form"], out=out, baseline=False)


def test_without_a_section_for_the_loss_the_recipe_is_best(config_file, tmp_path):
    values = json.loads(config_file.read_text())
    assert load_config(config_file).recipe == "paper"
    del values["loss"]
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(values))
    found = load_config(path)
    assert found.recipe == "best"
    assert found.loss.local.name == "clip"


def test_a_closed_form_run_is_measured_with_its_space(closed):
    results = closed.results
    assert [part["name"] for part in results["space"]["parts"]] == ["closed form", "hub correction"]
    assert results["space"]["estimate"]["error"] > 0
    assert evaluate_runs(str(closed.path), baseline=False, semantics=False).runs["run"] == results["test"]
    space, source = closed.load_space(), closed.open_data()
    samples = [read(source, key) for key in keys_of(source, "test")]
    queries, items = (
        getattr(space, kind)(name, [sample[name].clips[0] for sample in samples])
        for kind, name in (("encode_queries", "text"), ("encode_items", "video"))
    )
    found = 100 * float(((queries @ items.T).argmax(1) == torch.arange(len(samples))).float().mean())
    assert results["test"]["clip/text->video"]["R@1"] == pytest.approx(found)
    with pytest.raises(ValueError, match="no trained encoder"):
        closed.load_model()
    assert "closed form" in (closed.path / "README.md").read_text()


def test_best_trains_encoders_and_resumes_to_the_same_space(config_file, tmp_path, monkeypatch):
    shown = io.StringIO()
    console = Console(file=shown, width=80)
    whole = api.train(config_file, ["recipe=best"], out=tmp_path / "whole", baseline=False, console=console)
    assert "training encoder 1 of 2 on 93 of 125 samples\nepoch 1/3" in shown.getvalue()
    names = [part["name"] for part in whole.results["space"]["parts"]]
    assert names == ["closed form", "hub correction", "trained encoders"]
    monkeypatch.setattr("crossclr.evaluation.fit_space.choose_space", _interrupted)
    with pytest.raises(Interrupted):
        api.train(config_file, ["recipe=best"], out=tmp_path / "stopped", baseline=False)
    monkeypatch.undo()
    again = api.resume(tmp_path / "stopped", baseline=False)
    assert again.results["test"] == whole.results["test"]
    assert again.digest() == whole.digest()


def _interrupted(*_, **__):
    raise Interrupted


def test_a_resumed_run_repeats_no_finished_training(config_file, tmp_path, monkeypatch):
    trainings = []

    def counted(*arguments):
        trainings.append(len(trainings))
        if stop_at == len(trainings):
            raise Interrupted
        fit(*arguments)

    monkeypatch.setattr("crossclr.evaluation.fit_space.fit", counted)
    stop_at = 0
    api.train(config_file, ["recipe=best"], out=tmp_path / "whole", baseline=False)
    needed, stop_at = len(trainings), len(trainings) + 2
    with pytest.raises(Interrupted):
        api.train(config_file, ["recipe=best"], out=tmp_path / "stopped", baseline=False)
    stop_at = 0
    trainings.clear()
    api.resume(tmp_path / "stopped", baseline=False)
    assert len(trainings) == needed - 1
    assert not list((tmp_path / "stopped").glob(".encoder-*"))


def test_a_vector_of_the_index_is_an_item_of_the_space(closed):
    pytest.importorskip("faiss")
    from crossclr.search.run_items import MediaFinder, embed_items

    source = closed.open_data()
    found = embed_items(closed.load_space(), source, ["test"], MediaFinder(None))
    rows = [read(source, key)["video"].clips[0] for key in keys_of(source, "test")]
    expected = closed.load_space().encode_items("video", rows).numpy()
    np.testing.assert_allclose(found["video"].vectors, expected, atol=1e-6)


def test_the_export_gives_queries_and_items(closed, tmp_path):
    pytest.importorskip("onnxruntime")
    from crossclr.search.onnx_export import export_run

    report = export_run(closed, tmp_path / "onnx")
    largest = [one["largest_difference"] for kind in ("encoders", "items") for one in report[kind].values()]
    assert max(largest) < 1e-5


def test_a_paper_run_keeps_the_vectors_of_its_encoder(config_file, tmp_path):
    run = api.train(config_file, ["training.epochs=1"], out=tmp_path / "run", baseline=False)
    assert not (run.path / "space.json").exists()
    embeddings = embed_run(run)
    assert evaluate_embeddings(embeddings) == run.results["test"]
    assert embeddings["video"].items is None


def test_several_sentences_are_samples_of_one_concept():
    vectors = {
        "video": Vectors(torch.arange(3.0).unsqueeze(1), torch.arange(3)),
        "text": Vectors(torch.arange(10.0, 14.0).unsqueeze(1), torch.tensor([0, 0, 1, 1])),
    }
    pooled = Embeddings(vectors, ("x", "y", "z"), torch.ones(3, dtype=torch.int64), ("x", "y", "z"))
    pairs = Pairs.of(pooled, ["p", "q", "q"])
    assert pairs.data.rows["video"].flatten().tolist() == [0, 0, 1, 1, 2]
    assert pairs.data.rows["text"][:4].flatten().tolist() == [10, 11, 12, 13]
    assert pairs.data.present["text"].tolist() == [True] * 4 + [False]  # a clip without a sentence stays
    assert pairs.data.concepts.tolist() == [0, 0, 1, 1, 2]
    assert pairs.data.groups.tolist() == [0, 0, 1, 1, 1]
    single = Pairs.of(pooled.only(["video"]), ["p", "q", "q"])
    assert single.data.groups.tolist() == [0, 1, 1]
    assert single.data.concepts is None


def test_a_space_below_its_closed_form_is_a_warning():
    def results(recall):
        return {"clip/text->video": dict.fromkeys(("R@1", "R@5", "R@10"), recall)}

    assert below_closed_form({"": results(30.0), "closed form alone": results(29.0)}) is None
    assert "recipe=closed-form" in below_closed_form({"": results(28.0), "closed form alone": results(29.0)})


def test_a_damaged_space_is_one_line(closed, tmp_path):
    import shutil

    copy = tmp_path / "run"
    shutil.copytree(closed.path, copy)
    (copy / "space.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"space\.safetensors was changed") as caught:
        Run.open(copy).load_space()
    assert "\n" not in str(caught.value)
