from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from crossclr.models.packing import Packing

LENGTHS = st.lists(st.integers(1, 6), min_size=1, max_size=12)


@given(lengths=LENGTHS)
def test_every_group_holds_the_sequences_of_its_length(lengths: list[int]) -> None:
    values = torch.arange(sum(lengths)).float().unsqueeze(1)  # each row names itself
    sequences = values.split(lengths)
    packing = Packing.of(torch.tensor(lengths))
    stacks = list(packing.split(packing.pack(values)))
    seen = [sequence for stack in stacks for sequence in stack]
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])  # Python's sort is stable
    assert [len(sequence) for sequence in seen] == [lengths[i] for i in order]
    for sequence, index in zip(seen, order, strict=True):
        assert torch.equal(sequence, sequences[index])
    assert packing.positions.tolist() == [p for i in order for p in range(lengths[i])]


@given(lengths=LENGTHS)
def test_sequences_come_back_in_their_order(lengths: list[int]) -> None:
    packing = Packing.of(torch.tensor(lengths))
    values = torch.arange(sum(lengths)).float().unsqueeze(1)
    sums = torch.cat([stack.sum(1) for stack in packing.split(packing.pack(values))])
    expected = torch.stack([part.sum(0) for part in values.split(lengths)])
    assert torch.equal(packing.restore(sums), expected)
    assert torch.equal(packing.restore(packing.pack_sequences(expected)), expected)


@given(lengths=LENGTHS)
def test_gradients_find_their_rows(lengths: list[int]) -> None:
    packing = Packing.of(torch.tensor(lengths))
    x = torch.randn(sum(lengths), 2, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(len(lengths), 2, dtype=torch.float64)
    pooled = packing.restore(torch.cat([stack.sum(1) for stack in packing.split(packing.pack(x))]))
    (gradient,) = torch.autograd.grad((pooled * weights).sum(), x)
    assert torch.equal(gradient, torch.repeat_interleave(weights, torch.tensor(lengths), dim=0))


def test_sorted_lengths_are_not_copied() -> None:
    values = torch.randn(6, 2)
    assert Packing.of(torch.tensor([1, 2, 3])).pack(values) is values
