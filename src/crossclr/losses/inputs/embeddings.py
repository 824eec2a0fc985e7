"""What every loss checks before it computes anything."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


class NotFiniteError(ValueError):
    """A matrix holds NaN or infinity; training turns this into advice."""


@dataclass(frozen=True)
class Pair:
    """Checked embeddings of one batch: unit rows in float32 or float64, with ids or None."""

    za: Tensor  # (N, D)
    zb: Tensor  # (N, D)
    ids: Tensor | None  # (N,) int64


def check_pair(za: Tensor, zb: Tensor, ids: Tensor | None = None) -> Pair:
    """Check shapes, values and ids; L2-normalise. Half precision is computed in float32."""
    check_matrix("za", za)
    check_matrix("zb", zb)
    if za.shape != zb.shape:
        raise ValueError(
            f"za and zb must have the same shape (N, D): za is {tuple(za.shape)}, zb is {tuple(zb.shape)}; "
            "row i of one goes with row i of the other"
        )
    if za.device != zb.device:
        raise ValueError(f"za is on {za.device} and zb on {zb.device}; move both to one device")
    if ids is not None:
        ids = check_ids(ids, len(za)).to(za.device)
    dtype = compute_dtype(za, zb)
    return Pair(F.normalize(za.to(dtype), dim=1), F.normalize(zb.to(dtype), dim=1), ids)


def full_precision(za: Tensor) -> torch.autocast:
    """Switch autocast off for a loss: softmax at small temperatures needs the digits."""
    if not isinstance(za, Tensor):
        raise ValueError(f"za must be a torch tensor, got {type(za).__name__}")
    return torch.autocast(za.device.type, enabled=False)


def check_features(name: str, features: Tensor | None, like: Tensor, needed_for: str, switch_off: str) -> Tensor:
    """Input features that a loss cannot do without: (N, Dx), finite. Returns their unit rows, detached."""
    if features is None:
        raise ValueError(
            f"{name} is missing: the input features of the batch, (N, D{name}), are needed for {needed_for}; "
            f"pass them, or switch that off with {switch_off}"
        )
    check_matrix(name, features)
    if len(features) != len(like):
        raise ValueError(
            f"{name} has {len(features)} rows but the embeddings have {len(like)}; one row for each sample"
        )
    features = features.detach().to(like.device)
    return F.normalize(features.to(compute_dtype(features)), dim=1)


def check_matrix(name: str, matrix: Tensor) -> None:
    """A floating-point (N, D) tensor with N, D >= 1 and neither NaN nor inf."""
    if not isinstance(matrix, Tensor):
        raise ValueError(f"{name} must be a torch tensor, got {type(matrix).__name__}")
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(f"{name} must have shape (N, D) with N and D at least 1, got {tuple(matrix.shape)}")
    if not matrix.is_floating_point():
        raise ValueError(f"{name} must be floating point, got {matrix.dtype}")
    if not bool(torch.isfinite(matrix.detach().sum())):  # one pass; a sum may also overflow, so look closely only then
        bad = (~torch.isfinite(matrix.detach())).any(dim=1).nonzero().flatten()
        if len(bad):
            raise NotFiniteError(
                f"{name} holds NaN or inf in {len(bad)} of {len(matrix)} rows; the first is row {int(bad[0])}"
            )


def check_ids(ids: Tensor, rows: int) -> Tensor:
    """Integer ids, one for each row."""
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        found = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
        raise ValueError(f"ids must be a tensor of integers, got {found}")
    if ids.shape != (rows,):
        raise ValueError(f"ids must have shape ({rows},), one for each row of za, got {tuple(ids.shape)}")
    return ids.to(torch.int64)


def check_number(name: str, value: object, low: float, high: float = math.inf, above: bool = False) -> float:
    """A finite number within [low, high], or (low, high] where ``above`` is set."""
    truth = isinstance(value, bool)  # which Python takes for a number
    if isinstance(value, numbers.Real) and not truth:
        number = float(value)
        if low <= number <= high and number != math.inf and not (above and number == low):
            return number
    least = "above" if above else "at least"
    most = "" if high == math.inf else f" and at most {high:g}"
    raise ValueError(f"{name} must be a number {least} {low:g}{most}, got {value!r}")


def check_count(name: str, value: object, low: int) -> int:
    """A whole number of at least ``low``."""
    truth = isinstance(value, bool)
    if isinstance(value, numbers.Integral) and not truth and int(value) >= low:
        return int(value)
    raise ValueError(f"{name} must be a whole number of at least {low}, got {value!r}")


def check_choice(name: str, value: str, choices: Mapping[str, object] | tuple[str, ...]) -> str:
    """One of a few words."""
    if value not in tuple(choices):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return value


def check_chunk_size(chunk_size: int | None) -> int | None:
    """None, or how many anchors are compared at a time."""
    return None if chunk_size is None else check_count("chunk_size", chunk_size, 1)


def compute_dtype(*tensors: Tensor) -> torch.dtype:
    """float64 where any tensor has it, else float32: softmax at small temperatures needs it."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
