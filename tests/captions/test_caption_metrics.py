"""Metrics against the fixture of MART's own scripts, and against loops written apart."""

import math
from collections import Counter

import pytest

from crossclr.captions import caption_metrics as metrics
from crossclr.captions.caption_metrics import METRICS, Caption, clean, mean_repetition, repetition, score_captions
from crossclr.captions.meteor import MeteorError

CASES = ["perturbed_200", "repetitive_30", "identical_20_plus_empty"]


def predictions_of(case):
    return {
        key: [Caption(text, *time) for text, time in zip(entry["sentences"], entry["timestamps"], strict=True)]
        for key, entry in case["predictions"].items()
    }


def references_of(case):
    return {key: [text] for key, text in case["references"].items()}


@pytest.mark.parametrize("name", CASES)
def test_every_number_of_the_fixture(metric_cases, name, running_meteor):
    case = metric_cases[name]
    found = score_captions(predictions_of(case), references_of(case), meteor=running_meteor)
    assert tuple(found.metrics) == METRICS
    assert set(case["expected"]) == set(METRICS)
    for metric, expected in case["expected"].items():
        assert found.metrics[metric] == pytest.approx(expected, abs=1e-3 if metric == "METEOR" else 1e-4), metric
    assert found.videos == len(case["references"])
    assert found.predicted == len(case["predictions"])


def test_the_order_of_sentences_in_the_file_does_not_matter(metric_cases):
    case = metric_cases["perturbed_200"]
    turned = {
        key: captions[::-1] if len({caption.start for caption in captions}) == len(captions) else captions
        for key, captions in predictions_of(case).items()
    }
    assert sum(turned[key] != captions for key, captions in predictions_of(case).items()) > 100
    found = score_captions(turned, references_of(case), meteor=False)
    assert found.metrics["CIDEr"] == pytest.approx(case["expected"]["CIDEr"], abs=1e-4)


def test_missing_predictions_are_named(metric_cases):
    case = metric_cases["identical_20_plus_empty"]
    found = score_captions({**predictions_of(case), "other": []}, references_of(case), meteor=False)
    assert any("2 videos" in note and "no prediction" in note for note in found.notes)
    assert any("1 predicted" in note for note in found.notes)


def test_without_meteor_the_others_are_there(monkeypatch):
    def broken(*_, **__):
        raise MeteorError("no Java here")

    monkeypatch.setattr(metrics, "Meteor", broken)
    found = score_captions({"a": [Caption("a b c d")], "b": [Caption("x")]}, {"a": ["a b c d"], "b": ["y"]})
    assert found.metrics["METEOR"] is None
    assert all(value is not None for name, value in found.metrics.items() if name != "METEOR")
    assert found.notes == ("no METEOR: no Java here",)
    assert "no Java here" in found.to_dict()["notes"][0]


def test_cider_of_a_small_corpus_by_a_loop():
    written = {"a": "a man cuts an onion", "b": "a dog runs away fast", "c": "the cat sleeps"}
    wanted = {
        "a": ["a man cuts a big onion", "somebody cuts an onion"],
        "b": ["a dog runs", "the dog runs away"],
        "c": ["a cat sleeps on a bed", "the cat is asleep"],
    }

    def grams(text, n):
        words = text.split()
        return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))

    documents = len(wanted)
    total = 0.0
    for key, text in written.items():
        for reference in wanted[key]:
            penalty = math.exp(-((len(text.split()) - len(reference.split())) ** 2) / 72)
            for n in range(1, 5):

                def weigh(counts, n=n):
                    seen = {g: sum(any(g in grams(r, n) for r in refs) for refs in wanted.values()) for g in counts}
                    return {g: c * (math.log(documents) - math.log(max(1, seen[g]))) for g, c in counts.items()}

                h, r = weigh(grams(text, n)), weigh(grams(reference, n))
                norm = math.sqrt(sum(x * x for x in h.values()) * sum(x * x for x in r.values()))
                if norm:
                    total += penalty * sum(min(x, r.get(g, 0)) * r.get(g, 0) for g, x in h.items()) / norm / 4 / 2
    found = score_captions({k: [Caption(t)] for k, t in written.items()}, wanted, meteor=False)
    assert found.metrics["CIDEr"] == pytest.approx(100 * 10 * total / documents, rel=1e-9)
    assert set(found.each) == set(written)


def test_cleaning_takes_only_ascii_letters():
    assert clean("Crème brûlée: 2-3 EGGS") == "cr me br l e eggs"


@pytest.mark.parametrize(("references", "message"), [({}, "no references"), ({"v": ["12 3"]}, "'v' have no word")])
def test_unusable_references_are_an_error(references, message):
    with pytest.raises(ValueError, match=message):
        score_captions({}, references, meteor=False)


def test_repetition_by_hand():
    # unigrams: the 3, pot 2, stir 1, cover 1 -> (2 + 1) repeated of 7
    assert repetition(["stir the pot", "cover the the pot."], 1) == pytest.approx(300 / 7)


def test_ngrams_do_not_cross_sentences():
    assert repetition(["a b", "a b"], 3) == 0
    assert repetition(["a b", "a b"], 2) == 50


def test_repetition_with_commas_full_stop_and_case():
    assert repetition(["Salt, salt."], 1) == 0
    assert repetition(["salt, salt."], 1) == 50
    assert repetition(["salt . salt."], 1) == pytest.approx(100 / 3)  # only the last full stop goes


def test_nothing_is_no_repetition():
    assert repetition([], 4) == 0
    assert mean_repetition([], 4) == 0
    assert mean_repetition([[], ["a a"]], 1) == 25
