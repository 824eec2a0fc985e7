"""Views in closed form against loops over samples and SciPy, and how validation chooses among them."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import scipy.linalg
import torch
from safetensors.torch import save
from torch.nn.functional import normalize

from crossclr.api import train
from crossclr.evaluation import evaluate_embeddings
from crossclr.evaluation.fitted_search.choice import any_kept, choose_search, with_views
from crossclr.evaluation.fitted_search.linear_views import LinearViews, _shared_words
from crossclr.evaluation.meaning.relevance import clip_words, content_words
from crossclr.evaluation.meaning.semantics import semantic_scores
from crossclr.models import Embeddings, Views, ViewsConfig, embed_source, pool_source
from crossclr.training import Run, load_config
from crossclr.training.run_folder.run import VIEWS
from tests.support.tiny_runs import write_config
from tests.support.vectors import cosines

WORDS = ["dog", "cat", "horse", "man", "car", "river", "bread", "piano"]


def samples(clips, seed, noise=1.0, dims=(9, 7), texts=True):
    """Clips with two sentences each; both modalities see the words through a fixed map and noise."""
    rng = np.random.default_rng(seed)
    maps = [np.random.default_rng(99 + side).normal(size=(len(WORDS), dim)) for side, dim in enumerate(dims)]
    said = [[set(rng.choice(len(WORDS), 2, replace=False)) for _ in range(2)] for _ in range(clips)]
    bags = [[[float(word in words) for word in range(len(WORDS))] for words in pair] for pair in said]
    a = np.array([np.mean(pair, axis=0) for pair in bags]) @ maps[0] + noise * rng.normal(size=(clips, dims[0]))
    flat = [bag for pair in bags for bag in pair]
    b = np.array(flat) @ maps[1] + 0.1 * rng.normal(size=(2 * clips, dims[1]))
    lines = tuple("a " + " and ".join(WORDS[word] for word in sorted(words)) for pair in said for words in pair)
    keys = tuple(map(str, range(clips)))
    of = torch.arange(clips).repeat_interleave(2)
    rows = (torch.tensor(part, dtype=torch.float32) for part in (a, b))
    return Embeddings(*rows, of, keys, torch.ones(clips, dtype=torch.int64), keys, lines if texts else ())


def by_hand(inputs, strength):
    """Scores of both views, every product summed in a loop."""
    a, b = (normalize(rows.double(), dim=1).numpy() for rows in (inputs.clip_a, inputs.clip_b))
    of = inputs.clip_of.tolist()
    mean_a, mean_b = a[of].mean(0), b.mean(0)
    words = [content_words(text) for text in inputs.texts]
    answers = [clip_words([words[s] for s in range(len(of)) if of[s] == clip]) for clip in range(len(a))]
    pairs, shared = np.zeros((a.shape[1], b.shape[1])), np.zeros((a.shape[1], b.shape[1]))
    for sentence, own in enumerate(of):
        for clip in range(len(a)):
            product = np.outer(a[clip] - mean_a, b[sentence] - mean_b)
            pairs += (clip == own) * product / len(of)
            shared += len(words[sentence] & answers[clip]) / len(words[sentence] | answers[clip]) * product
    covariances = []
    for rows, mean in ((a[of], mean_a), (b, mean_b)):
        found = sum(np.outer(row - mean, row - mean) for row in rows) / len(rows)
        covariances.append(found + strength * np.trace(found) / len(found) * np.eye(len(found)))
    white_a, white_b = (np.linalg.inv(scipy.linalg.sqrtm(one)) for one in covariances)
    scores = {}
    for name, crossed, power in (("pairs", pairs, 1.0), ("words", shared, 0.5)):
        left, values, right = np.linalg.svd(white_a @ crossed @ white_b, full_matrices=False)
        x = (a - mean_a) @ white_a @ left * values**power
        y = (b - mean_b) @ white_b @ right.T * values**power
        scores[name] = cosines(y, x)
    return scores


@pytest.mark.parametrize("vote", [0.5, 1.0])
def test_they_equal_a_loop(vote):
    inputs, encoded = samples(30, 0), samples(30, 1, dims=(6, 6))
    views = LinearViews(ViewsConfig(regularisation=0.3), inputs, encoded).build(["pairs", "words"], vote)
    found = with_views(encoded, views, inputs)
    expected = by_hand(inputs, 0.3)
    plain = cosines(encoded.clip_b.double().numpy(), encoded.clip_a.double().numpy())
    votes = np.array([1 / plain.std(ddof=1), *(vote / expected[name].std(ddof=1) for name in ("pairs", "words"))])
    total = sum(share * part for share, part in zip(votes / votes.sum(), (plain, *expected.values()), strict=True))
    np.testing.assert_allclose((found.clip_b @ found.clip_a.T).numpy(), total, atol=1e-5)


def test_of_many_clips_some_are_compared():
    inputs, encoded = samples(40, 0), samples(40, 1, dims=(6, 6))
    found, whole = (
        LinearViews(ViewsConfig(most=most), inputs, encoded).build(["pairs", "words"], 1.0) for most in (8, 40)
    )
    half = found.widths[0]
    torch.testing.assert_close(found.basis_a[:, :half], whole.basis_a[:, :half])
    places = [0, 5, 11, 16, 22, 27, 33, 39]  # evenly spread, with both sentences of each
    rows = [2 * place + sentence for place in places for sentence in (0, 1)]
    some = replace(
        inputs,
        clip_a=inputs.clip_a[places],
        clip_b=inputs.clip_b[rows],
        clip_of=torch.arange(8).repeat_interleave(2),
        texts=tuple(inputs.texts[row] for row in rows),
    )
    centred = [normalize(rows.double(), dim=1) for rows in (inputs.clip_a, inputs.clip_b)]
    centred = [rows - rows.mean(0) for rows in centred]
    expected = _shared_words(some, centred[0][places], centred[1][rows], 8)
    torch.testing.assert_close(_shared_words(inputs, *centred, 8), expected)
    assert not torch.allclose(found.basis_a[:, half:].abs(), whole.basis_a[:, half:].abs(), atol=1e-3)


def test_candidates_go_from_few_to_many():
    encoded = samples(20, 1, dims=(6, 6))
    with_texts, without = (LinearViews(ViewsConfig(dim=3), samples(20, 0, texts=has), encoded) for has in (True, False))
    assert [(one.names, one.vote) for one in without.candidates()] == [(["pairs"], 0.25), (["pairs"], 1.0)]
    assert [one.names for one in with_texts.candidates()] == [["pairs"]] * 2 + [["pairs", "words"]] * 2
    assert [one.views.widths for one in with_texts.candidates()][-1] == [3, 3]


def blurred(inputs, seed, noise):
    """What a poor encoder makes of the inputs."""
    rng = np.random.default_rng(seed)
    rows = []
    for part, dim in ((inputs.clip_a, 9), (inputs.clip_b, 7)):
        known = torch.linalg.pinv(
            torch.tensor(np.random.default_rng(99 + (dim == 7)).normal(size=(len(WORDS), dim)))
        ).float()
        rows.append(part @ known + noise * torch.tensor(rng.normal(size=(len(part), len(WORDS))), dtype=torch.float32))
    return Embeddings(*rows, inputs.clip_of, inputs.clip_keys, inputs.clip_counts, inputs.video_keys, inputs.texts)


def chosen(splits, encoded, config=None):
    model = Holder()
    values = {"views": ViewsConfig() if config is None else config, "anchors": None, "hubs": None}
    run_config = load_config("msvd").model_copy(update=values)
    return model, choose_search(model, run_config, encoded.__getitem__, splits.__getitem__)


class Holder:
    """Stands for a model: something that is given what was fitted."""

    views = anchors = None


def figures(embeddings):
    strict, meaning = evaluate_embeddings(embeddings, progress=False), semantic_scores(embeddings)
    both = [{**strict[d], **meaning.get(d, {})} for d in ("clip/b->a", "clip/a->b")]
    names = ("R@1", "R@10", *(("nDCG", "sR@1") if meaning else ()))
    return {name: sum(one[name] for one in both) / 2 for name in names}


@pytest.mark.parametrize("texts", [True, False])
def test_the_best_by_meaning_with_which_nothing_falls_are_taken(texts):
    splits = {name: samples(150, seed, texts=texts) for seed, name in enumerate(("train", "val"))}
    encoded = {name: blurred(part, seed, 1.0) for seed, (name, part) in enumerate(splits.items())}
    model, found = chosen(splits, encoded)
    plain = figures(encoded["val"])
    candidates = list(LinearViews(ViewsConfig(), splits["train"], encoded["train"]).candidates())
    measured = [figures(with_views(encoded["val"], one.views, splits["val"])) for one in candidates]
    allowed = [place for place, one in enumerate(measured) if all(one[name] >= plain[name] for name in plain)]
    worth = [one["nDCG"] if texts else one["R@1"] + one["R@10"] for one in measured]
    best = candidates[max(allowed, key=lambda place: worth[place])]
    for direction in ("clip/b->a", "clip/a->b"):
        assert (found[direction]["views"], found[direction]["vote"]) == (best.names, best.vote)
        assert found[direction]["with_them"] > found[direction]["without"]
    assert any_kept(found)
    assert model.views.shares == pytest.approx(best.views.shares)


def test_they_are_left_out_where_a_figure_falls():
    """An encoder that knows everything, beside inputs that know little."""
    splits = {name: samples(100, seed, noise=20.0) for seed, name in enumerate(("train", "val"))}
    encoded = {}
    for name, part in splits.items():
        rows = torch.eye(100)
        encoded[name] = Embeddings(
            rows, rows[part.clip_of], part.clip_of, part.clip_keys, part.clip_counts, part.video_keys, part.texts
        )
    model, found = chosen(splits, encoded, ViewsConfig(votes=[5.0]))
    assert model.views is None
    assert found["clip/b->a"]["views"] == []
    assert found["clip/b->a"]["with_them"] == found["clip/b->a"]["without"]
    assert not any_kept(found)


def test_inputs_that_never_vary_have_no_views():
    splits = {name: samples(20, seed) for seed, name in enumerate(("train", "val"))}
    same = {
        name: Embeddings(
            torch.ones(20, 9), part.clip_b, part.clip_of, part.clip_keys, part.clip_counts, part.video_keys, part.texts
        )
        for name, part in splits.items()
    }
    model, found = chosen(same, {name: blurred(part, 0, 0.1) for name, part in splits.items()})
    assert model.views is None
    assert not any_kept(found)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose views are used, whatever validation says."""
    folder = tmp_path_factory.mktemp("views")
    hidden = np.random.default_rng(1).normal(size=(90, 4))
    config = write_config(folder, hidden, views={"dim": 5}, anchors={"neighbours": 3})
    run = train(config, {"model.dim": 6, "training.batch_size": 20}, out=folder / "run")
    assert set(run.results["fitted"]["clip/text->video"]) >= {"views", "vote"}
    model = run.load_model(fitted=False)
    source = run.open_source()
    linear = LinearViews(run.config.views, pool_source(model, source, "train"), embed_source(model, source, "train"))
    model.views = linear.build(["pairs"], 1.0)
    run.write_fitted(model)
    return run


