"""Anchors of a run: fitted, kept or dropped by validation, written and read, and shown beside the plain figures."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.nn.functional import normalize

from crossclr.api import results_table, train
from crossclr.evaluation import retrieval_metrics
from crossclr.evaluation.anchoring import choose_anchors, fit_anchors
from crossclr.evaluation.fusion import fuse
from crossclr.evaluation.runs import evaluate_runs
from crossclr.evaluation.semantics import semantic_scores
from crossclr.models import Anchors, embed_source
from crossclr.training import Run
from crossclr.training.run import ANCHORS


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Clips that are copies of a few kinds with much noise, so that neighbours help."""
    folder = tmp_path_factory.mktemp("anchored")
    rng = np.random.default_rng(0)
    kinds = rng.normal(size=(20, 6))
    of = np.arange(120) % 20
    np.save(folder / "a.npy", (kinds[of] @ rng.normal(size=(6, 10)) + rng.normal(size=(120, 10))).astype(np.float32))
    np.save(folder / "b.npy", (kinds[of] @ rng.normal(size=(6, 8))).astype(np.float32))
    splits = {f"{row}": "train" if row < 80 else "val" if row < 100 else "test" for row in range(120)}
    (folder / "splits.json").write_text(json.dumps(splits))
    encoder = {"kind": "mlp", "blocks": 0}
    values = {
        "data": {
            "kind": "arrays",
            "root": str(folder),
            "a": {"values": "a.npy"},
            "b": {"values": "b.npy"},
            "splits": "splits.json",
        },
        "model": {"dim": 8, "encoder_a": encoder, "encoder_b": encoder},
        "loss": {"local": {"name": "clip"}, "global": None},
        "training": {"epochs": 3, "batch_size": 40, "accelerator": "cpu"},
        "anchors": {"neighbours": 3},
    }
    path = folder / "config.yaml"
    path.write_text(json.dumps(values))
    return path


@pytest.fixture(scope="module")
def run(config, tmp_path_factory):
    return train(config, {"validation.select_by": "clip/R@10"}, out=tmp_path_factory.mktemp("runs") / "run")


def test_a_finished_run_has_both_figures_and_reads_its_anchors_back(run):
    results = run.results
    found = results["anchors"]
    assert found["kept"]
    assert found["with_anchors"] >= found["without"]
    plain, anchored = run.load_model(anchored=False), run.load_model()
    assert plain.anchors is None
    source = run.open_source()
    training = embed_source(plain, source, "train")
    torch.testing.assert_close(anchored.anchors.clips, Anchors.of(run.config.anchors, training).clips)
    again = evaluate_runs([run.path], floor=False, progress=False).rows()
    assert next(iter(again.values()))["clip/b->a"]["R@5"] == pytest.approx(results["test"]["clip/b->a"]["R@5"])
    moved, still = (embed_source(model, source, "test") for model in (anchored, plain))
    torch.testing.assert_close(moved.clip_a, still.clip_a)
    torch.testing.assert_close(moved.gallery_a, anchored.anchors(still.clip_a))
    torch.testing.assert_close(still.gallery_a, still.clip_a)
    assert results["test"]["clip/b->a"] == retrieval_metrics(moved.clip_b, moved.gallery_a)
    assert results["test_without_anchors"]["clip/b->a"] == retrieval_metrics(still.clip_b, still.clip_a)
    assert results["test"]["clip/a->b"] == results["test_without_anchors"]["clip/a->b"]  # a clip that asks stays
    shown = [str(cell) for cell in results_table(results, "x").columns[0].cells]
    assert shown.count("  without anchors") == 2


def test_meaning_is_judged_by_the_moved_clips(run):
    embeddings = embed_source(run.load_model(), run.open_source(), "test")
    texts = tuple(f"kind {row % 5}" for row in range(len(embeddings.clip_b)))
    found = semantic_scores(replace(embeddings, texts=texts))
    expected = semantic_scores(replace(embeddings, texts=texts, clip_a=embeddings.gallery_a, anchored_a=None))
    assert found["clip/b->a"] == expected["clip/b->a"]
    plain = semantic_scores(replace(embeddings, texts=texts, anchored_a=None))
    assert found["clip/a->b"] == plain["clip/a->b"]


def test_joined_runs_keep_their_anchors(run):
    embeddings = embed_source(run.load_model(), run.open_source(), "test")
    alone = replace(embeddings, anchored_a=None)
    joined = fuse([embeddings, alone])
    half = joined.gallery_a.shape[1] // 2
    torch.testing.assert_close(joined.gallery_a[:, :half], normalize(embeddings.gallery_a, dim=1))
    torch.testing.assert_close(joined.gallery_a[:, half:], normalize(alone.clip_a, dim=1))
    assert fuse([alone, alone]).anchored_a is None


def test_an_index_holds_the_moved_clips(run, tmp_path):
    pytest.importorskip("faiss")
    from crossclr.search.collect import gather
    from crossclr.search.media import MediaFinder
    from crossclr.search.shards import gather_shards

    source = run.open_source()
    found = gather(run.load_model(), source, ["test"], MediaFinder(source))
    expected = normalize(embed_source(run.load_model(), run.open_source(), "test").gallery_a, dim=1)
    np.testing.assert_allclose(found["a"].vectors, expected.numpy(), atol=1e-6)
    embeddings = embed_source(run.load_model(), run.open_source(), "test")
    shard = {"id": embeddings.clip_keys, "a": embeddings.clip_a.tolist(), "b": embeddings.clip_b.tolist()}
    pq.write_table(pa.table(shard), tmp_path / "part.parquet")
    from_shards = gather_shards([tmp_path], 8, "", anchors=run.load_model().anchors)
    np.testing.assert_allclose(from_shards["a"].vectors, expected.numpy(), atol=1e-6)


def test_the_last_checkpoint_has_none(run):
    assert run.load_model("last").anchors is None


def test_they_are_dropped_where_validation_gets_worse(run):
    """Anchors whose neighbours are told the wrong sentences: a clip is drawn to where it does not belong."""
    source, model = run.open_source(), run.load_model(anchored=False)

    def embed(split):
        found = embed_source(model, source, split)
        return replace(found, clip_b=-found.clip_b) if split == "train" else found

    found = choose_anchors(model, run.config, embed)
    assert found["with_anchors"] < found["without"]
    assert not found["kept"]
    assert model.anchors is None


def test_without_a_validation_split_they_are_kept(run):
    splits = run.config.splits.model_copy(update={"validate_": None})
    alone = Run(run.path, run.config.model_copy(update={"splits": splits}))
    assert fit_anchors(alone, run.open_source()) == {"kept": True, "without": None, "with_anchors": None}


def test_a_run_that_asks_for_none_gets_none(run):
    assert fit_anchors(Run(run.path, run.config.model_copy(update={"anchors": None})), run.open_source()) is None


def test_damaged_anchors_are_named(run, tmp_path):
    path = run.path / "best" / ANCHORS
    whole = path.read_bytes()
    path.write_bytes(whole[:50])
    try:
        with pytest.raises(ValueError, match=r"anchors\.safetensors cannot be read"):
            run.load_model()
    finally:
        path.write_bytes(whole)
