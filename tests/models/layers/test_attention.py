from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from crossclr.models.layers import Attention
from crossclr.models.packing import Packing


def twin(attention: Attention, dim: int) -> nn.MultiheadAttention:
    """Torch's own module with the same weights; it lays out query, key and value as we do."""
    other = nn.MultiheadAttention(dim, attention.heads, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        other.in_proj_weight.copy_(attention.projection.weight)
        other.in_proj_bias.copy_(attention.projection.bias)
        other.out_proj.weight.copy_(attention.output.weight)
        other.out_proj.bias.copy_(attention.output.bias)
    return other.eval()


@settings(deadline=None, max_examples=25)
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=6), heads=st.sampled_from([1, 2, 4]))
def test_self_and_cross_attention_equal_torch(lengths: list[int], heads: int) -> None:
    torch.manual_seed(len(lengths))
    attention = Attention(8, heads, dropout=0.3).double().eval()
    other = twin(attention, 8)
    x = torch.randn(sum(lengths), 8, dtype=torch.float64)
    queries = torch.randn(len(lengths), 8, dtype=torch.float64)
    packing = Packing.of(torch.tensor(lengths))
    got = torch.cat([s.flatten(0, 1) for s in packing.split(attention(packing.pack(x), packing))])
    crossed = packing.restore(attention.cross(packing.pack_sequences(queries), packing.pack(x), packing))
    expected = []
    for index, rows in enumerate(x.split(lengths)):
        expected.append(other(rows[None], rows[None], rows[None])[0][0])
        alone = other(queries[None, index : index + 1], rows[None], rows[None])[0][0, 0]
        torch.testing.assert_close(crossed[index], alone, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(got, packing.pack(torch.cat(expected)), atol=1e-12, rtol=1e-12)


def test_dense_attention_ignores_what_is_not_allowed() -> None:
    torch.manual_seed(0)
    attention = Attention(8, 2, dropout=0.0).double()
    x = torch.randn(2, 4, 8, dtype=torch.float64)
    allowed = torch.tensor([[True, True, False, False], [True, True, True, True]])
    changed = x.clone()
    changed[0, 2:] = 100.0
    before, after = attention.dense(x[:, :2], x, allowed), attention.dense(x[:, :2], changed, allowed)
    torch.testing.assert_close(before, after, atol=1e-12, rtol=0)
    other = twin(attention, 8)
    torch.testing.assert_close(before, other(x[:, :2], x, x, key_padding_mask=~allowed)[0], atol=1e-12, rtol=1e-12)
