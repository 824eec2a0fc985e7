"""Data kept in memory gives the same batches as data on disk, pooled where it is asked to."""

import numpy as np
import pytest
import torch

from crossclr.features import DataError, SourceWrapper, batches
from crossclr.features.sources.emoji import EmojiSource
from crossclr.features.sources.in_memory import MemorySource
from crossclr.models import ModelConfig, build_model, embed_source
from tests.support.pairs import pair_source


def captioned(clips=13, seed=0):
    """Clips of several rows, each with one to four sentences of several tokens."""
    rng = np.random.default_rng(seed)
    a = [rng.normal(size=(rng.integers(1, 6), 5)).astype(np.float32) for _ in range(clips)]
    owners = [str(clip) for clip in range(clips) for _ in range(int(rng.integers(1, 5)))]
    b = [rng.normal(size=(rng.integers(1, 4), 3)).astype(np.float32) for _ in owners]
    texts = [f"sentence {number}" for number in range(len(owners))]
    splits = {"train": [str(c) for c in range(clips - 3)], "val": [str(c) for c in range(clips - 3, clips)]}
    return pair_source(a, b, owners=owners, texts=texts, splits=splits, groups={str(c): f"g{c}" for c in range(clips)})


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
    "source", [captioned(), EmojiSource(two_level=True), EmojiSource()], ids=["arrays", "two", "one"]
)
@pytest.mark.parametrize("epoch", [0, 3])
def test_batches_are_those_of_the_source(source, epoch):
    memory = MemorySource(source)
    wanted = list(batches(source, "train", 4, seed=7, epoch=epoch, start=1, workers=0))[:5]
    got = list(batches(memory, "train", 4, seed=7, epoch=epoch, start=1))
    assert len(got) == len(list(batches(source, "train", 4, seed=7, epoch=epoch, start=1, workers=0)))
    for x, y in zip(got, wanted, strict=False):
        assert_equal_batches(x, y)


def test_the_general_batches_serve_it_too():
    source = captioned()
    memory = MemorySource(source)
    for x, y in zip(batches(memory, "train", 4, seed=1), batches(source, "train", 4, seed=1), strict=True):
        assert_equal_batches(x, y)


@pytest.mark.parametrize("form", ["mean", "max", "mean_max"])
def test_what_is_pooled_before_is_embedded_alike(form):
    source = captioned()
    encoder = {"kind": "mlp", "sequence_pooling": form}
    torch.manual_seed(0)
    model = build_model(ModelConfig(dim=8, encoder=encoder), source.dims, two_level=False)
    memory = MemorySource(source, dict.fromkeys(source.modalities, form))
    assert memory.dims == source.dims
    wanted, got = (embed_source(model, data, "val") for data in (source, memory))
    for name in source.modalities:
        torch.testing.assert_close(got[name].rows, wanted[name].rows)
        assert got[name].texts == wanted[name].texts
        assert torch.equal(got[name].clip_of, wanted[name].clip_of)
    assert got.groups == wanted.groups
    model.eval()
    for x, y in zip(batches(memory, "train", 4), batches(source, "train", 4), strict=True):
        assert x.inputs["a"].clips.values.shape == (len(x.ids), 10 if form == "mean_max" else 5)
        torch.testing.assert_close(x.pooled["a"], y.pooled["a"])  # connectivity looks at the mean, whatever the encoder
        torch.testing.assert_close(model(x)["clip/b"], model(y)["clip/b"])


def test_each_sample_is_read_once():
    source = captioned()
    reads = []

    class Counting(SourceWrapper):
        def read(self, key, rng=None):
            reads.append(key)
            return source.read(key, rng)

    memory = MemorySource(Counting(source))
    for epoch in range(3):
        list(batches(memory, "train", 4, epoch=epoch))
    assert sorted(reads) == sorted(source.keys("train"))
    memory.keys("val")
    memory.read("12")
    memory.read("11")
    assert sorted(reads) == sorted([*source.keys("train"), *source.keys("val")])


def test_what_varies_cannot_be_kept():
    with pytest.raises(DataError, match="vary"):
        MemorySource(EmojiSource(vary=True))


def test_faults_are_named():
    bad = np.ones((3, 2, 4), np.float32)
    bad[1, 0, 0] = np.nan
    with pytest.raises(DataError, match="'1'"):
        next(batches(MemorySource(pair_source(bad, np.ones((3, 2)))), "train", 2, workers=0))
    with pytest.raises(DataError, match="no sample"):
        MemorySource(captioned()).read("nobody")


def test_processes_share_batches_as_those_of_the_source():
    source = captioned()
    memory = MemorySource(source)
    for part in range(3):
        wanted = batches(source, "train", 4, seed=2, share=(part, 3), workers=0)
        for x, y in zip(batches(memory, "train", 4, seed=2, share=(part, 3)), wanted, strict=True):
            assert_equal_batches(x, y)
