"""The two-branch model written a second time: padded tensors, explicit masks, plain functions of a state dict."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from crossclr.data.batch import Batch, Inputs

State = dict[str, Tensor]


def under(state: State, prefix: str) -> State:
    return {key[len(prefix) + 1 :]: value for key, value in state.items() if key.startswith(prefix + ".")}


def pad(values: Tensor, lengths: Tensor, extra: int) -> tuple[Tensor, Tensor]:
    """(sequences, longest + extra, dim) and a mask that is True on real rows; padding holds rubbish on purpose."""
    longest = int(lengths.max()) + extra
    rows = [
        torch.cat([part, part.new_full((longest - len(part), part.shape[1]), 7.0)])
        for part in torch.split(values, lengths.tolist())
    ]
    return torch.stack(rows), torch.arange(longest)[None] < lengths[:, None]


def norm(x: Tensor, state: State) -> Tensor:
    return state["gain"] * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + state["bias"]


def positions(length: int, dim: int) -> Tensor:
    table = torch.empty(length, dim, dtype=torch.float64)
    for p in range(length):
        for c in range(dim):
            angle = p / 10000 ** (2 * c / dim)
            table[p, c] = math.cos(angle) if c % 2 else math.sin(angle)
    return table


def layer(query: Tensor, x: Tensor, real: Tensor, state: State, heads: int) -> Tensor:
    dim = x.shape[-1]
    weight, bias = state["attention.projection.weight"], state["attention.projection.bias"]
    q = query @ weight[:dim].T + bias[:dim]
    k = x @ weight[dim : 2 * dim].T + bias[dim : 2 * dim]
    v = x @ weight[2 * dim :].T + bias[2 * dim :]
    size = dim // heads
    mixed = []
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        scores = torch.einsum("nqd,nkd->nqk", q[..., part], k[..., part]) / math.sqrt(size)
        scores = torch.where(real[:, None, :], scores, torch.tensor(-math.inf, dtype=scores.dtype))
        mixed.append(torch.einsum("nqk,nkd->nqd", scores.softmax(-1), v[..., part]))
    attended = torch.cat(mixed, -1) @ state["attention.output.weight"].T + state["attention.output.bias"]
    y = norm(query + attended, under(state, "attention_norm"))
    hidden = functional.gelu(y @ state["expand.weight"].T + state["expand.bias"])
    return norm(y + hidden @ state["contract.weight"].T + state["contract.bias"], under(state, "output_norm"))


def pool(x: Tensor, real: Tensor, state: State, kind: str) -> Tensor:
    if kind == "max":
        return torch.where(real[..., None], x, torch.tensor(-math.inf, dtype=x.dtype)).max(1).values
    if kind == "mean":
        return (x * real[..., None]).sum(1) / real.sum(1, keepdim=True)
    parts = []
    for head in range(len(state["expand_weight"])):
        hidden = functional.gelu(x @ state["expand_weight"][head].T + state["expand_bias"][head])
        parts.append(hidden @ state["score_weight"][head].T + state["score_bias"][head])
    scores = torch.cat(parts, -1).masked_fill(~real[..., None], -math.inf)
    return (scores.softmax(1) * torch.where(real[..., None], x, torch.zeros((), dtype=x.dtype))).sum(1)


def layers(x: Tensor, real: Tensor, state: State, heads: int) -> Tensor:
    index = 0
    while any(key.startswith(f"layers.{index}.") for key in state):
        x = layer(x, x, real, under(state, f"layers.{index}"), heads)
        index += 1
    return x


def local(values: Tensor, lengths: Tensor, state: State, heads: int, kind: str, extra: int) -> Tensor:
    x, real = pad(values, lengths, extra)
    x = norm(x, under(state, "input_norm"))
    x = functional.gelu(x @ state["projection.weight"].T + state["projection.bias"])
    x = layers(x + positions(x.shape[1], x.shape[2]), real, state, heads)
    return pool(x, real, under(state, "pooler"), kind)


def branch(side: Inputs, counts: Tensor, state: State, heads: int, kind: str, extra: int) -> tuple[Tensor, ...]:
    assert side.context is not None
    part = under(state, "local")
    clips = local(side.clips.values, side.clips.lengths, part, heads, kind, extra)
    context = local(side.context.values, side.context.lengths, part, heads, kind, extra)
    part = under(state, "global_")
    x, real = pad(clips, counts, extra)
    x = norm(x, under(part, "input_norm")) + positions(x.shape[1], x.shape[2])
    x = layers(x, real, part, heads)
    attended = layer(context[:, None], x, real, under(part, "context_layer"), heads)[:, 0]
    return clips, torch.cat([pool(x, real, {}, "mean"), attended], 1), context


def encode(batch: Batch, state: State, heads: int, kind: str = "attention", extra: int = 3) -> dict[str, Tensor]:
    found = {}
    for name, inputs in batch.inputs.items():
        part = under(state, f"encoders.{name}")
        levels = branch(inputs, batch.clip_counts, part, heads, kind, extra)
        found |= {f"{level}/{name}": rows for level, rows in zip(("clip", "video", "context"), levels, strict=True)}
    return found
