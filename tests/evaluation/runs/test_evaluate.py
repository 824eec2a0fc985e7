"""Evaluating run folders: one run, several joined, the baseline, and the two commands."""

import io
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from crossclr import api
from crossclr.cli import app
from crossclr.evaluation import cca_baseline, evaluate_embeddings, load_embeddings, retrieval_metrics, semantic_scores
from crossclr.evaluation.baseline import pooled_rows
from crossclr.evaluation.evaluate import embed_run, evaluate_runs
from crossclr.evaluation.semantics import kept_neighbours
from crossclr.models import embed_data
from crossclr.training import Run, RunConfig
from tests.support.pairs import first, keys_of, second


def write_arrays(folder: Path, dim_a: int) -> dict:
    """80 pairs of linear views of the same hidden points; `dim_a` makes another expert for the same samples."""
    rng = np.random.default_rng(5)
    hidden = rng.normal(size=(80, 4))
    text = hidden @ rng.normal(size=(4, 7)) + rng.normal(size=(80, 7)) * 0.3
    picture = hidden @ rng.normal(size=(4, dim_a)) + rng.normal(size=(80, dim_a)) * 0.3
    folder.mkdir()
    np.save(folder / "a.npy", picture.astype(np.float32))
    np.save(folder / "b.npy", text.astype(np.float32))
    np.save(folder / "splits.npy", np.array(["train", "train", "val", "test"] * 20))
    return {
        "kind": "arrays",
        "root": str(folder),
        "modalities": {"video": {"values": "a.npy"}, "text": {"values": "b.npy"}},
        "splits": "splits.npy",
    }


def train(data: dict, out: Path, seed: int) -> Path:
    config = {
        "name": "tiny",
        "seed": seed,
        "data": data,
        "model": {"dim": 8, "encoder": {"kind": "mlp"}},
        "loss": {"local": {"name": "clip"}, "global": None},
        "training": {"epochs": 2, "batch_size": 16, "accelerator": "cpu", "workers": 0},
    }
    return api.train(RunConfig.model_validate(config), out=out, baseline=False).path


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    first, second = write_arrays(folder / "x", 6), write_arrays(folder / "y", 9)
    return [train(first, folder / "one", 0), train(first, folder / "two", 1), train(second, folder / "three", 2)]


def test_one_run(runs):
    evaluation = evaluate_runs(runs[:1], batch_size=7)
    assert evaluation.split == "test"
    assert evaluation.samples == {"clips": 20, "video": 20, "text": 20}
    assert evaluation.joined is None
    embeddings = embed_run(runs[0])
    assert evaluation.runs == {"one": evaluate_embeddings(embeddings)}
    # The same figures by hand from the model's own output.
    assert evaluation.runs["one"]["clip/text->video"] == retrieval_metrics(
        second(embeddings).rows, first(embeddings).rows
    )
    run = Run.open(runs[0])
    assert evaluation.baseline == cca_baseline(run.open_data(), "test", validation="val")
    assert run.results is not None
    assert evaluation.runs["one"] == run.results["test"]


def test_several_runs_are_joined_also_across_features(runs):
    evaluation = evaluate_runs(runs, baseline=False)
    assert list(evaluation.runs) == ["one", "two", "three"]
    assert evaluation.baseline is None
    a = b = torch.zeros(20, 0)
    for path in runs:
        embeddings = embed_run(path)
        a = torch.cat([a, first(embeddings).rows / first(embeddings).rows.norm(dim=1, keepdim=True)], dim=1)
        b = torch.cat([b, second(embeddings).rows / second(embeddings).rows.norm(dim=1, keepdim=True)], dim=1)
    assert evaluation.joined is not None
    assert evaluation.joined["clip/text->video"] == pytest.approx(retrieval_metrics(b, a))
    assert evaluate_runs(runs, split="val").baseline is not None


def test_checkpoint_and_split(runs):
    run = Run.open(runs[0])
    source = run.open_data()
    found = embed_run(run, split="val", which="last")
    expected = embed_data(run.load_model("last"), source.where(split="val"))
    assert found.video_keys == tuple(keys_of(source, "val"))
    torch.testing.assert_close(second(found).rows, second(expected).rows)
    evaluation = evaluate_runs(runs[:1], split="val", which="last", baseline=False)
    assert evaluation.runs["one"] == evaluate_embeddings(expected)
    assert (evaluation.split, evaluation.which) == ("val", "last")


