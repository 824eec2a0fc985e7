import pytest

from crossclr.captions.scoring.repetition import mean_repetition, repetition


def test_counts_by_hand():
    # unigrams: the 3, pot 2, stir 1, cover 1 -> (2 + 1) repeated of 7
    assert repetition(["stir the pot", "cover the the pot."], 1) == pytest.approx(300 / 7)


def test_ngrams_do_not_cross_sentences():
    assert repetition(["a b", "a b"], 3) == 0
    assert repetition(["a b", "a b"], 2) == 50


def test_commas_full_stop_and_case():
    assert repetition(["Salt, salt."], 1) == 0
    assert repetition(["salt, salt."], 1) == 50
    assert repetition(["salt . salt."], 1) == pytest.approx(100 / 3)  # only the last full stop goes


def test_nothing_is_no_repetition():
    assert repetition([], 4) == 0
    assert mean_repetition([], 4) == 0
    assert mean_repetition([[], ["a a"]], 1) == 25
