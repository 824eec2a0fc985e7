import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossclr.data import CootConfig, DataError, Dataset, Sample, batches, open_data
from crossclr.data.sample import stable_hash
from crossclr.data.samples import collate
from tests.support.pairs import keys_of, pair_data, pair_sample, read

WORKERS = [0, 1, 3]


def rows(count, dim, seed=0):
    return np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)


def equal(one, other):
    tensors = ["clip_counts", "ids", "video_ids"]
    sides = [(one.inputs[name], other.inputs[name]) for name in one.inputs]
    return (
        one.keys == other.keys
        and all(torch.equal(one.pooled[name], other.pooled[name]) for name in one.inputs)
        and all(torch.equal(getattr(one, name), getattr(other, name)) for name in tensors)
        and all(torch.equal(x.clips.values, y.clips.values) for x, y in sides)
        and all(torch.equal(x.clips.lengths, y.clips.lengths) for x, y in sides)
        and all((x.context is None) == (y.context is None) for x, y in sides)
        and all(x.context is None or torch.equal(x.context.values, y.context.values) for x, y in sides)
    )


@given(
    shape=st.lists(
        st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), min_size=1, max_size=4), min_size=1, max_size=5
    )
)
def test_collate_against_a_loop(shape):
    samples = []
    for number, clips in enumerate(shape):
        parts_a = [rows(a, 3, number * 10 + i) for i, (a, _) in enumerate(clips)]
        parts_b = [rows(b, 2, number * 10 + i + 5) for i, (_, b) in enumerate(clips)]
        samples.append(pair_sample(f"v{number}", parts_a, parts_b, (np.concatenate(parts_a), np.concatenate(parts_b))))
    batch = collate(samples)
    flat_a = [part for sample in samples for part in sample["video"].clips]
    flat_b = [part for sample in samples for part in sample["text"].clips]
    assert batch.clip_counts.tolist() == [len(clips) for clips in shape]
    for got, want in zip(batch.inputs["video"].clips.split(), flat_a, strict=True):
        np.testing.assert_array_equal(got.numpy(), want)
    for got, want in zip(batch.inputs["text"].clips.split(), flat_b, strict=True):
        np.testing.assert_array_equal(got.numpy(), want)
    np.testing.assert_allclose(batch.pooled["video"].numpy(), [part.mean(0) for part in flat_a], atol=1e-5)
    np.testing.assert_allclose(batch.pooled["text"].numpy(), [part.mean(0) for part in flat_b], atol=1e-5)
    np.testing.assert_allclose(
        batch.pooled_context["video"].numpy(), [s["video"].whole.mean(0) for s in samples], atol=1e-5
    )
    np.testing.assert_allclose(
        batch.pooled_context["text"].numpy(), [s["text"].whole.mean(0) for s in samples], atol=1e-5
    )
    names = [
        f"v{number}/{i}" if len(clips) > 1 else f"v{number}"
        for number, clips in enumerate(shape)
        for i in range(len(clips))
    ]
    assert batch.ids.tolist() == [stable_hash(name) for name in names]
    assert len(set(batch.ids.tolist())) == len(names)
    assert batch.pooled["video"].dtype == torch.float32


def test_hash_is_the_same_everywhere():
    # fixed for ever: the queue in a checkpoint holds such numbers
    assert [stable_hash(text) for text in ("v1/0", "é", "")] == [
        4005870024435993712,
        1697006002183834981,
        6510301506637419378,
    ]


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (pair_sample("k", [rows(2, 3) * np.nan], [rows(1, 2)]), "'k' has NaN or infinite values"),
        (pair_sample("k", [rows(2, 4)], [rows(1, 2)]), r"'k', video 0: shape \(2, 4\), but at least one row of 3"),
        (pair_sample("k", [rows(0, 3)], [rows(1, 2)]), r"'k', video 0: shape \(0, 3\)"),
        (pair_sample("k", [rows(2, 3)], [rows(1, 2)], (rows(2, 3), rows(1, 2))), "for all samples or for none"),
        (Sample("k", {}), "'k' has no modality"),
        (pair_sample("k", [rows(2, 3)], [rows(1, 2)], names=("video", "sound")), "'k' has the modality 'sound'"),
    ],
)
def test_collate_names_the_bad_sample(sample, message):
    good = pair_sample("good", [rows(2, 3)], [rows(1, 2)])
    with pytest.raises(DataError, match=message):
        collate([good, sample], {"video": 3, "text": 2})


