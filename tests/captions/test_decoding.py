"""Writing with cached keys against computing everything again for each word."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossclr.captions.caption_config import CaptionModelConfig, DecodingConfig
from crossclr.captions.caption_set import CaptionSet
from crossclr.captions.captioner import Captioner
from crossclr.captions.decoding import beam_search, greedy, write_captions
from crossclr.captions.vocabulary import BOS, EOS, PAD, SPECIALS, UNK, Vocabulary

FEATURES, WORDS = 4, 19
CONFIG = CaptionModelConfig(dim=16, heads=4, word_dim=6, memory_cells=2, max_rows=3, max_words=20)


def make_model(seed=0, config=CONFIG, words=WORDS, recurrent=True):
    torch.manual_seed(seed)
    model = Captioner(config, FEATURES, words, recurrent).eval()
    with torch.no_grad():
        for weight in model.parameters():  # lively: what is written depends on what is seen and on what was written
            scale = 0.1 if weight.ndim == 1 else 2.0 / math.sqrt(weight.shape[1])
            weight.add_(torch.randn_like(weight) * scale)
        model.to_words.bias[EOS] += 1.0
    return model


def clips(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, FEATURES, generator=generator), torch.randint(1, 4, (count,), generator=generator)


def recomputed(model, features, rows, memory=None):
    """Greedy as MART does it: the whole sequence again for each word; logits of all steps, words, and memory."""
    words = torch.full((len(rows), model.text_length + 1), PAD)
    words[:, 0] = BOS
    steps = []
    for number in range(model.text_length):
        lengths = torch.full((len(rows),), number + 1)
        out, _ = model.after(features, rows, words[:, : number + 1], lengths, memory)
        logits = model.logits(out[:, number])
        logits[:, UNK] = -1e10
        steps.append(logits)
        words[:, number + 1] = logits.argmax(1)
    inputs = words[:, :-1]
    lengths = torch.tensor([row.index(EOS) + 1 if EOS in row else len(row) for row in inputs.tolist()])
    return torch.stack(steps, 1), words[:, 1:], model.after(features, rows, inputs, lengths, memory)[1]


def up_to_end(words):
    return [row[: row.index(EOS)] if EOS in row else row for row in words.tolist()]


def check_against_recomputation(model, features, rows, memory, tolerance):
    logits, words, after = recomputed(model, features, rows, memory)
    writing = model.begin(features, rows, memory)
    fed = torch.cat([torch.full((len(rows), 1), BOS), words], dim=1)
    for number in range(model.text_length):
        step = model.write(writing, fed[:, number])
        step[:, UNK] = -1e10
        torch.testing.assert_close(step, logits[:, number], rtol=tolerance, atol=tolerance)
    found = greedy(model, features, rows, memory)
    assert up_to_end(found.words) == up_to_end(words)
    for cells, expected in zip(found.memory, after, strict=True):
        torch.testing.assert_close(cells, expected, rtol=tolerance, atol=tolerance)


@torch.no_grad()
@pytest.mark.parametrize("seed", range(4))
def test_cached_keys_equal_recomputation(seed):
    model = make_model(seed).double()
    features, rows = clips(5, seed)
    for memory in (None, [torch.randn(5, 2, 16).double() for _ in range(2)]):
        check_against_recomputation(model, features.double(), rows, memory, 1e-10)


@torch.no_grad()
def test_cached_keys_equal_recomputation_in_float32_at_the_papers_width():
    torch.manual_seed(0)
    model = Captioner(CaptionModelConfig(), 384, 100).eval()
    memory = [torch.randn(3, 1, 768) for _ in range(2)]
    check_against_recomputation(model, torch.randn(3, 1, 384), torch.ones(3, dtype=torch.long), memory, 1e-5)


@torch.no_grad()
def test_there_is_no_room_behind_the_last_position():
    model = make_model()
    writing = model.begin(*clips(1))
    for _ in range(22):
        model.write(writing, torch.tensor([7]))
    with pytest.raises(ValueError, match="22 positions"):
        model.write(writing, torch.tensor([7]))


@torch.no_grad()
@pytest.mark.parametrize("recurrent", [True, False])
def test_a_beam_of_one_is_greedy(recurrent):
    model = make_model(5, recurrent=recurrent)
    features, rows = clips(8)
    ours, theirs = beam_search(model, features, rows, config=DecodingConfig(beam=1)), greedy(model, features, rows)
    assert up_to_end(ours.words) == up_to_end(theirs.words)
    if recurrent:
        for a, b in zip(ours.memory, theirs.memory, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    else:
        assert ours.memory is None
        assert theirs.memory is None


@torch.no_grad()
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_a_beam_that_is_wide_enough_finds_the_best_of_all_sentences(penalty):
    config = CaptionModelConfig(dim=8, heads=2, word_dim=4, max_rows=3, max_words=1)  # room for three words
    model = make_model(1, config, words=10)
    model.to_words.bias[:5] = -1e9  # the marks are no words
    features, rows = clips(3)
    for number in range(3):
        clip = features[number : number + 1], rows[number : number + 1]
        best, sentence = -math.inf, None
        for length in range(4):
            for words in product([7, 8, 9], repeat=length):
                fed, value = model.begin(*clip), 0.0
                for position, word in enumerate([BOS, *words][:3]):
                    logits = model.write(fed, torch.tensor([word]))
                    logits[:, UNK] = -1e10
                    following = [*words, EOS][position]
                    value += float(logits.log_softmax(1)[0, following])
                value /= min(length + 1, 3) ** penalty
                if value > best:
                    best, sentence = value, list(words)
        found = beam_search(model, *clip, config=DecodingConfig(beam=40, length_penalty=penalty))
        assert up_to_end(found.words) == [sentence]


@torch.no_grad()
def test_a_beam_is_never_less_likely_than_greedy_when_it_keeps_everything():
    model = make_model(3)
    features, rows = clips(6)

    def likelihood(words):
        values = []
        for number, sentence in enumerate(up_to_end(words)):
            fed = model.begin(features[number : number + 1], rows[number : number + 1])
            total = 0.0
            for word, following in zip([BOS, *sentence], [*sentence, EOS], strict=True):
                if fed.length == model.text_length:
                    break
                logits = model.write(fed, torch.tensor([word]))
                logits[:, UNK] = -1e10
                total += float(logits.log_softmax(1)[0, following])
            values.append(total)
        return torch.tensor(values)

    wide = likelihood(beam_search(model, features, rows, config=DecodingConfig(beam=12)).words)
    assert bool((wide >= likelihood(greedy(model, features, rows).words) - 1e-4).all())


def ngrams(words, n):
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


@torch.no_grad()
@settings(max_examples=12)
@given(seed=st.integers(0, 50), n=st.integers(1, 4), beam=st.integers(1, 3), least=st.integers(0, 8))
def test_no_ngram_stands_twice_and_no_sentence_is_too_short(seed, n, beam, least):
    model = make_model(seed)
    features, rows = clips(3, seed)

    def write(*clip, **rules):
        decode = greedy if beam == 1 else beam_search
        return decode(*clip, config=DecodingConfig(beam=beam, **rules))

    found = write(model, features, rows, block_ngram=n, min_words=least)
    for sentence in up_to_end(found.words):
        assert len(sentence) >= min(least, model.text_length)
        assert UNK not in sentence
        if n > 1:  # with n = 1 and few words a sentence may run out of new ones
            assert len(set(ngrams(sentence, n))) == len(ngrams(sentence, n))


def make_set(counts, seed=0):
    features, rows = clips(sum(counts), seed)
    flat = torch.cat([features[i, : rows[i]] for i in range(len(rows))])
    times = tuple((float(i), i + 0.5) for i in range(sum(counts)))
    keys = tuple(f"v{i}" for i in range(len(counts)))
    return CaptionSet(keys, tuple(counts), flat, rows, tuple(("a b",) for _ in rows), times)


@pytest.mark.parametrize("beam", [1, 2])
def test_paragraphs_do_not_depend_on_the_batch(beam):
    model = make_model(2)
    vocabulary = Vocabulary([*SPECIALS, *(f"w{i}" for i in range(WORDS - 7))])
    data = make_set([1, 3, 2, 3])
    seen = []
    whole = write_captions(model, data, vocabulary, DecodingConfig(beam=beam), lambda *progress: seen.append(progress))
    assert seen == [(4, 4)]
    assert list(whole) == ["v0", "v1", "v2", "v3"]
    assert [len(captions) for captions in whole.values()] == [1, 3, 2, 3]
    assert whole["v1"][0].start == 1.0
    for size in (1, 2):
        assert write_captions(model, data, vocabulary, DecodingConfig(beam=beam, batch_size=size)) == whole


def test_the_second_sentence_depends_on_the_first():
    vocabulary = Vocabulary([*SPECIALS, *(f"w{i}" for i in range(WORDS - 7))])
    data = make_set([2, 2])
    parts = list(torch.split(data.features, data.rows.tolist()))
    changed = [-parts[0], parts[1], parts[2], parts[3]]  # another first clip
    other = CaptionSet(data.keys, data.counts, torch.cat(changed), data.rows, data.texts, data.times)
    differs = []
    for seed in range(6):
        model = make_model(seed)
        before, after = write_captions(model, data, vocabulary), write_captions(model, other, vocabulary)
        assert before["v1"] == after["v1"]
        differs.append(before["v0"][1].text != after["v0"][1].text)
        alone = make_model(seed, recurrent=False)
        assert write_captions(alone, data, vocabulary)["v0"][1] == write_captions(alone, other, vocabulary)["v0"][1]
    assert sum(differs) >= 2
