"""Fitted search: kept or dropped by validation, written and read, used by an index, shown beside plain figures."""

import shutil
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.nn.functional import normalize

from crossclr.api import results_table, train
from crossclr.evaluation import evaluate_embeddings, retrieval_metrics
from crossclr.evaluation.fitted_search import choice as fitting
from crossclr.evaluation.fitted_search.choice import any_kept, choose_search, fit_search
from crossclr.evaluation.fitted_search.query_scores import QueryScores, standard_error
from crossclr.evaluation.meaning.semantics import semantic_scores
from crossclr.evaluation.runs.evaluate import evaluate_runs
from crossclr.evaluation.runs.fusion import fuse
from crossclr.models import Anchors, Embeddings, Hubs, ViewsConfig, as_searched, embed_source
from crossclr.training import Run, load_config
from crossclr.training.run_folder.run import ANCHORS, HUBS
from tests.support.tiny_runs import write_config
from tests.support.vectors import unit


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Clips that are copies of a few kinds with much noise, so that neighbours help."""
    kinds = np.random.default_rng(1).normal(size=(20, 6))
    return write_config(tmp_path_factory.mktemp("anchored"), kinds[np.arange(120) % 20], anchors={"neighbours": 3})


@pytest.fixture(scope="module")
def run(config, tmp_path_factory):
    return train(config, {"validation.select_by": "clip/R@10"}, out=tmp_path_factory.mktemp("runs") / "run")


def test_a_finished_run_has_both_figures_and_reads_its_anchors_back(run):
    results = run.results
    found = results["fitted"]["clip/text->video"]
    assert found["anchors"]
    assert found["hubs"] is None
    assert found["with_them"] > found["without"]
    assert not any_kept({"clip/video->text": results["fitted"]["clip/video->text"]})
    plain, fitted = run.load_model(fitted=False), run.load_model()
    assert plain.anchors is None
    source = run.open_source()
    training = embed_source(plain, source, "train")
    torch.testing.assert_close(fitted.anchors.clips, Anchors.of(run.config.anchors, training).clips)
    again = evaluate_runs([run.path], baseline=False, progress=False).rows()
    assert next(iter(again.values()))["clip/text->video"]["R@5"] == pytest.approx(
        results["test"]["clip/text->video"]["R@5"]
    )
    moved, still = (embed_source(model, source, "test") for model in (fitted, plain))
    torch.testing.assert_close(moved.clip_a, still.clip_a)
    torch.testing.assert_close(moved.gallery_a, fitted.anchors(still.clip_a))
    torch.testing.assert_close(still.gallery_a, still.clip_a)
    assert results["test"]["clip/text->video"] == retrieval_metrics(moved.clip_b, moved.gallery_a)
    assert results["test_not_fitted"]["clip/text->video"] == retrieval_metrics(still.clip_b, still.clip_a)
    assert (
        results["test"]["clip/video->text"] == results["test_not_fitted"]["clip/video->text"]
    )  # a clip that asks stays
    shown = [str(cell) for cell in results_table(results, "x").columns[0].cells]
    assert shown.count("  search not fitted") == 1  # only where it makes a difference
    assert results_table(results, "x").caption == "fitted: text → video: anchors; video → text: nothing"
    assert results_table({**results, "fitted": None}, "x").caption is None


def test_meaning_is_judged_by_the_moved_clips(run):
    embeddings = embed_source(run.load_model(), run.open_source(), "test")
    texts = tuple(f"kind {row % 5}" for row in range(len(embeddings.clip_b)))
    found = semantic_scores(replace(embeddings, texts=texts))
    expected = semantic_scores(replace(embeddings, texts=texts, clip_a=embeddings.gallery_a, anchored_a=None))
    assert found["clip/text->video"] == expected["clip/text->video"]
    plain = semantic_scores(replace(embeddings, texts=texts, anchored_a=None))
    assert found["clip/video->text"] == plain["clip/video->text"]


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
    from crossclr.search.building.run_items import embed_items
    from crossclr.search.building.shard_items import read_shard_items
    from crossclr.search.items.media_files import MediaFinder

    source = run.open_source()
    found = embed_items(run.load_model(), source, ["test"], MediaFinder(source))
    expected = normalize(embed_source(run.load_model(), run.open_source(), "test").gallery_a, dim=1)
    np.testing.assert_allclose(found["a"].vectors, expected.numpy(), atol=1e-6)
    embeddings = embed_source(run.load_model(), run.open_source(), "test")
    shard = {"id": embeddings.clip_keys, "a": embeddings.clip_a.tolist(), "b": embeddings.clip_b.tolist()}
    pq.write_table(pa.table(shard), tmp_path / "part.parquet")
    from_shards = read_shard_items([tmp_path], 8, "", anchors=run.load_model().anchors)
    np.testing.assert_allclose(from_shards["a"].vectors, expected.numpy(), atol=1e-6)


def test_the_last_checkpoint_has_none(run):
    assert run.load_model("last").anchors is None


def test_they_are_dropped_where_validation_gets_worse(run):
    """Anchors whose neighbours are told the wrong sentences: a clip is drawn to where it does not belong."""
    source, model = run.open_source(), run.load_model(fitted=False)

    def embed(split):
        found = embed_source(model, source, split)
        return replace(found, clip_b=-found.clip_b) if split == "train" else found

    found = choose_search(model, run.config, embed, embed)["clip/text->video"]
    assert not found["anchors"]
    assert found["with_them"] == found["without"]
    assert model.anchors is None


def test_without_a_validation_split_anchors_are_kept_and_hubs_left_alone(run):
    splits = run.config.splits.model_copy(update={"validate_": None})
    hubs = load_config("msvd", {"hubs": {}}).hubs
    model = run.load_model(fitted=False)
    config = run.config.model_copy(update={"splits": splits, "hubs": hubs, "views": ViewsConfig()})
    found = choose_search(model, config, *[lambda split: embed_source(model, run.open_source(), split)] * 2)
    left = {"views": [], "vote": None, "hubs": None, "without": None, "with_them": None}
    assert found["clip/text->video"] == {"anchors": True, **left}
    assert model.anchors is not None
    assert model.hubs == {}


def test_a_run_that_asks_for_nothing_gets_nothing(run):
    assert fit_search(Run(run.path, run.config.model_copy(update={"anchors": None})), run.open_source()) is None


def crowd(samples, seed, side):
    """Noisy pairs; every tenth item of one side lies near to all that ask for it, whatever they ask."""
    rng = np.random.default_rng(seed)
    meaning = unit(rng.normal(size=(samples, 16)))
    asking, found = (unit(meaning + 0.7 * unit(rng.normal(size=meaning.shape))) for _ in range(2))
    generic = np.zeros((samples, 1))
    generic[::10] = 2.0
    asking, found = np.hstack([asking, np.ones((samples, 1))]), np.hstack([found, generic])
    asking, found = (torch.tensor(unit(rows), dtype=torch.float32) for rows in (asking, found))
    a, b = (found, asking) if side == "a" else (asking, found)
    keys = tuple(map(str, range(samples)))
    return Embeddings(a, b, torch.arange(samples), keys, torch.ones(samples, dtype=torch.int64), keys)


@pytest.mark.parametrize(("side", "direction"), [("a", "clip/b->a"), ("b", "clip/a->b")])
def test_hubs_are_corrected_in_the_direction_that_has_them(run, side, direction):
    splits = {"train": crowd(300, 0, side), "val": crowd(200, 1, side), "test": crowd(200, 2, side)}
    values = {"anchors": None, "hubs": load_config("msvd", {"hubs": {"sharpness": 3.0, "weights": [0.4, 1.0]}}).hubs}
    model = run.load_model(fitted=False)
    chosen = choose_search(model, run.config.model_copy(update=values), splits.__getitem__, splits.__getitem__)
    asks, items = ("clip_b", "clip_a") if side == "a" else ("clip_a", "clip_b")
    weight = chosen[direction]["hubs"]
    assert weight in (0.4, 1.0)

    def scored(split):
        """Percent of queries that find their own at once, and among ten, as one would compute it by hand."""
        queries, found = (getattr(splits[split], name).double().numpy() for name in (asks, items))
        training = getattr(splits["train"], asks).double().numpy()
        bias = -weight * np.log(np.exp(3.0 * found @ training.T).mean(1)) / 3.0
        scores = queries @ found.T + bias
        better = (scores > np.diag(scores)[:, None]).sum(1)
        return [100 * float((better < cutoff).mean()) for cutoff in (1, 10)]

    assert chosen[direction]["with_them"] == pytest.approx(sum(scored("val")) / 2)
    assert chosen[direction]["with_them"] > chosen[direction]["without"] + 20
    test = evaluate_embeddings(as_searched(splits["test"], model.anchors, model.hubs), progress=False)
    assert [test[direction]["R@1"], test[direction]["R@10"]] == pytest.approx(scored("test"))
    other = next(name for name in chosen if name != direction)
    plain = evaluate_embeddings(splits["val"], progress=False)[other]
    assert chosen[other]["without"] == pytest.approx((plain["R@1"] + plain["R@10"]) / 2)
    assert chosen[other]["with_them"] >= chosen[other]["without"]


def test_strict_recall_is_not_bought_with_meaning(run):
    """A hub is named by the one word that all captions have, so it answers everybody a little: leave it in front."""
    splits = {"train": crowd(300, 0, "a"), "val": crowd(200, 1, "a")}
    texts = tuple("thing" if row % 10 == 0 else f"thing n{row}" for row in range(200))
    splits["val"] = replace(splits["val"], texts=texts)
    hubs = load_config("msvd", {"hubs": {"sharpness": 2.0, "weights": [1.0]}}).hubs
    model = run.load_model(fitted=False)
    config = run.config.model_copy(update={"anchors": None, "hubs": hubs})
    chosen = choose_search(model, config, splits.__getitem__, splits.__getitem__)["clip/b->a"]
    assert chosen["hubs"] is None
    assert chosen["with_them"] == chosen["without"]
    assert "a" not in model.hubs
    # It is meaning that speaks against the correction; strict recall alone would have been for it.
    corrected = as_searched(splits["val"], None, {"a": Hubs(splits["train"].clip_b, 2.0)})
    plain, other = (semantic_scores(one)["clip/b->a"]["nDCG"] for one in (splits["val"], corrected))
    assert other < plain
    plain, other = (evaluate_embeddings(one, progress=False)["clip/b->a"]["R@1"] for one in (splits["val"], corrected))
    assert other > plain + 20


@pytest.fixture(scope="module")
def corrected_run(config, tmp_path_factory):
    """A run whose hubs are corrected, whatever validation says."""
    run = train(config, {"hubs": {"sharpness": 3.0}}, out=tmp_path_factory.mktemp("hubs") / "run")
    model = run.load_model(fitted=False)
    training = embed_source(model, run.open_source(), "train")
    model.anchors = Anchors.of(run.config.anchors, training)
    model.hubs = {"a": Hubs(training.clip_b, 3.0, 0.7), "b": Hubs(training.clip_a, 7.0)}
    run.write_fitted(model)
    return run


def test_the_correction_is_read_back(corrected_run):
    model = corrected_run.load_model()
    assert {side: (hubs.sharpness, hubs.weight) for side, hubs in model.hubs.items()} == {
        "a": (3.0, 0.7),
        "b": (7.0, 1.0),
    }
    found = embed_source(model, corrected_run.open_source(), "test")
    torch.testing.assert_close(found.hub_a, model.hubs["a"](model.anchors(found.clip_a)))
    torch.testing.assert_close(found.hub_b, model.hubs["b"](found.clip_b))
    plain = corrected_run.load_model("last")
    assert plain.hubs == {}
    assert plain.anchors is None


def test_what_is_no_longer_kept_is_taken_away(corrected_run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(corrected_run.path, copy)
    again = Run.open(copy)
    assert (copy / "best" / HUBS).is_file()
    again.write_fitted(again.load_model(fitted=False))
    assert not (copy / "best" / HUBS).exists()
    assert not (copy / "best" / ANCHORS).exists()


def test_an_index_adds_the_correction(corrected_run):
    pytest.importorskip("faiss")
    from crossclr.search.building.create import build_index
    from crossclr.search.searcher import Searcher

    build_index(corrected_run, splits=["test"])
    found = embed_source(corrected_run.load_model(), corrected_run.open_source(), "test")
    searcher = Searcher.open(corrected_run, text=False)
    for find, queries, items, bias in (
        ("a", found.clip_b, found.gallery_a, found.hub_a),
        ("b", found.clip_a, found.clip_b, found.hub_b),
    ):
        scores = normalize(queries, dim=1) @ normalize(items, dim=1).T + bias
        for row in range(3):
            hits = searcher.search(vector=queries[row].numpy(), find=find, top=5)
            best = scores[row].topk(5)
            assert [hit.item.key for hit in hits] == [found.clip_keys[place] for place in best.indices.tolist()]
            assert [hit.score for hit in hits] == pytest.approx(best.values.tolist(), abs=1e-5)


def test_joined_runs_average_their_corrections(corrected_run):
    one = embed_source(corrected_run.load_model(), corrected_run.open_source(), "test")
    alone = replace(one, anchored_a=None, hub_a=None, hub_b=None)
    joined = fuse([one, alone])
    torch.testing.assert_close(joined.hub_a, one.hub_a / 2)
    queries, items = (normalize(rows, dim=1) for rows in joined.b_to_a())
    parts = [tuple(normalize(rows, dim=1) for rows in (single.clip_b, single.gallery_a)) for single in (one, alone)]
    means = sum(asked @ found.T for asked, found in parts) / 2 + one.hub_a / 2
    torch.testing.assert_close(2 * queries @ items.T, means)
    assert fuse([alone, alone]).hub_a is None


def test_damaged_anchors_are_named(run, tmp_path):
    path = run.path / "best" / ANCHORS
    whole = path.read_bytes()
    path.write_bytes(whole[:50])
    try:
        with pytest.raises(ValueError, match=r"anchors\.safetensors cannot be read"):
            run.load_model()
    finally:
        path.write_bytes(whole)


def test_the_standard_error_is_that_of_clips():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(30, 4)) + rng.normal(size=(30, 1))  # four queries of each clip, which are alike
    clips = np.repeat(np.arange(30), 4) * 7
    order = rng.permutation(120)
    found = standard_error(torch.tensor(values.ravel()[order]), torch.tensor(clips[order]))
    assert found == pytest.approx(values.mean(1).std(ddof=1) / np.sqrt(30))
    assert found > 1.5 * values.std(ddof=1) / np.sqrt(120)  # as if all queries told something new
    assert standard_error(torch.tensor([1.0, 2.0]), torch.tensor([3, 3])) == float("inf")


def test_a_gain_within_its_error_is_no_reason_to_correct_hubs(run):
    """Small validation splits: what one query gains may be luck."""
    training, many = crowd(300, 0, "a"), crowd(200, 1, "a")
    hubs = load_config("msvd", {"hubs": {"sharpness": 3.0, "weights": [0.3]}}).hubs
    config = run.config.model_copy(update={"anchors": None, "hubs": hubs})
    model = run.load_model(fitted=False)
    decided = set()
    for start in range(0, 190, 4):
        a, b = (rows[start : start + 6] for rows in (many.clip_a, many.clip_b))
        keys = tuple("abcdef")
        few = Embeddings(a, b, torch.arange(6), keys, torch.ones(6, dtype=torch.int64), keys)
        chosen = choose_search(model, config, *[{"train": training, "val": few}.__getitem__] * 2)["clip/b->a"]
        plain = (b @ a.T).double().numpy()
        bias = -0.3 * np.log(np.exp(3.0 * (a @ training.clip_b.T).double().numpy()).mean(1)) / 3.0
        hits = [(scores.argmax(1) == np.arange(6)) for scores in (plain, plain + bias)]
        gain = (hits[1].astype(float) - hits[0]) / 2  # R@10 is 100 of six anyway
        expected = gain.mean() > gain.std(ddof=1) / np.sqrt(6) + 1e-9
        assert (chosen["hubs"] is not None) == expected
        decided.add((expected, gain.mean() > 0))
    assert decided == {(True, True), (False, True), (False, False)}


class Told:
    """A judge that was told the figures of every candidate: (queries,) by whether it has anchors and its hubs."""

    def __init__(self, figures):
        self.told = figures

    def figures(self, direction, candidate):
        return {name: torch.tensor(values).double() for name, values in self.told[candidate].items()}

    def clips(self, direction):
        return torch.arange(4)


@pytest.mark.parametrize(
    ("meaning", "expected"), [(30.0, ("anchors", None)), (40.0, ("anchors", "hubs")), (45.0, ("anchors", "hubs"))]
)
def test_hubs_are_compared_with_the_best_that_has_none(monkeypatch, meaning, expected):
    """With anchors nDCG is 40: a correction that brings it back to 30 is out, though the plain search has 30."""
    monkeypatch.setattr(fitting, "as_searched", lambda embeddings, anchors, hubs: (anchors, hubs.get("a")))
    recall = {(None, None): 10.0, ("anchors", None): 20.0, (None, "hubs"): 15.0, ("anchors", "hubs"): 60.0}
    told = {key: {"R@1": [value] * 4, "nDCG": [30.0] * 4} for key, value in recall.items()}
    told["anchors", None]["nDCG"] = [40.0] * 4
    told["anchors", "hubs"]["nDCG"] = [meaning] * 4
    candidates = [fitting._Candidate(*key) for key in told]
    chosen, score = fitting._choose(Told(told), "a", None, candidates)
    assert (chosen.anchors, chosen.hubs) == expected
    assert score == np.mean([told[expected][name][0] for name in ("R@1", "nDCG")])


def test_a_figure_falls_by_more_than_its_error():
    rng = np.random.default_rng(0)
    of = torch.arange(12).repeat_interleave(3)
    keys = tuple(map(str, range(12)))
    judge = QueryScores(
        Embeddings(torch.randn(12, 3), torch.randn(36, 3), of, keys, torch.ones(12, dtype=torch.int64), keys)
    )
    decided = set()
    for fall in np.linspace(-0.6, 0.2, 81):
        plain, found, change, error = {}, {}, 0.0, 0.0
        for direction, clips in (("a", of.numpy()), ("b", np.arange(12))):
            noise = rng.normal(size=len(clips))
            plain[direction] = {"same": torch.zeros(len(clips)), "other": torch.tensor(noise)}
            moved = noise + fall + rng.normal(size=len(clips))
            moved[0] = np.nan  # a query to which nothing is relevant
            found[direction] = {"same": torch.zeros(len(clips)), "other": torch.tensor(moved)}
            gain = (moved - noise)[1:]
            sums = [(gain - gain.mean())[clips[1:] == clip].sum() for clip in np.unique(clips[1:])]
            change += gain.mean() / 2
            error += np.square(sums).sum() * len(sums) / (len(sums) - 1) / len(gain) ** 2 / 4
        assert judge.falls(found, plain) == (change < -np.sqrt(error))
        decided.add((change < 0, bool(change < -np.sqrt(error))))
    assert decided == {(True, True), (True, False), (False, False)}