def test_an_epoch_has_everything_once(coot):
    data = open_data(CootConfig(**coot.config))
    seen = [batch.keys for batch in batches(data.where(split="train"), 2, seed=1, epoch=3)]
    assert [len(keys) for keys in seen] == [2, 2, 1]
    assert sorted(key for keys in seen for key in keys) == sorted(keys_of(data, "train"))


@pytest.mark.parametrize("workers", WORKERS)
def test_resuming_gives_bit_equal_batches(coot, workers):
    data = open_data(CootConfig(**coot.config, max_frames=10, frames_noise=0.1))
    whole = list(batches(data.where(split="train"), 2, seed=5, epoch=2, workers=0))
    again = list(batches(data.where(split="train"), 2, seed=5, epoch=2, start=1, workers=workers))
    assert len(whole) == 3
    assert all(equal(one, other) for one, other in zip(whole[1:], again, strict=True))


def test_seed_and_epoch_change_order_and_frames(coot):
    data = open_data(CootConfig(**coot.config, max_frames=10))

    def content(seed, epoch):
        found = {}
        for batch in batches(data.where(split="train"), 1, seed=seed, epoch=epoch):
            found[batch.keys[0]] = batch.inputs["video"].clips.values
        return found

    first, other_epoch, other_seed = content(0, 0), content(0, 1), content(1, 0)
    assert any(not torch.equal(first[key], other_epoch[key]) for key in first)
    assert any(not torch.equal(first[key], other_seed[key]) for key in first)
    data = pair_data(np.zeros((50, 1)), np.zeros((50, 1)))
    orders = [
        next(batches(data.where(split="train"), 50, seed=s, epoch=e)).keys for s, e in [(0, 0), (0, 1), (1, 0), (0, 0)]
    ]
    assert orders[0] == orders[3]
    assert len(set(orders)) == 3


def test_without_shuffling_it_is_evaluation(coot):
    data = open_data(CootConfig(**coot.config, max_frames=10, frames_noise=0.5))
    (batch,) = batches(data.where(split="val"), 8, shuffle=False)
    assert batch.keys == tuple(keys_of(data, "val"))
    np.testing.assert_array_equal(
        batch.inputs["video"].context.split()[0].numpy(), read(data, batch.keys[0])["video"].whole
    )
    many = pair_data(np.zeros((2, 1)), np.arange(4.0)[:, None], owners=["0", "0", "1", "1"])
    (batch,) = batches(many.where(split="train"), 8, shuffle=False)
    assert batch.inputs["b"].clips.values.ravel().tolist() == [0, 2]


class Slow:
    """Samples that are read on demand and counted; one breaks after the data set was opened."""

    def __init__(self, count, faulty=-1):
        self.count, self.faulty, self.reads, self.lock = count, -1, 0, threading.Lock()
        self.data = Dataset.from_samples(self)
        self.faulty, self.reads = faulty, 0

    def __len__(self):
        return self.count

    def __getitem__(self, place):
        with self.lock:
            self.reads += 1
        if place == self.faulty:
            raise DataError("file.h5: entry 'x' is broken")
        return pair_sample(str(place), [np.full((1, 1), place, np.float32)], [np.zeros((1, 1), np.float32)])


def reading_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("crossclr-read")]


@pytest.mark.parametrize("workers", WORKERS)
def test_a_fault_comes_up_at_its_own_batch(workers):
    stream = batches(Slow(20, faulty=9).data, 2, shuffle=False, workers=workers)
    got = [next(stream).keys for _ in range(4)]
    assert got == [("0", "1"), ("2", "3"), ("4", "5"), ("6", "7")]
    with pytest.raises(DataError, match="is broken"):
        next(stream)
    assert not reading_threads()


def test_reading_ahead_is_bounded_and_closing_stops_the_threads():
    slow = Slow(10_000)
    stream = batches(slow.data, 10, workers=2)
    next(stream)
    deadline = time.monotonic() + 5
    while slow.reads < 40 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert 10 < slow.reads <= 50  # it ran ahead, but by no more than workers and two batches
    assert reading_threads()
    stream.close()
    assert not reading_threads()


@settings(max_examples=20)
@given(count=st.integers(1, 30), size=st.integers(1, 12), start=st.integers(0, 4), workers=st.integers(0, 3))
def test_batches_are_the_cut_of_one_order(count, size, start, workers):
    got = [batch.keys for batch in batches(Slow(count).data, size, start=start, shuffle=False, workers=workers)]
    keys = [str(n) for n in range(count)]
    assert got == [tuple(keys[i : i + size]) for i in range(start * size, count, size)]


def test_bad_arguments():
    with pytest.raises(ValueError, match="batch_size >= 1"):
        batches(Slow(2).data, 0)
    with pytest.raises(ValueError, match="at least one sample"):
        collate([])
