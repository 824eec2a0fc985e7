"""Thumbs refine a query: simulated on MSVD, where shared words say which results a person would like."""

import re
from collections import Counter

import numpy as np

from crossclr.search.query import combine, with_sentences

WORDS = re.compile(r"[a-z]+")
COMMON = frozenset(
    WORDS.findall(
        "a an the is are was be being on in of and to with at by for from up into his her their it its he she they man "
        "woman person people men women girl boy guy someone two some one out over down as that there very while"
    )
)
JUDGED = 5


def main_words(captions):
    """Words that at least a fifth of the captions of a clip use."""
    uses = Counter(word for text in captions for word in set(WORDS.findall(text.lower())) - COMMON)
    return {word for word, count in uses.items() if count >= max(2, len(captions) / 5)}


def recall_of_the_rest(clips, queries, owners, words, refine):
    """R@10 of the clips that a person would like, among those that were not judged, without the query's own clip."""
    related = np.array([[bool(own & other) for other in words] for own in words])
    found = []
    for own, query in zip(owners, queries, strict=True):
        order = [one for one in np.argsort(-(clips @ query), kind="stable").tolist() if one != own]
        judged, rest = order[:JUDGED], order[JUDGED:]
        liked = [one for one in judged if related[own, one]]
        scores = clips @ refine(query, liked, [one for one in judged if one not in liked])
        best = sorted(rest, key=lambda one: -scores[one])[:10]
        if wanted := related[own, rest].sum():
            found.append(related[own, best].sum() / min(10, wanted))
    return np.mean(found)


def test_thumbs_find_more(msvd):
    test = np.flatnonzero(msvd.splits == "test")
    clips, texts = msvd.videos[test], msvd.texts[test]
    words = [main_words(msvd.captions[place]) for place in test]
    both = np.stack([with_sentences(clips[n : n + 1], texts[n])[0] for n in range(len(test))])
    world = clips, texts[:, 0], range(len(test)), words

    def thumbs(query, liked, others):
        return combine(text=query[None], more=both[liked], less=both[others])[0]

    before, after = recall_of_the_rest(*world, lambda query, *_: query), recall_of_the_rest(*world, thumbs)
    assert after >= 1.15 * before
