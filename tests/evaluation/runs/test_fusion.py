"""⊕: the dot product of joined rows is the sum of the runs' cosines."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cosine_similarity

from crossclr.evaluation import fuse


@pytest.mark.parametrize("part", ["rows", "videos", "context"])
def test_dot_product_is_the_sum_of_cosines(make_embeddings, part):
    runs = [make_embeddings(seed=seed, dim=dim) for seed, dim in ((0, 6), (1, 3), (2, 10))]
    joined = fuse(runs)
    a, b = (getattr(joined[name], part) for name in ("video", "text"))
    expected = sum(
        cosine_similarity(getattr(run["video"], part).unsqueeze(1), getattr(run["text"], part).unsqueeze(0), dim=2)
        for run in runs
    )
    torch.testing.assert_close(a @ b.T, expected)
    assert joined.clip_keys == runs[0].clip_keys
    assert joined["text"].texts == runs[0]["text"].texts


def test_one_level_stays_one_level(make_embeddings):
    joined = fuse([make_embeddings(two_level=False), make_embeddings(two_level=False, seed=1)])
    assert joined["video"].videos is None
    assert joined["text"].context is None
    assert joined["video"].rows.shape == (10, 12)


def test_faults_are_named(make_embeddings):
    run = make_embeddings()
    other = replace(run, clip_keys=(*run.clip_keys[:4], "other", *run.clip_keys[5:]))
    with pytest.raises(ValueError, match=r"run 1 and run 3 .* clips: row 4 is 'c/0' and 'other'"):
        fuse([run, run, other])
    with pytest.raises(ValueError, match="clips: 10 and 3"):
        fuse([run, replace(run, clip_keys=("a", "b", "c"))])
    with pytest.raises(ValueError, match="videos"):
        fuse([run, replace(run, video_keys=("a", "b", "c", "d"))])
    turned = replace(run["text"], clip_of=run["text"].clip_of.flip(0))
    with pytest.raises(ValueError, match="different clips"):
        fuse([run, replace(run, modalities={**run.modalities, "text": turned})])
    with pytest.raises(ValueError, match="run 2 has no 'videos'"):
        fuse([run, make_embeddings(two_level=False)])
    with pytest.raises(ValueError, match="same number of modalities"):
        fuse([run, run.only(["text"])])
    with pytest.raises(ValueError, match="at least one"):
        fuse([])
