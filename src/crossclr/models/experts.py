"""Encoders of a modality that has several experts, and the head that lets the other modalities weigh them.

References:
    MEE: Miech et al., Learning a Text-Video Embedding from Incomplete and Heterogeneous Data, 2018.
    CE: Liu et al., Use What You Have: Video Retrieval Using Representations From Collaborative Experts, BMVC 2019.
    MMT: Gabeur et al., Multi-modal Transformer for Video Retrieval, ECCV 2020.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from crossclr.data.batch import Ragged
from crossclr.models.layers import TransformerLayer
from crossclr.models.model_config import ExpertsEncoderConfig, MLPEncoderConfig
from crossclr.models.norm import build_input_norm


class GateNorm(nn.BatchNorm1d):
    """Batch normalisation that takes a training batch of one row as evaluation does, because it has no deviation."""

    def forward(self, input: Tensor) -> Tensor:
        """Rows (N, dim) to rows of the same shape."""
        if self.training and len(input) < 2:
            return functional.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        return super().forward(input)


def _norm(dim: int, batch_norm: bool) -> nn.Module:
    return GateNorm(dim) if batch_norm else nn.Identity()


class GatedUnit(nn.Module):
    """MEE's gated embedding unit: h = W x + b, and h ⊙ sigmoid(norm(V h + c)) at unit length.

    Example:
        >>> GatedUnit(5, 3).eval()(torch.ones(2, 5)).norm(dim=1).round(decimals=4).tolist()
        [1.0, 1.0]
    """

    def __init__(self, input_dim: int, dim: int, batch_norm: bool = True) -> None:
        super().__init__()
        self.project = nn.Linear(input_dim, dim)
        self.gate = nn.Linear(dim, dim)
        self.norm = _norm(dim, batch_norm)

    def forward(self, x: Tensor) -> Tensor:
        """(N, input_dim) to (N, dim) unit rows."""
        value = self.project(x)
        return functional.normalize(value * torch.sigmoid(self.norm(self.gate(value))), dim=1)


class GatedExperts(nn.Module):
    """MEE: a gated unit for each expert.

    Args:
        dims: channels of each expert.
        dim: channels of its embedding.
        batch_norm: whether the gates are normalised over the batch.
    """

    def __init__(self, dims: Sequence[int], dim: int, batch_norm: bool = True) -> None:
        super().__init__()
        self.units = nn.ModuleList(GatedUnit(input_dim, dim, batch_norm) for input_dim in dims)

    def forward(self, pooled: Sequence[Tensor], present: Tensor) -> Tensor:
        """(N, experts, dim) unit vectors, from one vector for each expert; ``present`` is not needed."""
        return torch.stack([unit(rows) for unit, rows in zip(self.units, pooled, strict=True)], dim=1)


class CollaborativeExperts(nn.Module):
    """CE: each expert is gated by what it has in common with the experts that are there.

    An expert's vector is replaced as soon as it is gated, so later experts reason over gated versions of earlier ones.

    Args:
        dims: channels of each expert.
        dim: channels of its embedding.
        batch_norm: whether reasoning is normalised over the batch.
        layers: linear layers of the reasoning over a pair of experts.
        after: linear layers on the mean over the pairs.
        with_self: whether an expert also reasons with itself.
        activation: before each layer but the first.
    """

    def __init__(
        self,
        dims: Sequence[int],
        dim: int,
        batch_norm: bool = True,
        layers: int = 3,
        after: int = 0,
        with_self: bool = True,
        activation: type[nn.Module] = nn.Mish,
    ) -> None:
        super().__init__()
        self.with_self = with_self
        self.reduce = nn.ModuleList(nn.Linear(input_dim, dim) for input_dim in dims)
        self.pair = nn.Linear(2 * dim, dim)
        chain: list[nn.Module] = []
        for _ in range(layers - 1):
            chain += [_norm(dim, batch_norm), activation(), nn.Linear(dim, dim)]
        self.chain = nn.Sequential(*chain)
        self.after = nn.Sequential(*(layer for _ in range(after) for layer in (activation(), nn.Linear(dim, dim))))
        self.gates = nn.ModuleList(nn.Linear(dim, dim) for _ in dims)
        self.gate_norms = nn.ModuleList(GateNorm(dim) for _ in dims)
        self.mask_norms = nn.ModuleList(GateNorm(dim) for _ in dims)

    def forward(self, pooled: Sequence[Tensor], present: Tensor) -> Tensor:
        """(N, experts, dim) unit vectors, from one vector for each expert and ``present`` (N, experts)."""
        vectors = [functional.normalize(layer(rows), dim=1) for layer, rows in zip(self.reduce, pooled, strict=True)]
        there = present.to(vectors[0].dtype)  # (N, experts)
        for expert, vector in enumerate(vectors):
            partners = [other for other in range(len(vectors)) if self.with_self or other != expert]
            mask = torch.zeros_like(vector)
            for other in partners:
                reasoned = self.chain(self.pair(torch.cat([vector, vectors[other]], dim=1)))
                mask = mask + reasoned * there[:, [other]]
            mask = there[:, [expert]] * mask / there[:, partners].sum(dim=1, keepdim=True).clamp_min(1)
            gate = self.mask_norms[expert](self.after(mask)) + self.gate_norms[expert](self.gates[expert](vector))
            vectors[expert] = functional.normalize(vector * torch.sigmoid(gate), dim=1)
        return torch.stack(vectors, dim=1)


class ExpertTransformer(nn.Module):
    """MMT: a transformer over the rows of all experts; an expert's vector is its aggregate token in the last layer.

    Tokens are one for the whole video, and for each expert its pooled rows (the aggregate token) and its rows. A token
    is its content plus the embeddings of its expert and of its position: 0 for the first two, then 1 or more.

    Args:
        dims: channels of each expert.
        dim: channels inside and of an embedding.
        layers: number of transformer layers.
        heads: attention heads.
        hidden: hidden width of the feed-forward part.
        positions: number of positions; later rows have the last one.
        dropout: in attention and feed-forward.
    """

    def __init__(
        self, dims: Sequence[int], dim: int, layers: int, heads: int, hidden: int, positions: int, dropout: float
    ) -> None:
        super().__init__()
        norm = partial(nn.LayerNorm, eps=1e-12)
        self.reduce = nn.ModuleList(nn.Linear(input_dim, dim) for input_dim in dims)
        self.positions, self.kinds = nn.Embedding(positions, dim), nn.Embedding(1 + len(dims), dim)
        for table in (self.positions, self.kinds):
            nn.init.normal_(table.weight, std=0.02)
        self.norm = norm(dim)
        self.layers = nn.ModuleList(TransformerLayer(dim, heads, hidden, dropout, norm) for _ in range(layers))

    def forward(
        self, rows: Sequence[Tensor], there: Sequence[Tensor], pooled: Sequence[Tensor], places: Sequence[Tensor]
    ) -> Tensor:
        """(N, experts, dim) unit vectors.

        Args:
            rows: for each expert (N, T, its channels), anything where there is no row.
            there: for each expert (N, T) whether there is a row.
            pooled: for each expert (N, its channels), zeros where it is absent.
            places: for each expert (N, T) the position of each row, above the last position too.
        """
        video = pooled[0].new_zeros(len(pooled[0]), 1, self.norm.normalized_shape[0])
        contents, kinds, positions, allowed = [video], [0], [torch.zeros_like(places[0][:, :1])], []
        allowed.append(torch.ones_like(there[0][:, :1]))
        aggregates = []
        for number, layer in enumerate(self.reduce):
            aggregates.append(len(kinds))
            tokens = torch.cat([pooled[number].unsqueeze(1), rows[number]], dim=1)
            contents.append(functional.normalize(layer(tokens), dim=2))
            kinds += [1 + number] * tokens.shape[1]
            positions += [torch.zeros_like(places[number][:, :1]), places[number]]
            allowed += [there[number].any(dim=1, keepdim=True), there[number]]
        place = torch.cat(positions, dim=1).clamp(0, self.positions.num_embeddings - 1)
        kind = torch.tensor(kinds, device=place.device)
        x = self.norm(self.positions(place) + self.kinds(kind) + torch.cat(contents, dim=1))
        visible = torch.cat(allowed, dim=1)  # (N, tokens)
        for transformer in self.layers:
            x = transformer.dense(x, x, visible)  # type: ignore[operator]
        return functional.normalize(x[:, aggregates], dim=2)


class ExpertQueries(nn.Module):
    """The head of a modality that searches experts: a gated unit and a weight for each expert.

    The weights are a softmax over the experts.
    """

    def __init__(self, input_dim: int, experts: int, dim: int, batch_norm: bool = True) -> None:
        super().__init__()
        self.units = nn.ModuleList(GatedUnit(input_dim, dim, batch_norm) for _ in range(experts))
        self.weights = nn.Linear(input_dim, experts)

    def forward(self, x: Tensor) -> Tensor:
        """(N, experts · dim) the vectors of all experts, each as long as its weight, from (N, input_dim)."""
        vectors = torch.stack([unit(x) for unit in self.units], dim=1)
        weighted: Tensor = self.weights(x).softmax(dim=1).unsqueeze(2) * vectors
        return weighted.flatten(1)


class ExpertsEncoder(nn.Module):
    """The local encoder of a modality with experts, whose rows lie side by side.

    Row t of a sequence has row t of each expert in the expert's own channels, and NaN where it has no such row. An
    expert without any row is absent.

    Args:
        config: the experts and their fusion.
        dim: channels of the embedding of each expert; with ``concatenate`` of all together.
    """

    def __init__(self, config: ExpertsEncoderConfig, input_dim: int, dim: int) -> None:
        super().__init__()
        dims = list(config.experts.values())
        if sum(dims) != input_dim:
            named = ", ".join(f"{name} {width:,}" for name, width in config.experts.items())
            raise ValueError(f"the experts have {sum(dims):,} channels ({named}), but the rows have {input_dim:,}")
        self.config, self.dims, self.input_dim = config, dims, input_dim
        self.norms = nn.ModuleList(build_input_norm(config.input_norm, width) for width in dims)
        self.fusion: nn.Module
        if config.fusion == "mmt":
            hidden = config.feed_forward or 4 * dim
            self.fusion = ExpertTransformer(
                dims, dim, config.layers, config.heads, hidden, config.positions, config.dropout
            )
        elif config.fusion == "concatenate":
            from crossclr.models.encoders import MLPEncoder

            options = MLPEncoderConfig(blocks=config.layers, dropout=config.dropout, input_norm="none")
            self.fusion = MLPEncoder(options, input_dim, dim)
        else:
            kind = GatedExperts if config.fusion == "mee" else CollaborativeExperts
            self.fusion = kind(dims, dim, config.batch_norm)

    def forward(self, sequences: Ragged) -> Tensor:
        """(sequences, experts · dim) unit vectors, zeros where an expert is absent."""
        if sequences.dim != self.input_dim:
            raise ValueError(f"the experts have {self.input_dim} channels together, but rows have {sequences.dim}")
        values = _padded(sequences, next(self.parameters()).dtype)
        rows, there, pooled = [], [], []
        for block, norm in zip(torch.split(values, self.dims, dim=2), self.norms, strict=True):
            here = ~block[..., 0].isnan()  # (N, T)
            block = block.masked_fill(~here.unsqueeze(2), 0)
            if self.config.fusion == "mmt":
                block = _at(here, norm, block)
                pooled.append(_pool(block, here, self.config.pooling))
            else:
                pooled.append(_at(here.any(dim=1), norm, _pool(block, here, self.config.pooling)))
            rows.append(block)
            there.append(here)
        present = torch.stack([here.any(dim=1) for here in there], dim=1)  # (N, experts)
        if self.config.fusion == "concatenate":
            joined = Ragged(torch.cat(pooled, dim=1), torch.ones(len(values), dtype=torch.int64))
            out: Tensor = self.fusion(joined)
            return out
        if self.config.fusion == "mmt":
            vectors = self.fusion(rows, there, pooled, self._places(values))
        else:
            vectors = self.fusion(pooled, present)
        fused: Tensor = (vectors * present.unsqueeze(2)).flatten(1)
        return fused

    def _places(self, values: Tensor) -> list[Tensor]:
        """The position of each row: its number from 1, or with a rate its second from 2 (1 is an unknown time)."""
        row = torch.arange(values.shape[1], device=values.device).expand(values.shape[:2])
        rates = [self.config.rates.get(name) for name in self.config.experts]
        return [row + 1 if rate is None else 2 + ((row + 0.5) / rate).long() for rate in rates]


def _padded(sequences: Ragged, dtype: torch.dtype) -> Tensor:
    """(sequences, longest, channels) with NaN after the end of a sequence."""
    values, lengths = sequences.values.to(dtype), sequences.lengths
    longest = int(lengths.max())
    if bool((lengths == longest).all()):
        return values.view(len(lengths), longest, -1)
    padded = values.new_full((len(lengths), longest, values.shape[1]), torch.nan)
    padded[(torch.arange(longest) < lengths.unsqueeze(1)).to(values.device)] = values
    return padded


def _pool(block: Tensor, here: Tensor, how: str) -> Tensor:
    """(N, channels) the mean or the maximum of the rows (N, T, channels) that are there; zeros without any."""
    if block.shape[1] == 1:
        return block[:, 0]
    if how == "mean":
        return block.sum(dim=1) / here.sum(dim=1, keepdim=True).clamp_min(1)
    highest = block.masked_fill(~here.unsqueeze(2), -torch.inf).amax(dim=1)
    return highest.masked_fill(~here.any(dim=1, keepdim=True), 0)


def _at(here: Tensor, norm: nn.Module, rows: Tensor) -> Tensor:
    """The norm of the rows that are there; the others stay zero."""
    if bool(here.all()) or isinstance(norm, nn.Identity):
        normed: Tensor = norm(rows)
        return normed
    return torch.zeros_like(rows).index_put((here,), norm(rows[here]))
