"""From a run to an index and back: what is found, in all directions, is what a plain product of embeddings says."""

import json
import os
import shutil
import signal
import subprocess
import sys
from itertools import product

import numpy as np
import pytest
import torch

from crossclr.data import EmojiConfig, open_data
from crossclr.data.emoji_set import emoji_image, load_emoji, load_rows
from crossclr.models import embed_data
from crossclr.search import QueryError, Searcher, build_index, update_index
from crossclr.search.confidence import Calibration
from crossclr.search.create import Changes
from crossclr.search.index import current_generation
from tests.support.pairs import first, keys_of, second


def embedded(run, split):
    found = embed_data(run.load_model(), run.open_data().where(split=split))
    return found, *(
        torch.nn.functional.normalize(part, dim=1).double().numpy() for part in (first(found).rows, second(found).rows)
    )


def test_every_clip_and_sentence_is_there_with_its_facts(indexed, searcher):
    source = open_data(EmojiConfig())
    emoji = {item.key: item for item in load_emoji()}
    keys = [*keys_of(source, "test"), *keys_of(source, "val")]
    assert searcher.meta["modalities"]["image"]["count"] == 3 * len(keys)
    assert searcher.meta["modalities"]["text"]["count"] == len(keys)
    assert searcher.meta["filters"][0]["values"] == ["test", "val"]
    assert [about["label"] for about in searcher.meta["modalities"].values()] == ["images", "texts"]
    for key in keys[::60]:
        for vendor in ("noto", "fluent", "twemoji"):
            item = searcher.item(f"image/{key}@{vendor}")
            assert (item.text, item.split, item.group) == (emoji[key].text, emoji[key].split, emoji[key].group)
            assert (item.media, item.variant) == ("image", vendor)
            assert 0 <= item.x <= 1
            assert 0 <= item.y <= 1
        sentence = searcher.item(f"text/{key}")
        assert sentence.text == emoji[key].text
        assert {other.name for other in searcher.partners(sentence)} == {
            f"image/{key}@{v}" for v in ("noto", "fluent", "twemoji")
        }


def test_text_to_pictures_equals_a_plain_product(indexed, searcher):
    model = indexed.load_model()
    source = indexed.open_data()
    keys = [*keys_of(source, "test"), *keys_of(source, "val")]
    position = {item.key: place for place, item in enumerate(load_emoji())}
    rows, names = [], []
    for vendor in ("noto", "fluent", "twemoji"):
        rows += [load_rows(vendor)[position[key]][0] for key in keys]
        names += [f"image/{key}@{vendor}" for key in keys]
    from crossclr.data import Inputs, Ragged
    from crossclr.extract import TokenEncoder

    with torch.inference_mode():
        images = Ragged.from_list([torch.tensor(row[None]) for row in rows])
        gallery = model.encode_modality("image", Inputs(images))["clip"]
        tokens = torch.from_numpy(TokenEncoder()(["a crimson fruit"])[0])
        query = model.encode_modality("text", Inputs(Ragged.from_list([tokens])))["clip"]
    scores = torch.nn.functional.cosine_similarity(query.double(), gallery.double()).numpy()
    best = np.argsort(-scores)[:12]
    hits = searcher.search(text="  a crimson   fruit ", top=12)
    assert [hit.item.name for hit in hits] == [names[row] for row in best]
    np.testing.assert_allclose([hit.score for hit in hits], scores[best], atol=1e-5)


@pytest.mark.parametrize(("of", "find"), list(product(("image", "text"), repeat=2)))
def test_neighbours_in_all_directions(indexed, searcher, of, find):
    found, a, b = embedded(indexed, "test")
    row = 17
    key = found.clip_keys[row]
    query = (a if of == "image" else b)[row]
    gallery = a if find == "image" else b
    scores = gallery @ query
    names = [f"{find}/{other}" + ("@noto" if find == "image" else "") for other in found.clip_keys]
    expected = [names[place] for place in np.argsort(-scores, kind="stable") if not (of == find and place == row)]
    name = f"{of}/{key}" + ("@noto" if of == "image" else "")
    hits = searcher.search(like=name, find=find, top=1000, splits=["test"])
    assert name not in [hit.item.name for hit in hits]
    kept = [hit.item.name for hit in hits if hit.item.variant in ("", "noto")]
    assert kept == expected[: len(kept)]
    assert len(kept) >= 300