def test_they_are_read_back_and_used(run):
    model = run.load_model()
    assert isinstance(model.views, Views)
    assert run.load_model("last").views is None
    source = run.open_source()
    found = embed_source(model, source, "test")
    plain = run.load_model(fitted=False)
    expected = with_views(embed_source(plain, source, "test"), model.views, pool_source(plain, source, "test"))
    torch.testing.assert_close(found.clip_a, expected.clip_a)
    assert found.clip_b.shape[1] == model.embedding_dim == 6 + 4  # no more than the rank of modality B


def test_embeddings_with_other_views_are_told_apart(run):
    path = run.path / "best" / VIEWS
    whole, before, last = path.read_bytes(), run.digest(), run.digest("last")
    tensors = run.load_model().views.tensors()
    try:
        path.write_bytes(save({**tensors, "shares": tensors["shares"].flip(0)}))
        assert run.digest() != before
        path.unlink()
        assert run.digest() == hashlib.sha256((run.path / "best" / "model.safetensors").read_bytes()).hexdigest()
        assert run.digest("last") == last
    finally:
        path.write_bytes(whole)
    assert run.digest() == before


def test_a_search_uses_them(run):
    pytest.importorskip("faiss")
    from crossclr.search.building.create import build_index
    from crossclr.search.searcher import Searcher

    build_index(run, splits=["test"])
    found = embed_source(run.load_model(), run.open_source(), "test")
    searcher = Searcher.open(run, text=False)
    scores = found.clip_b @ found.clip_a.T
    for row in range(5):
        hits = searcher.search(vector=found.clip_b[row].numpy(), find="a", top=4)
        assert [hit.item.key for hit in hits] == [found.clip_keys[place] for place in scores[row].topk(4).indices]


