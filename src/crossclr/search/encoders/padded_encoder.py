"""The encoders on padded input, the form that ONNX can express. The weights are shared with the model."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from crossclr.models import JointModel, SearchSpace
from crossclr.models.encoders.local_encoders import MLPEncoder, TransformerEncoder
from crossclr.models.layers.attention import TransformerLayer
from crossclr.models.layers.norm import CootNorm
from crossclr.models.layers.pooling import AttentionPool, MaxPool
from crossclr.models.search_space.space import shares


class PaddedEncoder(nn.Module):
    """One encoder of a model, from padded rows to unit vectors.

    Example:
        >>> from crossclr.models import ModelConfig, build_model
        >>> model = build_model(ModelConfig(dim=16), dims={"video": 3, "text": 5}, two_level=False).eval()
        >>> PaddedEncoder(model, "text")(torch.ones(2, 7, 5), torch.tensor([7, 1])).shape
        torch.Size([2, 16])
    """

    def __init__(self, model: JointModel, modality: str) -> None:
        super().__init__()
        branch = model.encoders[modality]
        self.local, self.head = branch.get_submodule("local"), branch.get_submodule("clip_head")

    def forward(self, rows: Tensor, lengths: Tensor) -> Tensor:
        """(batch, dim) unit vectors from ``rows`` (batch, longest, channels) and ``lengths`` (batch,)."""
        inside = torch.arange(rows.shape[1], device=rows.device) < lengths.unsqueeze(1)  # (batch, longest)
        rows = torch.where(inside.unsqueeze(2), rows, 0.0)  # the values of the padding must not matter
        if isinstance(self.local, TransformerEncoder):
            pooled = _transformer(self.local, rows, inside)
        elif isinstance(self.local, MLPEncoder):
            pooled = _mlp(self.local, rows, inside)
        else:
            raise TypeError(f"cannot export an encoder of type {type(self.local).__name__}")
        embedded: Tensor = self.head(pooled)
        return embedded / embedded.square().sum(1, keepdim=True).sqrt().clamp_min(1e-12)


class PaddedSpace(nn.Module):
    """A search space for one modality, from padded rows to unit vectors.

    Args:
        space: the search space.
        modality: its name.
        as_items: whether the vectors are search targets instead of queries.

    Example:
        >>> from crossclr.models.closed_form import ClosedForm
        >>> rows = torch.randn(50, 5, generator=torch.Generator().manual_seed(0))
        >>> space = SearchSpace({"video": 5, "text": 4}, ClosedForm().fit({"video": rows, "text": rows[:, :4]}))
        >>> found = PaddedSpace(space, "video")(rows.unsqueeze(1), torch.ones(50, dtype=torch.int64))
        >>> bool((found - space.queries("video", rows)).abs().max() < 1e-6)
        True
    """

    def __init__(self, space: SearchSpace, modality: str, as_items: bool = False) -> None:
        super().__init__()
        self.modality, self.as_items, self.hubs = modality, as_items, space.hubs
        closed = space.closed_form is not None and space.share < 1
        self.branch = space.closed_form.branch(modality) if closed and space.closed_form is not None else None
        self.encoders = nn.ModuleList(PaddedEncoder(encoder.model, modality) for encoder in space.trained)
        self.shares = shares(space.share, len(self.encoders) + closed, closed)

    def forward(self, rows: Tensor, lengths: Tensor) -> Tensor:
        """(batch, dim) unit vectors from ``rows`` (batch, longest, channels) and ``lengths`` (batch,)."""
        parts = [encoder(rows, lengths) for encoder in self.encoders]
        if self.branch is not None:
            inside = torch.arange(rows.shape[1], device=rows.device) < lengths.unsqueeze(1)
            parts.insert(0, self.branch(_mean(torch.where(inside.unsqueeze(2), rows, 0.0), inside)))
        plain = torch.cat([weight**0.5 * part for weight, part in zip(self.shares, parts, strict=True)], dim=1)
        if self.hubs is None:
            return plain
        return self.hubs.corrected(self.modality, plain) if self.as_items else self.hubs.queries(plain)


def padded(model: JointModel | SearchSpace, modality: str) -> nn.Module:
    """The encoder of queries on padded input."""
    wanted = PaddedSpace(model, modality) if isinstance(model, SearchSpace) else PaddedEncoder(model, modality)
    return wanted.eval()


def _transformer(encoder: TransformerEncoder, rows: Tensor, inside: Tensor) -> Tensor:
    x = functional.gelu(encoder.projection(_norm(encoder.input_norm, rows)))  # (batch, longest, dim)
    x = x + _positions(x.shape[1], x.shape[2], x)
    hidden = torch.where(inside, 0.0, -torch.inf)[:, None, None, :]  # is added to the attention scores
    for layer in encoder.layers:
        x = _layer(layer, x, hidden)  # type: ignore[arg-type]
    outside = ~inside.unsqueeze(2)
    if isinstance(encoder.pooler, AttentionPool):
        weights = _scores(encoder.pooler, x).masked_fill(outside, -torch.inf).softmax(1)
        return (weights * x).sum(1)
    if isinstance(encoder.pooler, MaxPool):
        return _max(x, inside)
    return _mean(x, inside)


def _mlp(encoder: MLPEncoder, rows: Tensor, inside: Tensor) -> Tensor:
    parts = []
    if encoder.sequence_pooling in ("mean", "mean_max"):
        parts.append(_mean(rows, inside))
    if encoder.sequence_pooling in ("max", "mean_max"):
        parts.append(_max(rows, inside))
    x = encoder.projection(_norm(encoder.input_norm, torch.cat(parts, dim=1)))
    for block in encoder.blocks:
        x = x + block.contract(functional.gelu(block.expand(block.norm(x))))  # type: ignore[operator]
    out: Tensor = x
    return out


def _layer(layer: TransformerLayer, x: Tensor, hidden: Tensor) -> Tensor:
    attention = layer.attention
    batch, longest, dim = x.shape
    heads = attention.heads
    query, key, value = (
        part.reshape(batch, longest, heads, dim // heads).transpose(1, 2)
        for part in attention.projection(x).chunk(3, dim=2)
    )  # (batch, heads, longest, dim / heads)
    scores = query @ key.transpose(2, 3) / (dim // heads) ** 0.5 + hidden
    mixed = (scores.softmax(3) @ value).transpose(1, 2).reshape(batch, longest, dim)
    y = _norm(layer.attention_norm, x + attention.output(mixed))
    return _norm(layer.output_norm, y + layer.contract(functional.gelu(layer.expand(y))))


def _norm(norm: nn.Module, x: Tensor) -> Tensor:
    if not isinstance(norm, CootNorm):
        out: Tensor = norm(x)
        return out
    centred = x - x.mean(-1, keepdim=True)
    deviation = (centred.square().sum(-1, keepdim=True) / (x.shape[-1] - 1)).sqrt()
    return centred / (deviation + norm.eps) * norm.gain + norm.bias


def _positions(length: int, dim: int, like: Tensor) -> Tensor:
    """(length, dim) the numbers of the model's table, for any length."""
    channel = torch.arange(dim, device=like.device)
    place = torch.arange(length, device=like.device, dtype=like.dtype).unsqueeze(1)
    angle = place / 10000 ** (2 * channel.to(like.dtype) / dim)
    return torch.where(channel % 2 == 0, angle.sin(), angle.cos())


def _scores(pooler: AttentionPool, x: Tensor) -> Tensor:
    """(batch, longest, dim) a score for each channel of each row."""
    parts = []
    for head in range(pooler.expand_weight.shape[0]):
        hidden = functional.gelu(functional.linear(x, pooler.expand_weight[head], pooler.expand_bias[head]))
        parts.append(functional.linear(hidden, pooler.score_weight[head], pooler.score_bias[head]))
    return torch.cat(parts, dim=2)


def _mean(x: Tensor, inside: Tensor) -> Tensor:
    weights = inside.unsqueeze(2).to(x.dtype)
    return (x * weights).sum(1) / weights.sum(1)


def _max(x: Tensor, inside: Tensor) -> Tensor:
    return x.masked_fill(~inside.unsqueeze(2), -torch.inf).amax(1)
