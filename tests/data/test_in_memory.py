"""Data kept in memory gives the same batches as data on disk, pooled where it is asked to."""

import numpy as np
import pytest
import torch

from crossclr.data import DataError, Dataset, EmojiConfig, batches, open_data
from tests.support.pairs import pair_data, read


def captioned(clips=13, seed=0):
    """Clips of several rows, each with one to four sentences of several tokens."""
    rng = np.random.default_rng(seed)
    a = [rng.normal(size=(rng.integers(1, 6), 5)).astype(np.float32) for _ in range(clips)]
    owners = [str(clip) for clip in range(clips) for _ in range(int(rng.integers(1, 5)))]
    b = [rng.normal(size=(rng.integers(1, 4), 3)).astype(np.float32) for _ in owners]
    texts = [f"sentence {number}" for number in range(len(owners))]
    splits = {"train": [str(c) for c in range(clips - 3)], "val": [str(c) for c in range(clips - 3, clips)]}
    return pair_data(a, b, owners=owners, texts=texts, splits=splits, groups={str(c): f"g{c}" for c in range(clips)})


def assert_equal_batches(got, wanted):
    assert got.keys == wanted.keys
    for name in ("clip_counts", "ids", "video_ids"):
        assert torch.equal(getattr(got, name), getattr(wanted, name))
    for name in ("present", "pooled", "pooled_context"):
        x, y = getattr(got, name), getattr(wanted, name)
        assert list(x) == list(y)
        for modality in x:
            torch.testing.assert_close(x[modality], y[modality], rtol=1e-5, atol=1e-6)
    for modality, wanted_rows in wanted.inputs.items():
        rows = got.inputs[modality]
        for x, y in ((rows.clips, wanted_rows.clips), (rows.context, wanted_rows.context)):
            assert (x is None) == (y is None)
            if x is not None:
                assert torch.equal(x.values, y.values)
                assert torch.equal(x.lengths, y.lengths)


@pytest.mark.parametrize(
    "data",
    [captioned(), open_data(EmojiConfig(two_level=True)), open_data(EmojiConfig())],
    ids=["arrays", "two", "one"],
)
@pytest.mark.parametrize("epoch", [0, 3])
def test_batches_are_those_of_the_source(data, epoch):
    memory = data.in_memory()
    wanted = list(batches(data.where(split="train"), 4, seed=7, epoch=epoch, start=1, workers=0))[:5]
    got = list(batches(memory.where(split="train"), 4, seed=7, epoch=epoch, start=1))
    assert len(got) == len(list(batches(data.where(split="train"), 4, seed=7, epoch=epoch, start=1, workers=0)))
    for x, y in zip(got, wanted, strict=False):
        assert_equal_batches(x, y)


def test_the_general_batches_serve_it_too():
    data = captioned()
    memory = data.in_memory()
    for x, y in zip(
        batches(memory.where(split="train"), 4, seed=1), batches(data.where(split="train"), 4, seed=1), strict=True
    ):
        assert_equal_batches(x, y)


@pytest.mark.parametrize("form", ["mean", "max", "mean_max"])
def test_pooled_sequences_against_a_loop(form):
    data = captioned()
    memory = data.pooled({"a": form, "b": form})
    assert memory.dims == ({"a": 10, "b": 6} if form == "mean_max" else data.dims)
    for place in range(len(data)):
        rows, pooled = data[place], memory[place]
        for name in data.dims:
            assert pooled[name].clip_of == rows[name].clip_of
            assert pooled[name].texts == rows[name].texts
            for got, whole in zip(pooled[name].clips, rows[name].clips, strict=True):
                wanted = {"mean": whole.mean(0), "max": whole.max(0), "mean_max": np.r_[whole.mean(0), whole.max(0)]}
                np.testing.assert_allclose(got, wanted[form][None], rtol=1e-6)
    for x, y in zip(batches(memory.where(split="train"), 4), batches(data.where(split="train"), 4), strict=True):
        assert x.inputs["a"].clips.values.shape == (len(x.ids), 10 if form == "mean_max" else 5)
        torch.testing.assert_close(x.pooled["a"], y.pooled["a"])  # connectivity looks at the mean, whatever the encoder


class Counting:
    """The samples of a data set; what is read is noted."""

    def __init__(self, data):
        self.data, self.reads = data, []

    def __len__(self):
        return len(self.data)

    def __getitem__(self, place):
        self.reads.append(place)
        return self.data[place]


def test_each_sample_is_read_once():
    counting = Counting(captioned())
    data = Dataset.from_samples(counting)
    assert counting.reads == list(range(13))  # for keys and sentences
    memory = data.in_memory()
    for epoch in range(3):
        list(batches(memory, 4, epoch=epoch))
    assert counting.reads == 2 * list(range(13))


def test_in_memory_nothing_varies():
    data = open_data(EmojiConfig(vary=True)).where(split="val")
    memory = data.in_memory()
    assert data.varies
    assert not memory.varies
    np.testing.assert_array_equal(memory.training(1, 2)[3]["image"].clips[0], data[3]["image"].clips[0])


def test_faults_are_named():
    bad = np.ones((3, 2, 4), np.float32)
    bad[1, 0, 0] = np.nan
    with pytest.raises(DataError, match="'1'"):
        pair_data(bad, np.ones((3, 2))).in_memory()
    with pytest.raises(DataError, match="no sample"):
        read(captioned().in_memory(), "nobody")


def test_processes_share_batches_as_those_of_the_source():
    data = captioned()
    memory = data.in_memory()
    for part in range(3):
        wanted = batches(data.where(split="train"), 4, seed=2, share=(part, 3), workers=0)
        for x, y in zip(batches(memory.where(split="train"), 4, seed=2, share=(part, 3)), wanted, strict=True):
            assert_equal_batches(x, y)