def test_table_and_json(runs):
    evaluation = evaluate_runs(runs[:2])
    console = Console(width=80, file=io.StringIO())
    console.print(*evaluation.tables())
    text = console.file.getvalue()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    for shown in ("CCA baseline", "one", "two", "⊕ all runs", "text → video", "R@50", "20 text"):
        assert shown in text
    assert f"{evaluation.runs['one']['clip/text->video']['MnR']:.1f}" in text
    assert json.loads(json.dumps(asdict(evaluation)))["runs"] == evaluation.runs


def test_faults_are_named(runs, tmp_path):
    with pytest.raises(FileNotFoundError, match="not a run folder"):
        evaluate_runs([tmp_path])
    with pytest.raises(ValueError, match="nowhere"):
        evaluate_runs(runs[:1], split="nowhere")
    with pytest.raises(ValueError, match="named twice"):
        evaluate_runs([runs[0], runs[0]])
    with pytest.raises(ValueError, match="at least one"):
        evaluate_runs([])


def test_commands(runs, tmp_path):
    runner = CliRunner()
    done = runner.invoke(app, ["evaluate", *map(str, runs[:2]), "--json", "--no-baseline", "--split", "val"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["split"] == "val"
    assert found["joined"] == evaluate_runs(runs[:2], split="val", baseline=False).joined
    done = runner.invoke(app, ["evaluate", str(runs[0])])
    assert done.exit_code == 0, done.output
    assert "CCA baseline" in done.stdout
    assert "Neighbours kept" in done.stdout
    for name in ("out.h5", "out.npz"):
        done = runner.invoke(app, ["embed", str(runs[0]), "--out", str(tmp_path / name), "--split", "val"])
        assert done.exit_code == 0, done.output
        assert "20 clips" in done.stdout
        loaded = load_embeddings(tmp_path / name)
        torch.testing.assert_close(first(loaded).rows, first(embed_run(runs[0], split="val")).rows)
        again = ["embed", str(runs[0]), "--out", str(tmp_path / name), "--split", "test"]
        assert "replace it with --force" in str(runner.invoke(app, again).exception)
        assert loaded.video_keys == load_embeddings(tmp_path / name).video_keys
        assert loaded.video_keys == tuple(Run.open(runs[0]).open_data().where(split="val").keys)
    done = runner.invoke(app, ["embed", str(runs[0]), "--out", str(tmp_path / "out.pt")])
    assert isinstance(done.exception, ValueError)
    assert not (tmp_path / "out.pt").exists()


def test_texts_bring_scores_that_see_meaning(tmp_path):
    data = write_arrays(tmp_path / "data", 6)
    texts = [f"a {('dog', 'cat', 'bird')[row % 3]} {('runs', 'sleeps')[row % 2]}" for row in range(80)]
    (tmp_path / "data" / "texts.json").write_text(json.dumps({str(row): text for row, text in enumerate(texts)}))
    data["modalities"]["text"]["texts"] = "texts.json"
    path = train(data, tmp_path / "run", 0)
    evaluation = evaluate_runs([path])
    embeddings = embed_run(path)
    for results in (evaluation.runs["run"], evaluation.baseline):
        assert {"nDCG", "sR@1", "sR@5", "sR@10", "R@1"} <= set(results["clip/text->video"])
    assert evaluation.runs["run"]["clip/video->text"]["nDCG"] == semantic_scores(embeddings)["clip/video->text"]["nDCG"]
    pooled = pooled_rows(Run.open(path).open_data().where(split="test"))
    assert evaluation.neighbours == {"run": kept_neighbours(pooled, embeddings)}
    console = Console(width=80, file=io.StringIO())
    console.print(*evaluation.tables())
    text = console.file.getvalue()
    assert "…" not in text
    for metric in ("R@1", "MnR", "nDCG", "sR@10"):
        assert metric in text
        assert f"{evaluation.runs['run']['clip/text->video'][metric]:.1f}" in text
    assert f"{evaluation.neighbours['run']['text']:.1f}" in text
    plain = evaluate_runs([path], semantics=False)
    assert "nDCG" not in plain.runs["run"]["clip/text->video"]
    assert plain.neighbours == {}


@pytest.mark.parametrize("command", ["evaluate", "embed"])
def test_help_has_examples(command):
    done = CliRunner().invoke(app, [command, "--help"])
    assert done.exit_code == 0
    assert f"crossclr {command} runs/" in done.output
