from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossclr.losses.queue import RingBuffer


@given(size=st.integers(1, 9), batches=st.lists(st.integers(1, 13), min_size=1, max_size=8), seed=st.integers(0, 99))
@settings(deadline=None)
def test_the_ring_holds_the_last_rows_and_their_sum(size: int, batches: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    queue = RingBuffer(size)
    everything: list[tuple[torch.Tensor, ...]] = []
    for count in batches:
        features, embeddings = (torch.randn(count, d, generator=generator) for d in (3, 4))
        ids = torch.randint(0, 50, (count,), generator=generator)
        slots = queue.push(features, embeddings, ids)
        everything += [(features[i], embeddings[i], ids[i]) for i in range(count)]
        newest = everything[-len(slots) :]
        assert torch.equal(queue.embeddings[slots], torch.stack([row[1] for row in newest]))
        assert torch.equal(queue.ids[slots], torch.stack([row[2] for row in newest]))
    held = everything[-size:]
    assert queue.filled == len(held)
    assert sorted(queue.ids[: queue.filled].tolist()) == sorted(int(row[2]) for row in held)
    total = torch.stack([row[0] for row in held]).double().sum(0)
    torch.testing.assert_close(queue.total, total, atol=1e-12, rtol=1e-12)
    squares = torch.stack([row[0].square().sum() for row in held])
    torch.testing.assert_close(queue.squares[: queue.filled].sort().values, squares.sort().values)


def test_samples_without_ids_never_equal_another() -> None:
    queue = RingBuffer(8)
    rows = torch.ones(3, 2)
    for _ in range(2):
        queue.push(rows, rows, None)
    ids = queue.ids[: queue.filled]
    assert len(ids.unique()) == 6
    assert int(ids.max()) < -(2**62)


def test_older_rows_are_all_but_the_last() -> None:
    for size in (7, 8, 12):
        queue = RingBuffer(size)
        for rows in (3, 1, 4, 2, 5, 3, 3, 1, 6):
            one = torch.zeros(rows, 2)
            slots = set(queue.push(one, one, None).tolist())
            older = [slot for part in queue.older(rows) for slot in range(part.start, part.stop)]
            assert sorted([*older, *slots]) == list(range(queue.filled))
