"""An index of four modalities: the drawings of three vendors and the text of the built-in set."""

import json
import shutil

import numpy as np
import pytest
import torch

from crossclr import api
from crossclr.models import embed_source
from crossclr.search import QueryError, Searcher, build_index, update_index
from crossclr.search.building.index_files import META, read_meta
from crossclr.search.encoders.onnx_queries import QUERY_ENCODER
from crossclr.search.index.generations import current_generation
from crossclr.storage.checksums import seal
from crossclr.storage.read_error import ReadError
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
    found = embed_source(run.load_model(), run.open_source(), "test")
    rows = {name: torch.nn.functional.normalize(found[name].rows, dim=1).numpy() for name in found.names}
    return found.clip_keys, rows


def name_of(modality, key):
    return f"{modality}/{key}" + ("" if modality == "words" else f"@{modality}")


def test_every_modality_has_its_items(opened):
    assert opened.modalities == ALL
    about = opened.meta["modalities"]
    assert len({one["count"] for one in about.values()}) == 1
    assert [one["label"] for one in about.values()] == ["noto images", "fluent images", "twemoji images", "texts"]
    assert [one["tried"] for one in about.values()] == [3 * about["noto"]["count"]] * 4
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


def test_sentences_are_encoded_by_the_modality_that_has_texts(run, opened):
    assert opened.meta["text_modality"] == "words"
    assert (opened.folder / QUERY_ENCODER).is_file()
    assert {hit.item.modality for hit in opened.search(text="red fruit")} == {"noto"}
    hits = opened.search(text="red fruit", find="twemoji")
    assert {hit.item.modality for hit in hits} == {"twemoji"}
    expected = opened.search(vector=opened.queries.encode(["red fruit"])[0], find="twemoji")
    assert [hit.item.name for hit in hits] == [hit.item.name for hit in expected]
    with pytest.raises(QueryError, match="no modality 'video'; it has noto, fluent, twemoji, words"):
        opened.search(text="red fruit", find="video")


def test_an_index_of_some_modalities_and_its_update(run, tmp_path):
    path = tmp_path / "copy"
    shutil.copytree(run.path, path)
    build_index(path, splits=["val"], modalities=["words", "fluent"])
    changes = update_index(path, splits=["test"], delete=[])
    searcher = Searcher.open(path, text=False)
    assert searcher.modalities == ("fluent", "words")
    assert changes.added == 2 * len(run.open_source().keys("test"))
    assert searcher.meta["modalities"]["words"]["tried"] == searcher.meta["modalities"]["fluent"]["count"]
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
