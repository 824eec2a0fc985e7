"""The checked embeddings, features and ids of one batch, by modality."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Rows = Mapping[str, "Tensor | None"]


class NotFiniteError(ValueError):
    """A matrix holds NaN or infinity; training catches this and suggests a fix."""


@dataclass(frozen=True)
class EmbeddedBatch:
    """One batch of samples in several modalities."""

    rows: int  # number of samples N, present or not
    # modality -> (N, D) unit rows in float32 or float64; zeros where a sample lacks the modality
    embeddings: dict[str, Tensor]
    present: dict[str, Tensor | None]  # modality -> (N,) which samples have it; None: all of them
    ids: Tensor | None  # (N,) int64, or None if all samples are different items
    # modality -> (N, Dx) unit rows of the inputs, without gradient; empty if the loss needs none
    features: dict[str, Tensor]

    def both(self, x: str, y: str) -> Tensor | None:
        """(N,) which samples have both modalities; None: all of them."""
        return either_mask(self.present[x], self.present[y])


def either_mask(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Rows in both masks; None is a mask of all rows."""
    if first is None or second is None:
        return second if first is None else first
    return first & second


@dataclass(frozen=True)
class Call:
    """The arguments of a loss's call as mappings, with the name of each entry in errors."""

    embeddings: Rows
    features: Rows
    ids: Tensor | None
    present: Rows
    labels: Mapping[str, str]  # of the embeddings
    feature_labels: Mapping[str, str]
    positional: bool = False  # whether a pair was passed by position


def read_call(
    za: Tensor | Rows,
    zb: Tensor | None = None,
    a: Tensor | None = None,
    b: Tensor | None = None,
    ids: Tensor | None = None,
    features: Rows | None = None,
    present: Rows | None = None,
) -> Call:
    """Convert ``loss(za, zb, a, b, ids)`` and ``loss({...}, features={...}, ...)`` to one form."""
    if not isinstance(za, Mapping):
        if features is not None:
            raise ValueError("features= goes with a mapping of embeddings; for a pair pass a= and b=")
        labels, feature_labels = {"a": "za", "b": "zb"}, {"a": "a", "b": "b"}
        return Call({"a": za, "b": zb}, {"a": a, "b": b}, ids, present or {}, labels, feature_labels, True)
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
    return Call(
        za,
        features or {},
        ids,
        present or {},
        {name: f"the embeddings of {name!r}" for name in names},
        {name: f"the features of {name!r}" for name in names},
    )


def check_embeddings(call: Call) -> EmbeddedBatch:
    """Check shapes, values and ids, and normalise the rows. Half precision becomes float32."""
    names, labels = list(call.embeddings), call.labels
    tensors: dict[str, Tensor] = {}
    for name in names:
        tensors[name] = _check_matrix(labels[name], call.embeddings[name])
    first = tensors[names[0]]
    for name, tensor in tensors.items():
        if tensor.shape != first.shape:
            here, there = labels[names[0]], labels[name]
            raise ValueError(
                f"{here} and {there} must have the same shape (N, D): {here} is {tuple(first.shape)}, {there} is "
                f"{tuple(tensor.shape)}; row i of one goes with row i of the other"
            )
        if tensor.device != first.device:
            raise ValueError(
                f"{labels[names[0]]} is on {first.device} and {labels[name]} on {tensor.device}; use one device"
            )
    dtype = compute_dtype(*tensors.values())
    present = {name: _check_present(name, call.present.get(name), first) for name in names}
    unit = {name: unit_rows(labels[name], tensors[name].to(dtype), present[name]) for name in names}
    ids = None if call.ids is None else _check_ids(call.ids, labels[names[0]], len(first)).to(first.device)
    return EmbeddedBatch(len(first), unit, present, ids, {})


def check_features(call: Call, batch: EmbeddedBatch, needed_for: str, switch_off: str) -> EmbeddedBatch:
    """Check the input features that a loss needs and add them to the batch."""
    found = {}
    for name, like in batch.embeddings.items():
        label, rows, mask = call.feature_labels[name], call.features.get(name), batch.present[name]
        if rows is None:
            if mask is not None and not bool(mask.any()):
                continue  # no sample has this modality
            raise ValueError(
                f"{label} is missing: the input features of the batch, one row for each sample, are needed for "
                f"{needed_for}; pass them, or switch that off with {switch_off}"
            )
        rows = _check_matrix(label, rows)
        if len(rows) != len(like):
            raise ValueError(f"{label} has {len(rows)} rows but the embeddings have {len(like)}; one for each sample")
        rows = rows.detach().to(like.device)
        found[name] = unit_rows(label, rows.to(compute_dtype(rows)), mask)
    return EmbeddedBatch(batch.rows, batch.embeddings, batch.present, batch.ids, found)


def unit_rows(label: str, rows: Tensor, present: Tensor | None = None) -> Tensor:
    """Normalise rows of any finite length; absent rows become zeros, whatever they hold."""
    if present is not None:
        rows = torch.where(present.unsqueeze(1), rows, 0)
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)  # (N, 1)
    if not bool(torch.isfinite(lengths.detach().sum())):  # one pass; look closely only if something is wrong
        bad = (~torch.isfinite(rows.detach())).any(dim=1).nonzero().flatten()
        if len(bad):
            raise NotFiniteError(
                f"{label} holds NaN or inf in {len(bad)} of {len(rows)} rows; the first is row {int(bad[0])}"
            )
        rows = rows / rows.detach().abs().amax(dim=1, keepdim=True).clamp(min=1)  # squares of 1e20 overflow float32
        lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / lengths.clamp_min(1e-12)


def compute_dtype(*tensors: Tensor) -> torch.dtype:
    """float64 if any tensor has it, else float32, because a softmax at small temperatures needs the precision."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def _check_matrix(label: str, matrix: Tensor | None) -> Tensor:
    if not isinstance(matrix, Tensor):
        raise ValueError(f"{label} must be a torch tensor, got {type(matrix).__name__}")
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(f"{label} must have shape (N, D) with N and D at least 1, got {tuple(matrix.shape)}")
    if not matrix.is_floating_point():
        raise ValueError(f"{label} must be floating point, got {matrix.dtype}")
    return matrix


def _check_present(name: str, present: Tensor | None, like: Tensor) -> Tensor | None:
    if present is None:
        return None
    if not isinstance(present, Tensor) or present.dtype != torch.bool or present.shape != (len(like),):
        found = f"{present.dtype} {tuple(present.shape)}" if isinstance(present, Tensor) else type(present).__name__
        raise ValueError(f"present[{name!r}] must be a tensor of {len(like)} booleans, got {found}")
    return None if bool(present.all()) else present.to(like.device)


def _check_ids(ids: Tensor, label: str, rows: int) -> Tensor:
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        found = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
        raise ValueError(f"ids must be a tensor of integers, got {found}")
    if ids.shape != (rows,):
        raise ValueError(f"ids must have shape ({rows},), one for each row of {label}, got {tuple(ids.shape)}")
    return ids.to(torch.int64)