def test_filters(searcher):
    hits = searcher.search(text="crimson", top=200, splits=["val"], groups=["animals-nature"])
    assert hits
    assert {(hit.item.split, hit.item.group) for hit in hits} == {("val", "animals-nature")}
    everything = searcher.search(text="crimson", top=1000)
    kept = [hit.item.name for hit in everything if (hit.item.split, hit.item.group) == ("val", "animals-nature")]
    assert [hit.item.name for hit in hits][: len(kept)] == kept


def test_results_below_a_probability_are_omitted_and_those_with_the_words_stay(searcher, monkeypatch):
    monkeypatch.setattr(searcher, "_confidence", {"image": Calibration(bias=0.0, score=5.0, words=0.0)})
    everything = searcher.search(text="red fruit", top=200)
    chances = sorted(hit.probability for hit in everything)
    middle = (chances[99] + chances[100]) / 2
    kept = searcher.search(text="red fruit", top=200, min_probability=middle)
    assert [hit.item.name for hit in kept] == [
        hit.item.name for hit in everything if hit.probability >= middle or hit.words
    ]
    assert 100 <= len(kept) < 200
    with pytest.raises(QueryError, match="between 0 and 1"):
        searcher.search(text="red fruit", min_probability=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "say what to find"),
        ({"text": "a", "vector": [1.0] * 32}, "a whole query"),
        ({"text": "  "}, "empty"),
        ({"text": "a", "top": 0}, "top"),
        ({"text": "a", "top": 10**9}, "top"),
        ({"text": "a", "find": "c"}, "no modality 'c'"),
        ({"text": "a", "splits": ["nope"]}, "no split 'nope'"),
        ({"text": "a", "groups": ["nope"]}, "no group 'nope'"),
        ({"vector": [1.0, 2.0]}, "32 numbers"),
        ({"vector": [0.0] * 32}, "not zero"),
        ({"vector": [float("nan")] * 32}, "finite"),
    ],
)
def test_wrong_queries_are_refused_with_a_reason(searcher, arguments, message):
    with pytest.raises(QueryError, match=message):
        searcher.search(**arguments)


def test_an_unknown_item(searcher):
    with pytest.raises(KeyError, match="no item 'image/none'"):
        searcher.search(like="image/none")


def test_items_are_added_replaced_and_deleted_without_a_rebuild(run_copy):
    before = current_generation(run_copy.path / "index")
    source = run_copy.open_data()
    key = keys_of(source, "test")[5]
    counts = update_index(run_copy, delete=[f"image/{key}@noto", keys_of(source, "test")[6]])
    assert counts == Changes(added=0, replaced=0, deleted=5)
    searcher = Searcher.open(run_copy, text=False)
    assert searcher.meta["modalities"]["image"]["count"] == 3 * 473 - 4
    with pytest.raises(KeyError):
        searcher.item(f"image/{key}@noto")
    assert f"image/{key}@noto" not in [hit.item.name for hit in searcher.search(like=f"text/{key}", top=1000)]
    searcher.close()
    counts = update_index(run_copy, splits=["test", "train"])
    assert counts.replaced == 4 * 322 - 5
    assert counts.added == 4 * 1121 + 5
    searcher = Searcher.open(run_copy, text=False)
    assert searcher.meta["filters"][0]["values"] == ["test", "train", "val"]
    found = searcher.search(like=f"text/{key}", find="image", top=5, splits=["train"])
    assert {hit.item.split for hit in found} == {"train"}
    assert searcher.item(f"image/{key}@noto").text
    ids = [row[0] for row in searcher.items.columns("id")]
    assert len(ids) == len(set(ids)) == 4 * 1594
    searcher.close()
    with pytest.raises(ValueError, match="nothing was changed"):
        update_index(run_copy, delete=["none"])
    assert current_generation(run_copy.path / "index") != before


def test_an_updated_index_finds_what_a_new_one_finds(run_copy, trained, tmp_path):
    update_index(run_copy, splits=["train"])
    shutil.copytree(trained.path, tmp_path / "new")
    build_index(tmp_path / "new", splits=["test", "val", "train"])
    updated, built = Searcher.open(run_copy), Searcher.open(tmp_path / "new")
    for text in ("a red fruit", "two people", "flag"):
        ours, theirs = (
            [(hit.item.name, round(hit.score, 4)) for hit in one.search(text=text, top=20)] for one in (updated, built)
        )
        assert ours == theirs
    updated.close()
    built.close()


