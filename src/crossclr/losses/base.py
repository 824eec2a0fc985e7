"""What all losses share: one call for any number of named modalities, its checks, and the pairs that are compared."""

import itertools
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from crossclr.errors import CrossCLRError
from crossclr.losses.names import PairsOption, check_count, check_pairs, check_temperature
from crossclr.models.similarity import paired_similarities, similarity_matrix

Rows = Mapping[str, "Tensor | None"]


class NotFiniteError(CrossCLRError, ValueError):
    """A matrix holds NaN or infinity; training catches this and suggests a fix."""


class Loss(nn.Module):
    """A loss between the embeddings of several modalities. Samples may lack some modalities.

    Args:
        pairs: ``"all"`` compares every modality with every other; ``{"text": ["video", "audio"]}`` compares text with
            video and with audio only; ``{"text": {"video": 1.0, "audio": 0.5}}`` gives weights. The loss is the
            weighted mean over the pairs; a pair that no sample of the batch has is omitted.
        chunk_size: anchors compared at a time; limits memory and does not change the result.

    Inputs of a call:
        - **embeddings**: modality -> (N, D); row i of each belongs to sample i. The loss normalises them.
        - **features**: modality -> (N, Dx) input features; losses without ``needs_features`` ignore them.
        - **ids**: (N,) integers; samples with equal ids are the same item and never negatives of each other.
        - **present**: modality -> (N,) booleans, which samples have it; all samples have a modality that is not listed.
          Rows of absent samples may hold anything, even NaN.
        - **group**: processes that all hold these rows and share the work on them; :class:`Distributed` passes it.

        For two modalities there is a shorter form, ``loss(za, zb, a, b, ids)``, which names them ``a`` and ``b``.
    """

    feature_uses: Mapping[str, str] = {}
    """What the input features are needed for, and the option that switches it off."""
    experts: int = 1
    """Number of experts whose weighted vectors lie side by side in a row; see `crossclr.models.similarity`."""

    def __init__(self, pairs: PairsOption = "all", chunk_size: int | None = None) -> None:
        super().__init__()
        self.chunk_size = None if chunk_size is None else check_count("chunk_size", chunk_size, 1)
        self.pair_weights = check_pairs(pairs)

    @property
    def needs_features(self) -> bool:
        """Whether a call needs the input features."""
        return bool(self.feature_uses)

    def forward(
        self,
        za: Tensor | Rows,
        zb: Tensor | None = None,
        a: Tensor | None = None,
        b: Tensor | None = None,
        ids: Tensor | None = None,
        *,
        features: Rows | None = None,
        present: Rows | None = None,
        group: Any = None,
    ) -> Tensor:
        """Scalar loss of a batch; see the class for the arguments."""
        inputs = read_inputs(za, zb, a, b, ids, features, present)
        dynamo = sys.modules.get("torch._dynamo")  # importing the compiler takes seconds
        # torch.compile must not trace this, because control flow depends on values and buffers change their shape.
        evaluate = self._evaluate if dynamo is None else dynamo.disable(self._evaluate)
        loss: Tensor = evaluate(inputs, group)
        return loss

    forward._torchdynamo_disable = True  # type: ignore[attr-defined]

    def _evaluate(self, inputs: "LossInputs", group: Any) -> Tensor:
        first = next(iter(inputs.embeddings.values()))
        device = first.device.type if isinstance(first, Tensor) and not first.is_meta else "cpu"
        with torch.autocast(device, enabled=False):  # a softmax at small temperatures needs float32 precision
            batch = check_inputs(inputs, self.feature_uses, self.pair_weights, group)
            used = {name for pair in batch.pairs for name in (pair.x, pair.y)}
            # A modality in no pair gets a gradient of zero instead of None, because DistributedDataParallel waits for
            # the gradient of every parameter.
            idle = [0 * rows.sum() for name, rows in batch.embeddings.items() if name not in used]
            return sum(idle, self.compute(batch))

    def scores(self, x: Tensor, y: Tensor, scale: Tensor | float = 1.0) -> Tensor:
        """(n, m) similarity of unit rows times a scale: the cosine, or the renormalised mean over the experts."""
        return similarity_matrix(x, y, self.experts, scale)

    def paired(self, x: Tensor, y: Tensor, scale: Tensor | float = 1.0) -> Tensor:
        """(n,) similarity of partners times a scale."""
        return paired_similarities(x, y, self.experts, scale)

    def compute(self, batch: "EmbeddedBatch") -> Tensor:
        """Scalar loss of checked unit rows: the weighted mean over the pairs of the batch, 0 without any."""
        raise NotImplementedError


