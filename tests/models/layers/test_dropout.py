from __future__ import annotations

import pytest
import torch

from crossclr.data import Ragged
from crossclr.models.encoders import MLPEncoder
from crossclr.models.model_config import MLPEncoderConfig
from crossclr.models.packing import Dropout, drop_rows


@pytest.mark.parametrize("probability", [0.01, 0.05, 0.5, 0.9])
@pytest.mark.parametrize("size", [(7,), (300_001,), (300, 1001)])
def test_rate_scale_and_gradient(probability: float, size: tuple[int, ...]) -> None:
    torch.manual_seed(3)
    x = torch.rand(size).add_(1).requires_grad_()
    out = Dropout(probability)(x)
    kept = out != 0
    torch.testing.assert_close(out[kept], (x / (1 - probability))[kept], rtol=2e-4, atol=0)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(gradient != 0, kept)
    assert gradient.unique().numel() <= 2
    if out.numel() > 1000:
        share = 1 - float(kept.float().mean())
        spread = (probability * (1 - probability) / out.numel()) ** 0.5
        assert abs(share - probability) < 5 * spread + 1 / 65536
        # No place is favoured: each of the four elements that share a random word has the same rate.
        lanes = kept.flatten()[: kept.numel() // 4 * 4].view(-1, 4).float().mean(0)
        assert float(lanes.max() - lanes.min()) < 12 * spread


def test_one_seed_gives_one_mask_and_calls_differ() -> None:
    drop, x = Dropout(0.5), torch.ones(1000)
    torch.manual_seed(0)
    first, second = drop(x), drop(x)
    torch.manual_seed(0)
    assert torch.equal(drop(x), first)
    assert not torch.equal(first, second)


def test_neighbours_are_independent() -> None:
    torch.manual_seed(0)
    mask = (Dropout(0.5)(torch.ones(400_000)) != 0).double()
    for lag in (1, 2, 3, 4, 8):
        correlation = torch.corrcoef(torch.stack([mask[lag:], mask[:-lag]]))[0, 1]
        assert abs(float(correlation)) < 0.01


def test_evaluation_and_zero_do_nothing() -> None:
    x = torch.randn(5)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x


def test_bfloat16_and_views() -> None:
    torch.manual_seed(0)
    out = Dropout(0.5)(torch.ones(4, 6, dtype=torch.bfloat16).T)
    assert out.dtype == torch.bfloat16
    assert out.shape == (6, 4)
    assert set(out.unique().tolist()) <= {0.0, 2.0}


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.95])
def test_rows_that_stay_are_rows_of_their_sequence_in_order(probability: float) -> None:
    torch.manual_seed(1)
    lengths = torch.randint(1, 30, (400,))
    rows = torch.arange(int(lengths.sum()), dtype=torch.float32)
    owner = torch.repeat_interleave(torch.arange(400), lengths)
    kept = drop_rows(Ragged(rows[:, None], lengths), probability)
    assert int(kept.lengths.min()) >= 1
    numbers = kept.values[:, 0].long()
    assert bool((numbers[1:] > numbers[:-1]).all())
    assert torch.equal(torch.bincount(owner[numbers], minlength=400), kept.lengths)
    # one row of each sequence stays in any case, the others with 1 - probability
    expected = float((1 + (lengths - 1) * (1 - probability)).sum())
    spread = (float((lengths - 1).sum()) * probability * (1 - probability)) ** 0.5
    assert abs(float(kept.lengths.sum()) - expected) < 5 * spread


def test_row_dropout_pools_other_rows_in_training_only() -> None:
    torch.manual_seed(2)
    encoder = MLPEncoder(MLPEncoderConfig(sequence_pooling="mean_max", dropout=0, row_dropout=0.5), 3, 4)
    sequences = Ragged(torch.randn(40, 3), torch.tensor([20, 20]))
    assert not torch.equal(encoder(sequences), encoder(sequences))
    encoder.eval()
    plain = MLPEncoder(MLPEncoderConfig(sequence_pooling="mean_max", dropout=0), 3, 4)
    plain.load_state_dict(encoder.state_dict())
    assert torch.equal(encoder(sequences), plain.train()(sequences))
