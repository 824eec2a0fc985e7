import base64
import io
import json
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crossclr import JointEmbedding
from crossclr.data.foreign import from_clip_retrieval, from_fiftyone, from_hugging_face, from_json_lines
from crossclr.errors import DataError

RNG = np.random.default_rng(0)
IMAGES, TEXTS = RNG.normal(size=(6, 5)).astype(np.float32), RNG.normal(size=(6, 4)).astype(np.float32)
SENTENCES = [f"sentence {number}" for number in range(6)]


def check(data, keys, splits=None):
    """Every sample has the rows of its place."""
    assert list(data.keys) == keys
    for place, key in enumerate(keys):
        row = splits[key] if splits else place
        np.testing.assert_array_equal(data[place]["image"].clips[0][0], IMAGES[row])
        np.testing.assert_array_equal(data[place]["text"].clips[0][0], TEXTS[row])


def test_clip_retrieval(tmp_path):
    for stem, rows in (("img_emb", IMAGES), ("text_emb", TEXTS)):
        (tmp_path / stem).mkdir()
        for part, (first, last) in enumerate([(0, 4), (4, 6)]):
            np.save(tmp_path / stem / f"{stem}_{part}.npy", rows[first:last])
    (tmp_path / "metadata").mkdir()
    for part, (first, last) in enumerate([(0, 4), (4, 6)]):
        table = {"caption": SENTENCES[first:last], "key": [f"k{n}" for n in range(first, last)]}
        pq.write_table(pa.table(table), tmp_path / "metadata" / f"metadata_{part}.parquet")
    data = from_clip_retrieval(tmp_path)
    check(data, [f"k{n}" for n in range(6)])
    assert data[5]["text"].texts == ("sentence 5",)
    with pytest.raises(DataError, match=r"has no img_emb/img_emb_0.npy"):
        from_clip_retrieval(tmp_path / "metadata")


def test_ten_parts_are_in_the_order_of_their_numbers(tmp_path):
    for stem in ("img_emb", "text_emb"):
        (tmp_path / stem).mkdir()
        for part in range(11):
            np.save(tmp_path / stem / f"{stem}_{part}.npy", np.full((1, 2), part, np.float32))
    data = from_clip_retrieval(tmp_path)
    assert [float(data[place]["image"].clips[0][0, 0]) for place in range(11)] == [*range(11)]


def test_hugging_face():
    datasets = pytest.importorskip("datasets")
    columns = {"a": IMAGES.tolist(), "b": TEXTS.tolist(), "caption": SENTENCES, "name": [f"n{n}" for n in range(6)]}
    whole = datasets.Dataset.from_dict(columns)
    names = {"image": "a", "text": "b"}
    check(from_hugging_face(whole, names, key="name"), columns["name"])
    parts = datasets.DatasetDict({"train": whole.select(range(4)), "test": whole.select([5, 4])})
    data = from_hugging_face(parts, names, texts="caption")
    assert data.splits == ("train", "test")
    check(data.where(split="test"), ["test/0", "test/1"], {"test/0": 5, "test/1": 4})
    assert data.where(split="test")[0]["text"].texts == ("sentence 5",)
    with pytest.raises(DataError, match="split 'train' has no column 'c'; it has a, b, caption, name"):
        from_hugging_face(parts, {"image": "a", "text": "c"})


def compressed(row):
    """As FiftyOne serialises arrays."""
    content = io.BytesIO()
    np.save(content, row, allow_pickle=False)
    return base64.b64encode(zlib.compress(content.getvalue())).decode()


def test_fiftyone(tmp_path):
    samples = [
        {
            "filepath": f"data/{number}.jpg",
            "tags": ["test", "nice"] if number > 3 else ["train"],
            "image_emb": {"$binary": {"base64": compressed(IMAGES[number]), "subType": "00"}},
            "text_emb": TEXTS[number].tolist(),
        }
        for number in range(6)
    ]
    (tmp_path / "samples.json").write_text(json.dumps({"samples": samples}))
    names = {"image": "image_emb", "text": "text_emb"}
    data = from_fiftyone(tmp_path, names)
    check(data, [str(number) for number in range(6)])
    assert list(data.where(split="test").keys) == ["4", "5"]
    samples[2]["text_emb"] = None
    samples[3]["image_emb"] = compressed(np.array(["no"], dtype=object).astype("U2"))
    (tmp_path / "samples.json").write_text(json.dumps({"samples": samples}))
    with pytest.raises(DataError, match="cannot be read as vector of FiftyOne"):
        from_fiftyone(tmp_path, names)
    samples[3]["image_emb"] = compressed(IMAGES[3])
    (tmp_path / "samples.json").write_text(json.dumps({"samples": samples}))
    assert "text" not in from_fiftyone(tmp_path, names)[2].modalities


def test_json_lines(tmp_path):
    def answer(number, rows):
        body = {"data": [{"embedding": rows[number].tolist(), "index": 0}], "model": "text-embedding-3-small"}
        return json.dumps({"custom_id": f"c{number}", "response": {"status_code": 200, "body": body}})

    plain = [json.dumps({"id": f"c{n}", "embedding": IMAGES[n].tolist()}) for n in (5, 4, 3, 2, 1, 0)]
    (tmp_path / "text.jsonl").write_text("\n".join(answer(number, TEXTS) for number in range(6)))
    (tmp_path / "image.jsonl").write_text("\n".join(plain) + "\n")
    data = from_json_lines({"text": tmp_path / "text.jsonl", "image": tmp_path / "image.jsonl"})
    check(data, [f"c{number}" for number in range(6)])
    (tmp_path / "text.jsonl").write_text('{"custom_id": "c0"}')
    with pytest.raises(DataError, match=r"text.jsonl line 1: cannot be read as line with an embedding"):
        from_json_lines({"text": tmp_path / "text.jsonl", "image": tmp_path / "image.jsonl"})


def test_what_is_read_can_be_trained_on(tmp_path):
    rng = np.random.default_rng(1)
    hidden = rng.normal(size=(80, 3))
    for name, dim in (("a", 6), ("b", 5)):
        rows = hidden @ rng.normal(size=(3, dim))
        lines = [json.dumps({"id": str(n), "embedding": row.tolist()}) for n, row in enumerate(rows)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    data = from_json_lines({name: tmp_path / f"{name}.jsonl" for name in "ab"})
    rows = {name: np.concatenate([data[place][name].clips[0] for place in range(80)]) for name in "ab"}
    assert JointEmbedding(recipe="closed-form", verbose=False).fit(rows).score(rows) > 0.9