class TemperatureLoss(Loss):
    """A loss that divides all cosines by a fixed temperature."""

    def __init__(self, temperature: float = 0.03, chunk_size: int | None = None, pairs: PairsOption = "all") -> None:
        super().__init__(pairs, chunk_size)
        self.temperature = check_temperature(temperature)


class PairwiseLoss(Loss):
    """A loss that is a mean over pairs of modalities, each computed from the samples that have both."""

    def compute(self, batch: "EmbeddedBatch") -> Tensor:
        """Scalar loss of checked unit rows: the weighted mean over the pairs of the batch, 0 without any."""
        total = next(iter(batch.embeddings.values())).new_zeros(())
        for pair in batch.pairs:
            x, y, ids = batch.embeddings[pair.x], batch.embeddings[pair.y], batch.ids
            if pair.both is not None:
                x, y, ids = x[pair.both], y[pair.both], None if ids is None else ids[pair.both]
            total = total + pair.weight * self.pair_loss(x, y, ids if batch.repeats else None, batch.group)
        return total / (sum(pair.weight for pair in batch.pairs) or 1)

    def pair_loss(self, x: Tensor, y: Tensor, ids: Tensor | None, group: Any = None) -> Tensor:
        """Scalar loss of two modalities: unit rows x and y (N, D), which are partners; ids (N,) if some are equal."""
        raise NotImplementedError


@dataclass(frozen=True)
class LossInputs:
    """The arguments of a call as mappings, with the name of each entry in errors."""

    embeddings: Rows
    features: Rows
    ids: Tensor | None
    present: Rows
    labels: Mapping[str, str]  # of the embeddings
    feature_labels: Mapping[str, str]
    positional: bool = False  # whether a pair was passed by position

    def __post_init__(self) -> None:
        """Raise for tensors without values, or stored in another form."""
        named = [(self.labels[name], rows) for name, rows in self.embeddings.items()]
        named += [(self.feature_labels[name], rows) for name, rows in self.features.items()]
        named += [(f"present[{name!r}]", mask) for name, mask in self.present.items()]
        for label, tensor in [*named, ("ids", self.ids)]:
            if isinstance(tensor, Tensor) and (tensor.layout != torch.strided or tensor.is_meta or tensor.is_nested):
                kind = "a nested tensor" if tensor.is_nested else f"{tensor.layout} on {tensor.device}"
                raise ValueError(f"{label} must be a dense tensor with values, got {kind}; convert it first")


def read_inputs(
    za: Tensor | Rows,
    zb: Tensor | None = None,
    a: Tensor | None = None,
    b: Tensor | None = None,
    ids: Tensor | None = None,
    features: Rows | None = None,
    present: Rows | None = None,
) -> LossInputs:
    """Convert ``loss(za, zb, a, b, ids)`` and ``loss({...}, features={...}, ...)`` to one form."""
    if not isinstance(za, Mapping):
        if features is not None:
            raise ValueError("features= goes with a mapping of embeddings; for a pair pass a= and b=")
        labels, feature_labels = {"a": "za", "b": "zb"}, {"a": "a", "b": "b"}
        return LossInputs({"a": za, "b": zb}, {"a": a, "b": b}, ids, present or {}, labels, feature_labels, True)
    if any(rows is not None for rows in (zb, a, b)):
        raise ValueError("embeddings by name come with features= by name, not with zb, a or b")
    names = list(za)
    if len(names) < 2:
        raise ValueError(f"a loss compares at least two modalities, got {names}")
    for name in names:
        if not isinstance(name, str) or not name or "." in name or hasattr(nn.ModuleDict, name):
            raise ValueError(f"{name!r} cannot name a modality; choose a word without a dot, such as 'video'")
    for argument, rows in (("features", features), ("present", present)):
        unknown = set(rows or {}) - set(names)
        if unknown:
            raise ValueError(f"{argument} has {sorted(unknown)}, but the embeddings are of {names}")
    labels, feature_labels = ({n: f"the {what} of {n!r}" for n in names} for what in ("embeddings", "features"))
    return LossInputs(za, features or {}, ids, present or {}, labels, feature_labels)


