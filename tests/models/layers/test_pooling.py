from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossclr.models.layers import AttentionPool, MaxPool, MeanPool, build_pooler
from crossclr.models.model_config import TransformerEncoderConfig
from crossclr.models.packing import Packing


def gelu(value: float) -> float:
    return value * 0.5 * (1 + math.erf(value / math.sqrt(2)))


def aggregate(pool: AttentionPool, rows: list[list[float]]) -> list[float]:
    """Attention-aware aggregation in plain Python, channel by channel."""
    w1, b1 = pool.expand_weight.tolist(), pool.expand_bias.tolist()
    w2, b2 = pool.score_weight.tolist(), pool.score_bias.tolist()
    result = []
    for head in range(len(w1)):
        hidden = [
            [
                gelu(sum(w * v for w, v in zip(weights, row, strict=True)) + b)
                for weights, b in zip(w1[head], b1[head], strict=True)
            ]
            for row in rows
        ]
        for out, weights in enumerate(w2[head]):
            scores = [sum(w * h for w, h in zip(weights, step, strict=True)) + b2[head][out] for step in hidden]
            total = sum(math.exp(score) for score in scores)
            channel = head * len(w2[head]) + out
            result.append(sum(math.exp(s) / total * row[channel] for s, row in zip(scores, rows, strict=True)))
    return result


@settings(deadline=None, max_examples=20)
@given(lengths=st.lists(st.integers(1, 4), min_size=1, max_size=4), heads=st.sampled_from([1, 2]))
def test_attention_pool_equals_a_loop(lengths: list[int], heads: int) -> None:
    torch.manual_seed(1)
    pool = AttentionPool(4, heads, hidden=3, dropout=0.5).double().eval()
    for parameter in pool.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x = torch.randn(sum(lengths), 4, dtype=torch.float64)
    packing = Packing.of(torch.tensor(lengths))
    got = packing.restore(pool(packing.pack(x), packing))
    for vector, rows in zip(got.tolist(), x.split(lengths), strict=True):
        assert vector == pytest.approx(aggregate(pool, rows.tolist()), abs=1e-12)


@given(lengths=st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_mean_and_max_equal_a_loop(lengths: list[int]) -> None:
    x = torch.randn(sum(lengths), 3, dtype=torch.float64)
    packing = Packing.of(torch.tensor(lengths))
    mean, largest = (packing.restore(pool(packing.pack(x), packing)) for pool in (MeanPool(), MaxPool()))
    for index, rows in enumerate(x.split(lengths)):
        columns = list(zip(*rows.tolist(), strict=True))
        assert mean[index].tolist() == pytest.approx([sum(c) / len(c) for c in columns], abs=1e-12)
        assert largest[index].tolist() == [max(c) for c in columns]


@pytest.mark.parametrize(("name", "kind"), [("attention", AttentionPool), ("max", MaxPool), ("mean", MeanPool)])
def test_names(name: str, kind: type) -> None:
    assert isinstance(build_pooler(TransformerEncoderConfig(pooler=name), 8), kind)  # type: ignore[arg-type]


def test_heads_must_divide() -> None:
    with pytest.raises(ValueError, match="not divisible"):
        AttentionPool(5, 2, 4, 0.0)