def test_the_map_shows_both_modalities_where_there_are_too_many_points(tmp_path):
    from crossclr.search.item_map import map_points
    from crossclr.search.items import Item, Items

    items = Items(tmp_path / "items.sqlite", writable=True)
    items.put(Item(number, f"text/{number}", "text", str(number)) for number in range(900))
    items.put(Item(900 + number, f"image/{number}", "image", str(number)) for number in range(30))
    shown = map_points(items, ["image", "text"], most=100)["modality"]
    assert (shown.count("image"), shown.count("text")) == (30, 70)
    items.close()


def test_one_modality_alone(trained, tmp_path):
    shutil.copytree(trained.path, tmp_path / "run")
    build_index(tmp_path / "run", splits=["all"], modalities=["text"])
    searcher = Searcher.open(tmp_path / "run")
    assert searcher.modalities == ("text",)
    assert searcher.meta["filters"][0]["values"] == ["test", "train", "val"]
    assert searcher.search(text="a dog", top=3)[0].item.modality == "text"
    searcher.close()
    with pytest.raises(ValueError, match="no modality 'c'"):
        build_index(tmp_path / "run", modalities=["c"])


def test_drawings_that_are_joined_make_one_item_with_all_of_them(tmp_path):
    from crossclr import api
    from crossclr.data.emoji_set import read_image
    from crossclr.search.results import plain_item
    from crossclr.training import load_config
    from tests.search.conftest import SMALL

    config = load_config("emoji", {**SMALL, "data.modalities.image": "noto+twemoji", "training.epochs": 1})
    run = api.train(config, out=tmp_path / "run", baseline=False)
    build_index(run, splits=["val"])
    searcher = Searcher.open(run, text=False)
    assert searcher.meta["modalities"]["image"]["count"] == 151
    item = searcher.items.get([3])[0]
    assert plain_item(item)["media"]["parts"] == 2
    drawn = [emoji_image(item.key, vendor) for vendor in ("noto", "twemoji")]
    assert [read_image(item.file, part) for part in range(2)] == drawn
    searcher.close()


def test_milvus_serves_the_same_results(trained, searcher, tmp_path):
    pytest.importorskip("pymilvus")
    pytest.importorskip("milvus_lite")
    shutil.copytree(trained.path, tmp_path / "run")
    build_index(tmp_path / "run", splits=["val"], backend="milvus", uri=str(tmp_path / "lite.db"))
    ours = Searcher.open(tmp_path / "run")
    for arguments in ({"text": "a red fruit"}, {"text": "tool", "groups": ["objects"]}):
        found = [(hit.item.name, round(hit.score, 3)) for hit in ours.search(top=8, splits=["val"], **arguments)]
        expected = [(hit.item.name, round(hit.score, 3)) for hit in searcher.search(top=8, splits=["val"], **arguments)]
        assert found == expected
    ours.close()


def test_no_index_and_other_weights_are_told(trained, run_copy):
    with pytest.raises(FileNotFoundError, match="crossclr index"):
        Searcher.open(trained)
    with pytest.raises(FileNotFoundError, match="crossclr index"):
        update_index(trained, splits=["val"])
    weights = run_copy.path / "best" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match="other weights"):
        Searcher.open(run_copy)


CHILD = """
import functools, os, signal, sys
from crossclr.search import build_index, update_index
from crossclr.search import create, item_map
def die(*a): os.kill(os.getpid(), signal.SIGKILL)
create.write_index = die
item_map.project = functools.partial(item_map.project, landmarks=50)
build_index(sys.argv[1]) if sys.argv[2] == "build" else update_index(sys.argv[1], delete=["text/1F600"])
"""


@pytest.mark.parametrize("what", ["build", "update"])
def test_killed_while_it_is_built_or_updated_it_opens_in_its_last_complete_state(run_copy, what):
    before = current_generation(run_copy.path / "index")
    kept = json.loads((before / "index.json").read_text())["modalities"]["image"]["count"]
    if what == "update":
        name = Searcher.open(run_copy, text=False).items.columns("name", where="text")[0][0]
        code = CHILD.replace("text/1F600", name)
    else:
        code = CHILD.replace("build_index(sys.argv[1])", "build_index(sys.argv[1], splits=['val'])")
    done = subprocess.run(
        [sys.executable, "-c", code, str(run_copy.path), what],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert current_generation(run_copy.path / "index") == before
    searcher = Searcher.open(run_copy, text=False)
    assert searcher.meta["modalities"]["image"]["count"] == kept
    searcher.close()
    build_index(run_copy, splits=["val"])  # and the next build clears up
    assert len(list((run_copy.path / "index").glob("generation-*"))) == 2
