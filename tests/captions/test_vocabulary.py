import json

import numpy as np
import pytest
import torch

from crossclr.captions.vocabulary import SPECIALS, UNK, Vocabulary, read_word_vectors


def test_youcook2_has_992_entries_the_same_as_mart(youcook2):
    database = json.loads((youcook2 / "youcookii_annotations_trainval.json").read_text())["database"]
    sentences = [a["sentence"] for v in database.values() if v["subset"] == "training" for a in v["annotations"]]
    vocabulary = Vocabulary.build(sentences, min_count=3)
    assert len(sentences) == 10_337
    assert len(vocabulary) == 992
    mart = Vocabulary.load(youcook2 / "mart_word2idx.json")
    assert set(vocabulary.words) == set(mart.words)
    assert mart.words[:7] == SPECIALS


def test_words_must_stand_more_often_than_the_limit_and_are_ordered_by_count():
    vocabulary = Vocabulary.build(["b a b", "A b c", "a c d", "a"], min_count=1)
    assert vocabulary.words[7:] == ("a", "b", "c")
    assert vocabulary.encode(["a", "d"]) == [7, UNK]


def test_saved_vocabularies_come_back(tmp_path):
    vocabulary = Vocabulary([*SPECIALS, "crème", "'s"])
    (tmp_path / "v.json").write_text(vocabulary.to_json(), encoding="utf-8")
    assert Vocabulary.load(tmp_path / "v.json").words == vocabulary.words


@pytest.mark.parametrize("content", ["[1]", '{"a": 0}', '{"[PAD]": 0, "[CLS]": 2}', "{"])
def test_a_file_that_is_no_vocabulary(tmp_path, content):
    (tmp_path / "v.json").write_text(content)
    with pytest.raises(ValueError, match=r"v\.json: (must hold an object|cannot be read as)"):
        Vocabulary.load(tmp_path / "v.json")


def test_a_word_twice_is_an_error():
    with pytest.raises(ValueError, match="twice"):
        Vocabulary([*SPECIALS, "a", "a"])


def test_word_vectors_from_both_kinds_of_files(tmp_path):
    vocabulary = Vocabulary([*SPECIALS, "cut", "leek", "rare"])
    (tmp_path / "glove.txt").write_text("the 9 9\nleek 3 4\ncut 1 2\n")
    np.savez(tmp_path / "glove.npz", words=np.array(["leek", "the", "cut"]), vec=np.array([[3, 4], [9, 9], [1, 2.0]]))
    for name in ("glove.txt", "glove.npz"):
        generator = torch.Generator().manual_seed(0)
        vectors, found = read_word_vectors(tmp_path / name, vocabulary, 2, generator)
        assert found == 2
        assert vectors[7:9].tolist() == [[1, 2], [3, 4]]
        assert float(vectors[9].abs().sum()) > 0


def test_missing_words_have_normal_vectors(tmp_path):
    vocabulary = Vocabulary([*SPECIALS, *(f"w{i}" for i in range(3000))])
    (tmp_path / "glove.txt").write_text("w0 1 2 3 4\n")
    vectors, _ = read_word_vectors(tmp_path / "glove.txt", vocabulary, 4, torch.Generator().manual_seed(0))
    assert float(vectors[8:].std()) == pytest.approx(0.4, rel=0.03)


def test_vectors_of_another_length_or_none_at_all(tmp_path):
    (tmp_path / "glove.txt").write_text("a 1 2\n")
    with pytest.raises(ValueError, match="line 1"):
        read_word_vectors(tmp_path / "glove.txt", Vocabulary([*SPECIALS, "a"]), 3)
    with pytest.raises(ValueError, match="none of the"):
        read_word_vectors(tmp_path / "glove.txt", Vocabulary([*SPECIALS, "b"]), 2)
    np.savez(tmp_path / "x.npz", words=np.array(["a"]))
    with pytest.raises(ValueError, match="words and vec"):
        read_word_vectors(tmp_path / "x.npz", Vocabulary([*SPECIALS, "a"]), 2)


def test_marts_own_vectors_fit_its_words(youcook2):
    mart = Vocabulary.load(youcook2 / "mart_word2idx.json")
    vectors, found = read_word_vectors(youcook2 / "yc2_vocab_glove300.npz", mart, 300)
    assert vectors.shape == (992, 300)
    assert found == 992