@dataclass(frozen=True)
class Pair:
    """Two modalities that are compared."""

    x: str
    y: str
    weight: float  # share in the weighted mean over the pairs
    both: Tensor | None  # (N,) which samples have both; None: all of them


@dataclass(frozen=True)
class EmbeddedBatch:
    """One checked batch of samples in several modalities."""

    inputs: LossInputs
    rows: int  # number of samples N, present or not
    # modality -> (N, D) unit rows in float32 or float64; zeros where a sample lacks the modality
    embeddings: dict[str, Tensor]
    present: dict[str, Tensor | None]  # modality -> (N,) which samples have it; None: all of them
    ids: Tensor | None  # (N,) int64, or None if all samples are different items
    repeats: bool  # whether an id occurs twice: if not, a diagonal replaces a mask
    # modality -> (N, Dx) unit rows of the inputs, without gradient; empty if the loss needs none
    features: dict[str, Tensor]
    pairs: list[Pair]  # that at least one sample has
    group: Any = None  # the processes that share the work; None: there is only this one


def check_inputs(
    inputs: LossInputs,
    feature_uses: Mapping[str, str],
    pair_weights: Mapping[tuple[str, str], float] | None,
    group: Any = None,
) -> EmbeddedBatch:
    """Check shapes, values and ids, and normalise the rows. Half precision becomes float32."""
    exact = any(isinstance(rows, Tensor) and rows.dtype == torch.float64 for rows in inputs.embeddings.values())
    (first, here), *_ = ((rows, inputs.labels[name]) for name, rows in inputs.embeddings.items())
    unit: dict[str, Tensor] = {}
    present: dict[str, Tensor | None] = {}
    for name, rows in inputs.embeddings.items():
        label, mask = inputs.labels[name], inputs.present.get(name)
        if isinstance(first, Tensor) and isinstance(rows, Tensor):
            if rows.shape != first.shape:
                raise ValueError(
                    f"{here} and {label} must have the same shape (N, D): {here} is {tuple(first.shape)}, {label} is "
                    f"{tuple(rows.shape)}; row i of one goes with row i of the other"
                )
            if rows.device != first.device:
                raise ValueError(f"{here} is on {first.device} and {label} on {rows.device}; use one device")
            if mask is not None:
                mask = _check_present(name, mask, rows)
        unit[name], present[name] = unit_rows(label, rows, exact, mask), mask
    ids = inputs.ids
    if ids is not None:
        if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise ValueError(f"ids must be a tensor of integers, got {getattr(ids, 'dtype', type(ids).__name__)}")
        if ids.shape != (len(unit[name]),):
            raise ValueError(
                f"ids must have shape ({len(unit[name])},), one for each row of {here}, got {tuple(ids.shape)}"
            )
        ids = ids.to(unit[name].device, torch.int64)
    features = _check_features(inputs, unit, present, feature_uses) if feature_uses else {}
    pairs = pairs_of(present, pair_weights)
    repeats = ids is not None and len(torch.unique(ids)) < len(ids)
    return EmbeddedBatch(inputs, len(unit[name]), unit, present, ids, repeats, features, pairs, group)


def _check_features(
    inputs: LossInputs,
    embeddings: Mapping[str, Tensor],
    present: Mapping[str, Tensor | None],
    feature_uses: Mapping[str, str],
) -> dict[str, Tensor]:
    """The input features that a loss needs, checked, as unit rows without gradient."""
    features = {}
    for name, like in embeddings.items():
        label, rows, mask = inputs.feature_labels[name], inputs.features.get(name), present[name]
        if rows is None:
            if mask is not None and not bool(mask.any()):
                continue  # no sample has this modality
            needed_for, switch_off = " and ".join(feature_uses), " and ".join(feature_uses.values())
            raise ValueError(
                f"{label} is missing: the input features of the batch, one row for each sample, are needed for "
                f"{needed_for}; pass them, or switch that off with {switch_off}"
            )
        if isinstance(rows, Tensor):
            if rows.shape[:1] != like.shape[:1]:
                raise ValueError(
                    f"{label} has {len(rows)} rows but the embeddings have {len(like)}; one for each sample"
                )
            rows = rows.detach().to(like.device)
        features[name] = unit_rows(label, rows, getattr(rows, "dtype", None) == torch.float64, mask)
    return features


