"""Nonsense is recognised, and what people type is not taken for it."""

import random

import pytest

from crossclr.features.sources.emoji import load_emoji
from crossclr.search.language import Language

ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
SCRIPTS = ((0x430, 0x44F), (0x3B1, 0x3C9), (0x5D0, 0x5EA), (0x627, 0x64A), (0x4E00, 0x9FA5), (0x905, 0x939))


def nonsense(count=200, seed=7):
    """Mashed keys, letters at random, consonants, other scripts, signs, and letters again and again."""
    rng = random.Random(seed)

    def words(letters, most=4):
        return " ".join(
            "".join(rng.choice(letters()) for _ in range(rng.randint(3, 8))) for _ in range(rng.randint(1, most))
        )

    def foreign():
        script = rng.choice(SCRIPTS)
        return words(lambda: [chr(rng.randint(*script))])

    kinds = (
        lambda: words(lambda: rng.choice(ROWS)),
        lambda: words(lambda: "abcdefghijklmnopqrstuvwxyz"),
        lambda: words(lambda: "bcdfghjklmnpqrstvwxz"),
        foreign,
        lambda: "".join(rng.choice("!?#$%&*+-/=0123456789 ._") for _ in range(rng.randint(3, 12))),
        lambda: " ".join(rng.choice(("x", "qwertz", "zz", "kk", "xx", "jq")) for _ in range(rng.randint(2, 5))),
    )
    return [kinds[number % len(kinds)]() for number in range(count)]


@pytest.fixture(scope="module")
def language():
    return Language.learn([emoji.text for emoji in load_emoji() if emoji.split != "test"])


def test_nonsense_is_recognised_and_real_queries_are_not_lost(language):
    found = sum(map(language.is_nonsense, nonsense()))
    assert found >= 0.95 * 200
    real = [text for emoji in load_emoji() if emoji.split == "test" for text in (emoji.text, emoji.name)]
    assert sum(map(language.is_nonsense, real)) <= 0.02 * len(real)


def test_scripts_of_the_collection_are_known():
    russian = Language.learn(["красное яблоко", "кошка спит"])
    assert not russian.is_nonsense("яблоко и кошка")
    assert russian.is_nonsense("שלום")
    assert not Language.learn(["ein schöner Löwe", "die Tür"]).is_nonsense("schöne Löwen")


def test_it_is_stored_with_the_index(language, tmp_path):
    assert Language.open(tmp_path) is None
    language.save(tmp_path)
    again = Language.open(tmp_path)
    for text in ("red fruit", "x x qwertz", "...", "яблоко"):
        assert again.usual(text) == language.usual(text)
        assert again.is_nonsense(text) == language.is_nonsense(text)