def test_shards_of_embeddings_hold_them(run, tmp_path):
    pytest.importorskip("faiss")
    import pyarrow as pa
    import pyarrow.parquet as pq

    from crossclr.search.building.create import build_index
    from crossclr.search.searcher import Searcher

    found = embed_source(run.load_model(), run.open_source(), "test")
    table = {"id": found.clip_keys, "a": found.clip_a.tolist(), "b": found.clip_b.tolist()}
    pq.write_table(pa.table(table), tmp_path / "part.parquet")
    build_index(run, shards=[tmp_path])
    hits = Searcher.open(run, text=False).search(vector=found.clip_b[0].numpy(), find="a", top=1)
    assert hits[0].item.key == found.clip_keys[int((found.clip_b[0] @ found.clip_a.T).argmax())]


def test_an_export_has_them(run, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from crossclr.search.encoders.onnx_export import export_run
    from crossclr.search.encoders.onnx_search import OnnxEncoder

    export_run(run, tmp_path / "onnx")
    source = run.open_source()
    found = embed_source(run.load_model(), source, "test")
    rows = [source.read(key).clips[0] for key in source.keys("test")]
    np.testing.assert_allclose(OnnxEncoder(tmp_path / "onnx" / "encoder_a.onnx")(rows), found.clip_a, atol=1e-4)


def test_damaged_views_are_named(run):
    path = run.path / "best" / VIEWS
    whole = path.read_bytes()
    path.write_bytes(whole[:40])
    try:
        with pytest.raises(ValueError, match=r"views\.safetensors cannot be read"):
            Run.open(run.path).load_model()
    finally:
        path.write_bytes(whole)
