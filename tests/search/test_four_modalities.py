"""An index of four modalities: the drawings of three vendors and the text of the built-in set."""

import json
import shutil

import numpy as np
import pytest
import torch

from crossclr import api
from crossclr.errors import ReadError
from crossclr.models import embed_data
from crossclr.search import QueryError, Searcher, build_index, update_index
from crossclr.search.faiss_index import FaissIndex, fuse_items
from crossclr.search.index import META, current_generation, read_meta
from crossclr.search.items import Item, Items
from crossclr.search.onnx_queries import QUERY_ENCODER
from crossclr.search.query import Weights
from crossclr.storage.manifest import seal
from crossclr.training import Run, load_config
from tests.search.conftest import SMALL

DRAWN = ("noto", "fluent", "twemoji")
ALL = (*DRAWN, "words")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose text has another name than ``text``."""
    content = {**{name: name for name in DRAWN}, "words": "text"}
    config = load_config("emoji", {**SMALL, "training.epochs": 2, "data.modalities": content})
    path = tmp_path_factory.mktemp("four") / "run"
    api.train(config, out=path, baseline=False)
    build_index(path, splits=["test", "val"])
    return Run.open(path)


@pytest.fixture(scope="module")
def opened(run):
    searcher = Searcher.open(run)
    yield searcher
    searcher.close()


@pytest.fixture(scope="module")
def vectors(run):
    found = embed_data(run.load_model(), run.open_data().where(split="test"))
    rows = {name: torch.nn.functional.normalize(found[name].rows, dim=1).numpy() for name in found.names}
    return found.clip_keys, rows


def name_of(modality, key):
    return f"{modality}/{key}" + ("" if modality == "words" else f"@{modality}")


def test_every_modality_has_its_items(opened):
    assert opened.modalities == ALL
    about = opened.meta["modalities"]
    assert len({one["count"] for one in about.values()}) == 1
    assert [one["label"] for one in about.values()] == ["noto images", "fluent images", "twemoji images", "texts"]
    apple = opened.item(opened.sample("words", 1)[0].name)
    assert {one.name for one in opened.partners(apple)} == {name_of(name, apple.key) for name in DRAWN}
    points = json.loads(opened.map_file().read_text())["modality"]
    assert set(points) == set(ALL)


@pytest.mark.parametrize("find", ALL)
@pytest.mark.parametrize("of", ["fluent", "words"])
def test_one_modality_is_searched_like_a_plain_product(opened, vectors, of, find):
    keys, rows = vectors
    scores = rows[find] @ rows[of][17]
    expected = [name_of(find, keys[place]) for place in np.argsort(-scores, kind="stable")]
    seed = name_of(of, keys[17])
    hits = opened.search(like=seed, find=find, top=10, splits=["test"])
    assert [hit.item.name for hit in hits] == [name for name in expected if name != seed][:10]
    assert {hit.item.modality for hit in hits} == {find}


def test_all_modalities_are_searched_together(opened, vectors):
    keys, rows = vectors
    seed = name_of("noto", keys[3])
    scores = {
        name_of(name, key): score for name in ALL for key, score in zip(keys, rows[name] @ rows["noto"][3], strict=True)
    }
    del scores[seed]
    hits = opened.search(like=seed, find="all", top=40, splits=["test"])
    assert [hit.item.name for hit in hits] == sorted(scores, key=lambda name: -scores[name])[:40]
    np.testing.assert_allclose([hit.score for hit in hits], [scores[hit.item.name] for hit in hits], atol=1e-5)


@pytest.mark.parametrize("find", ["fused", "fluent+words"])
def test_samples_are_searched_by_the_mean_of_their_vectors(opened, vectors, find):
    keys, rows = vectors
    names = ALL if find == "fused" else tuple(find.split("+"))
    means = [np.mean([rows[name][place].astype(float) for name in names], axis=0) for place in range(len(keys))]
    scores = [float(mean / np.linalg.norm(mean) @ rows["noto"][3].astype(float)) for mean in means]
    best = [keys[place] for place in np.argsort(-np.array(scores))]
    if "noto" in names:
        best.remove(keys[3])  # the sample of the query
    hits = opened.search(like=name_of("noto", keys[3]), find=find, top=20, splits=["test"])
    assert [hit.item.key for hit in hits] == best[:20]
    np.testing.assert_allclose([hit.score for hit in hits], [scores[keys.index(one)] for one in best[:20]], atol=1e-5)
    for hit in hits:
        assert [one.name for one in hit.together] == [name_of(name, hit.item.key) for name in ALL]
        assert hit.probability is None


def test_a_sample_that_lacks_modalities_is_fused_from_what_it_has(tmp_path):
    items = Items(tmp_path / "items.sqlite", writable=True)
    items.put(
        [
            Item(0, "video/x", "video", "x"),
            Item(1, "video/y", "video", "y"),
            Item(2, "text/y", "text", "y"),
            Item(3, "text/y#2", "text", "y"),
            Item(4, "text/z", "text", "z"),
        ]
    )
    video, text = FaissIndex(2), FaissIndex(2)
    video.add(np.array([0, 1]), np.array([[1, 0], [0, 1]], np.float32))
    text.add(np.array([2, 3, 4]), np.array([[1, 0], [1, 0], [0, -1]], np.float32))
    fused = fuse_items(items, {"video": video, "text": text}, dim=2)
    half = 0.5**0.5  # the two sentences of y count as one
    np.testing.assert_allclose(fused.vectors(np.array([0, 1, 4])), [[1, 0], [half, half], [0, -1]], atol=1e-6)
    assert len(fused) == 3


def test_a_query_of_several_modalities_with_weights(opened, vectors):
    keys, rows = vectors
    drawing, sentence = rows["noto"][5], opened.queries.encode(["at night"])[0]
    total = 2.0 * drawing + 0.5 * sentence
    best = [hit.item.key for hit in opened.search(vector=total, find="fused", top=12, splits=["test"])]
    expected = [key for key in best if key != keys[5]][:11]  # without the sample of the drawing
    found = opened.search(
        text="at night",
        like=name_of("noto", keys[5]),
        weights=Weights(text=0.5, more=2.0),
        find="fused",
        top=11,
        splits=["test"],
    )
    assert [hit.item.key for hit in found] == expected


def test_sentences_are_encoded_by_the_modality_that_has_texts(run, opened):
    assert opened.meta["text_modality"] == "words"
    assert (opened.folder / QUERY_ENCODER).is_file()
    assert {hit.item.modality for hit in opened.search(text="crimson fruit")} == {"noto"}
    hits = opened.search(text="crimson fruit", find="twemoji")
    assert {hit.item.modality for hit in hits} == {"twemoji"}
    expected = opened.search(vector=opened.queries.encode(["crimson fruit"])[0], find="twemoji")
    assert [hit.item.name for hit in hits] == [hit.item.name for hit in expected]
    for find in ("video", "noto+video"):
        with pytest.raises(QueryError, match="no modality 'video'; it has noto, fluent, twemoji, words"):
            opened.search(text="crimson fruit", find=find)


def test_an_index_of_some_modalities_and_its_update(run, tmp_path):
    path = tmp_path / "copy"
    shutil.copytree(run.path, path)
    build_index(path, splits=["val"], modalities=["words", "fluent"])
    changes = update_index(path, splits=["test"], delete=[])
    searcher = Searcher.open(path, text=False)
    assert searcher.modalities == ("fluent", "words")
    assert changes.added == 2 * len(run.open_data().where(split="test"))
    searcher.close()
    with pytest.raises(ValueError, match="no modality 'image'; the run has noto, fluent, twemoji, words"):
        build_index(path, modalities=["image"])


def test_an_index_of_an_older_format_is_reported(run, tmp_path):
    folder = tmp_path / "old"
    shutil.copytree(current_generation(run.path / "index"), folder)
    meta = json.loads((folder / META).read_text())
    (folder / META).write_text(json.dumps({**meta, "format": 2}))
    seal(folder)
    with pytest.raises(ReadError, match="run crossclr index again"):
        read_meta(folder)
