"""Moments against NumPy on the rows that have both modalities."""

import numpy as np
import pytest
import torch

from crossclr.models.pair_moments import Moments

DIMS = {"video": 4, "text": 3, "sound": 2}


def samples(count=50, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rows = {name: torch.randn(count, dim, generator=generator, dtype=torch.float64) + 10 for name, dim in DIMS.items()}
    present = {name: torch.rand(count, generator=generator) < 0.7 for name in DIMS}
    for name in DIMS:
        rows[name][~present[name]] = torch.nan
    return rows, present


def gather(rows, present, blocks):
    moments = Moments(DIMS)
    for places in torch.arange(len(rows["video"])).split(blocks):
        moments.add(
            {name: values[places] for name, values in rows.items()},
            {name: mask[places] for name, mask in present.items()},
        )
    return moments


@pytest.mark.parametrize("block", [1, 7, 50])
def test_only_rows_that_have_both_count(block):
    rows, present = samples()
    moments = gather(rows, present, block)
    for x in DIMS:
        own = rows[x][present[x]].numpy()
        np.testing.assert_allclose(moments.mean(x), own.mean(0), rtol=1e-12)
        for y in DIMS:
            both = present[x] & present[y]
            joined = np.concatenate([rows[x][both], rows[y][both]], axis=1)
            expected = np.cov(joined.T, bias=True)[: DIMS[x], DIMS[x] :]
            assert moments.count(x, y) == int(both.sum())
            np.testing.assert_allclose(moments.covariance(x, y), expected, atol=1e-12)


def test_parts_merge_to_the_whole():
    rows, present = samples()
    whole = gather(rows, present, 50)
    cut = {"left": slice(0, 18), "right": slice(18, 50)}
    parts = [
        gather({n: v[here] for n, v in rows.items()}, {n: m[here] for n, m in present.items()}, 5)
        for here in cut.values()
    ]
    merged = Moments.merged([*parts, Moments(DIMS)])
    torch.testing.assert_close(merged.covariance("text", "sound"), whole.covariance("text", "sound"))
    torch.testing.assert_close(merged.mean("video"), whole.mean("video"))
    assert merged.count("video", "text") == whole.count("video", "text")


def test_digits_survive_far_from_zero():
    rows, present = samples()
    far = {name: values + 1e6 for name, values in rows.items()}
    expected = gather(rows, present, 9).covariance("video", "text")
    torch.testing.assert_close(gather(far, present, 9).covariance("video", "text"), expected, atol=1e-6, rtol=0)


def test_errors_name_the_modality():
    rows, present = samples()
    moments = Moments(DIMS)
    with pytest.raises(ValueError, match=r"modality 'video', channel 0"):
        moments.add(rows)
    with pytest.raises(ValueError, match=r"expected paired rows"):
        moments.add({name: values[:, :1] for name, values in rows.items()}, present)
    with pytest.raises(ValueError, match=r"expected paired rows"):
        moments.add({**rows, "text": rows["text"][:-1]}, present)
    with pytest.raises(ValueError, match=r"present names \['smell'\]"):
        moments.add(rows, {**present, "smell": present["text"]})
    with pytest.raises(ValueError, match=r"at least two modalities"):
        Moments({"video": 3})
    with pytest.raises(ValueError, match=r"cannot merge"):
        Moments.merged([moments, Moments({"video": 4, "text": 3})])