def _check_present(name: str, present: Tensor, like: Tensor) -> Tensor | None:
    if not isinstance(present, Tensor) or present.dtype != torch.bool or present.shape != like.shape[:1]:
        got = f"{present.dtype} {tuple(present.shape)}" if isinstance(present, Tensor) else type(present).__name__
        raise ValueError(f"present[{name!r}] must be a tensor of {len(like)} booleans, got {got}")
    return None if bool(present.all()) else present.to(like.device)


def unit_rows(label: str, rows: Tensor | None, exact: bool, present: Tensor | None = None) -> Tensor:
    """Check a matrix and normalise its rows, of any finite length; absent rows become zeros, whatever they hold."""
    if not isinstance(rows, Tensor):
        raise ValueError(f"{label} must be a torch tensor, got {type(rows).__name__}")
    if rows.ndim != 2 or 0 in rows.shape:
        raise ValueError(f"{label} must have shape (N, D) with N and D at least 1, got {tuple(rows.shape)}")
    if not rows.is_floating_point():
        raise ValueError(f"{label} must be floating point, got {rows.dtype}")
    rows = rows.to(torch.float64 if exact else torch.float32)
    if present is not None:
        rows = torch.where(present.unsqueeze(1), rows, 0)
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)  # (N, 1)
    extreme = ~((lengths >= 1e-12) & torch.isfinite(lengths))  # or NaN, or zeros
    if bool(extreme.any()):  # the squares of 1e20 overflow float32, those of 1e-30 vanish
        bad = (~torch.isfinite(rows.detach())).any(dim=1).nonzero().flatten()
        if len(bad):
            raise NotFiniteError(
                f"{label} holds NaN or inf in {len(bad)} of {len(rows)} rows; the first is row {int(bad[0])}"
            )
        values, largest = rows.detach(), rows.detach().abs().amax(dim=1, keepdim=True)
        scale = torch.where(extreme & (largest > 0), largest, 1)
        rows = values / scale + (rows - values) / scale.clamp(min=1e-12)  # the gradient of tiny rows stays finite
        lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / lengths.clamp_min(1e-12)


def pairs_of(present: Mapping[str, Tensor | None], weights: Mapping[tuple[str, str], float] | None) -> list[Pair]:
    """The chosen pairs that at least one sample of the batch has; None stands for all pairs."""
    pairs = []
    for (x, y), weight in (weights or dict.fromkeys(itertools.combinations(present, 2), 1.0)).items():
        for name in (x, y):
            if name not in present:
                raise ValueError(f"pairs names the modality {name!r}, but the batch has {list(present)}")
        masks = [mask for mask in (present[x], present[y]) if mask is not None]
        both = torch.stack(masks).all(dim=0) if masks else None
        if both is None or bool(both.any()):
            pairs.append(Pair(x, y, weight, both))
    return pairs


@dataclass(frozen=True)
class LossStats:
    """What happened in the last call: the mean over the modalities, and each of them.

    Args:
        pruned: share of the reference set that was pruned.
        effective: share of the anchors that decides the loss, 1 / (N Σw²).
        weight_ratio: largest over smallest anchor weight.
        queue_fill: share of the queue that is filled (0 without a queue).
        intra_share: intra-modal share of the denominator, averaged over anchors. Near 1 the positive no longer counts:
            lower ``intra_weight`` or ``queue_size``.
        min_keep_hit: whether ``min_keep`` limited the pruning, for any modality.
        modalities: name -> what happened to it.
    """

    pruned: float = 0.0
    effective: float = 1.0
    weight_ratio: float = 1.0
    queue_fill: float = 0.0
    intra_share: float = 0.0
    min_keep_hit: bool = field(default=False, kw_only=True)
    modalities: Mapping[str, "LossStats"] = field(default_factory=dict, kw_only=True)
