"""The paper's text features on a tiny BERT: marks, limits, layers, context."""

import json

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

transformers = pytest.importorskip("transformers", reason="needs crossclr[experts]")

from crossclr.cli import app  # noqa: E402
from crossclr.extract import ExpertError, load  # noqa: E402
from crossclr.extract.tokens import fit_paragraph, mark_paragraph  # noqa: E402

PARAGRAPH = ["Cut the  onion.", "Peel it. Wait...", "Stir"]


@pytest.fixture(scope="module")
def expert(models):
    return load(f"bert-paper:{models['bert']}", batch_size=2)


@pytest.mark.parametrize(
    ("sentences", "marked"),
    [
        (["a b."], ["[CLS] a b [SEP]"]),
        (["a b"], ["[CLS] a b [SEP]"]),
        (["wait..."], ["[CLS] wait... [SEP]"]),  # an ellipsis stays
        (["a. b."], ["[CLS] a [SEP] b [SEP]"]),  # a full stop inside is a mark
        (["a.b"], ["[CLS] a.b [SEP]"]),  # but not one inside a word
        (["wait... then"], ["[CLS] wait.. [SEP] then [SEP]"]),
        (["  a \n b .  "], ["[CLS] a b [SEP]"]),
        (["A.", "B.", "C."], ["[CLS] A [SEP]", "B [SEP]", "C [SEP]"]),  # [CLS] once
        ([".", ""], ["[CLS] [SEP]", "[SEP]"]),
    ],
)
def test_marks(sentences, marked):
    assert mark_paragraph(sentences) == marked


def test_tokens_of_a_paragraph(expert):
    (part,) = expert.tokenise(PARAGRAPH)
    words = [expert._tokenizer.convert_ids_to_tokens(sentence) for sentence in part]
    assert words == [
        ["[CLS]", "cut", "the", "onion", "[SEP]"],
        ["peel", "it", "[SEP]", "wait", ".", ".", ".", "[SEP]"],
        ["stir", "[SEP]"],
    ]


def test_the_command_writes_them_for_a_meta_file(expert, models, tmp_path):
    meta = {"v": {"split": "train", "segments": [{"text": text} for text in PARAGRAPH]}}
    (tmp_path / "meta_all.json").write_text(json.dumps(meta))
    words = ["extract", str(tmp_path / "meta_all.json"), "--text-only", "--out", str(tmp_path / "bert.h5"), "--experts"]
    done = CliRunner().invoke(app, [*words, f"bert-paper:{models['bert']}"])
    assert done.exit_code == 0, done.output
    with h5py.File(tmp_path / "bert.h5") as file:
        np.testing.assert_allclose(file["v"][:], expert.paragraphs([PARAGRAPH])[0].rows, atol=2e-3)
    assert json.loads((tmp_path / "bert_sentence_splits.json").read_text()) == {"v": [5, 8, 2]}
    assert "no expert for text" in str(CliRunner().invoke(app, [*words, "appearance"]).exception)


def test_rows_are_two_layers_of_one_pass_over_the_whole_paragraph(expert, models):
    network = transformers.BertModel.from_pretrained(models["bert"]).eval()
    other = [["add salt"], ["cut the onion and peel it", "stir"]]
    found = expert.paragraphs([PARAGRAPH, *other])
    for sentences, paragraph in zip([PARAGRAPH, *other], found, strict=True):
        rows, counts = paragraph.rows, paragraph.counts
        (part,) = expert.tokenise(sentences)
        ids = torch.tensor([[token for sentence in part for token in sentence]])
        with torch.inference_mode():
            states = network(ids, output_hidden_states=True).hidden_states
        expected = torch.cat([states[-2], states[-1]], dim=2)[0].numpy()
        assert counts == [len(sentence) for sentence in part]
        assert rows.shape == (sum(counts), 32) == (ids.shape[1], expert.dim)
        np.testing.assert_allclose(rows, expected, atol=1e-5)  # padding in the batch changes nothing
    assert np.abs(found[0].rows[0] - expert(["Cut the onion"])[0][0]).max() > 1e-4  # a token sees the other sentences


def test_a_paragraph_of_more_than_512_tokens_is_cut_from_its_end(expert):
    sentences = ["cut the onion " * 100, "peel it", "add salt " * 110, "stir the pan and wait and add a salt"]
    assert expert.max_tokens == 512
    (part,) = expert.tokenise(sentences)  # of 302 + 3 + 221 + 10 tokens
    assert [len(sentence) for sentence in part] == [302, 3, 202, 5]
    separator = expert._tokenizer.sep_token_id
    assert all(sentence[-1] == separator for sentence in part)
    assert sum(map(len, part)) == 512
    found = expert.paragraphs([sentences])[0]
    rows, counts = found.rows, found.counts
    assert (rows.shape, counts) == ((512, 32), [302, 3, 202, 5])


def test_more_sentences_than_fit_go_in_parts(expert):
    sentences = ["cut the onion and peel it"] * 120
    parts = expert.tokenise(sentences)
    assert sum(len(part) for part in parts) == 120
    assert all(sum(map(len, part)) <= 512 for part in parts)
    assert sum(sentence.count(expert._tokenizer.cls_token_id) for part in parts for sentence in part) == 1
    found = expert.paragraphs([sentences])[0]
    rows, counts = found.rows, found.counts
    assert (len(rows), len(counts), set(counts)) == (sum(counts), 120, {5})


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(20, 80))
def test_cutting_keeps_marks_and_five_tokens(lengths, most):
    sentences = [[*range(length - 1), -1] for length in lengths]
    parts = fit_paragraph(sentences, most)
    cut = [sentence for part in parts for sentence in part]
    assert len(cut) == len(sentences)
    for before, after in zip(sentences, cut, strict=True):
        assert after[-1] == -1
        assert len(after) >= min(5, len(before))
        assert after[:-1] == before[: len(after) - 1]
    assert all(sum(map(len, part)) <= most for part in parts)
    if sum(lengths) <= most:
        assert cut == sentences
    elif len(parts) == 1:
        assert sum(map(len, cut)) == most  # no more is cut than must be
        changed = [number for number, (b, a) in enumerate(zip(sentences, cut, strict=True)) if len(a) < len(b)]
        behind = range(changed[0] + 1, len(cut))
        assert all(len(cut[number]) == min(5, lengths[number]) for number in behind)


def test_layers_are_checked(models):
    assert load(f"bert-paper:{models['bert']}", layers="-1").dim == 16
    with pytest.raises(ExpertError, match="layers"):
        load(f"bert-paper:{models['bert']}", layers="last")
    with pytest.raises(ExpertError, match="cannot be loaded"):
        load(f"bert-paper:{models['vit']}")


def test_sentences_of_any_encoder(models):
    expert = load(f"text:{models['bert']}", layers="-2,-1")
    rows = expert(["cut the onion", "stir"])
    assert [part.shape for part in rows] == [(5, 32), (3, 32)]
    (joined,) = expert.paragraphs([["cut the onion", "stir", "stir"]])
    assert joined.counts == [5, 3, 3]
    np.testing.assert_array_equal(joined.rows, np.concatenate([rows[0], rows[1], rows[1]]))
