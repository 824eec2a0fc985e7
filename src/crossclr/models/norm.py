"""Normalisation of rows: COOT's layer norm, standardised channels, and the choice of an input norm."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from crossclr.models.model_config import InputNorm

# Elements handled at a time on the CPU: a chunk that stays in cache.
_CHUNK_ELEMENTS = 1 << 18


def _chunk_rows(x: Tensor) -> int:
    return max(1, _CHUNK_ELEMENTS // x.shape[1]) if x.device.type == "cpu" else max(1, x.shape[0])


def _centred(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows minus their mean, and the unbiased standard deviation, in at least float32."""
    wide = x if x.dtype == torch.float64 else x.float()
    centred = wide - wide.mean(1, keepdim=True)  # (rows, dim)
    variance = centred.square().sum(1, keepdim=True) / (x.shape[1] - 1)
    return centred, variance.sqrt()  # (rows, 1)


class _CootNormFunction(torch.autograd.Function):
    """Keeps only its input for the backward pass; composed operations would keep five tensors of its size."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        ctx.save_for_backward(x, gain)
        ctx.eps = eps
        out = torch.empty_like(x, dtype=x.dtype if gain is None else torch.promote_types(x.dtype, gain.dtype))
        step = _chunk_rows(x)
        for start in range(0, x.shape[0], step):
            centred, std = _centred(x[start : start + step])
            centred.mul_(1 / (std + eps))
            out[start : start + step] = centred if gain is None or bias is None else centred.mul_(gain).add_(bias)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, gain = ctx.saved_tensors
        dim, step = x.shape[1], _chunk_rows(x)
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        grad_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        grad_gain = torch.zeros(dim, dtype=wide, device=x.device)
        grad_bias = torch.zeros(dim, dtype=wide, device=x.device)
        for start in range(0, x.shape[0], step):
            part = slice(start, start + step)
            centred, std = _centred(x[part])
            inverse = 1 / (std + ctx.eps)  # (rows, 1)
            g = grad[part].to(wide)
            if gain is not None:
                grad_bias += g.sum(0)
                grad_gain += (centred * inverse).mul_(g).sum(0)
                g = g * gain
            if grad_x is None:
                continue
            projection = (g * centred).sum(1, keepdim=True)  # (rows, 1)
            # d std / d x is centred / ((dim - 1) std); a constant row has no slope.
            slope = torch.where(std > 0, projection * inverse.square() / ((dim - 1) * std), 0.0)
            grad_x[part] = (g - g.mean(1, keepdim=True)).mul_(inverse).sub_(centred.mul_(slope))
        if gain is None:
            return grad_x, None, None, None
        return grad_x, grad_gain.to(gain.dtype), grad_bias.to(gain.dtype), None


class CootNorm(nn.Module):
    """COOT's layer norm: ``(x - mean) / (std + eps) * gain + bias`` with the unbiased ``std``.

    It differs from torch's: the divisor is N - 1 and ``eps`` is added to the deviation, not to the variance.
    """

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        if dim < 2:
            raise ValueError(f"CootNorm needs at least 2 channels, got {dim}: a single number has no deviation")
        self.gain = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Rows (..., dim) to rows of the same shape."""
        rows = x.reshape(-1, x.shape[-1])
        out: Tensor = _CootNormFunction.apply(rows, self.gain, self.bias, self.eps)  # type: ignore[no-untyped-call]
        return out.view(x.shape)

    def then(self, linear: nn.Linear, x: Tensor) -> Tensor:
        """``linear(norm(x))`` for rows (rows, dim), with gain and bias multiplied into the linear map.

        Input features need no gradient, and without gain and bias the normalised rows need none either. This saves one
        matrix product of the backward pass.
        """
        rows: Tensor = _CootNormFunction.apply(x, None, None, self.eps)  # type: ignore[no-untyped-call]
        return functional.linear(rows, linear.weight * self.gain, linear.bias + linear.weight @ self.bias)


class UnitNorm(nn.Module):
    """Each row scaled to the length √dim, so that its channels are about 1 in size; a zero row stays zero.

    At length 1 the channels would be tiny compared with the bias of the next layer, and all rows would start similar.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Rows (..., dim) to rows of the same shape."""
        return functional.normalize(x, dim=-1) * math.sqrt(x.shape[-1])


def build_input_norm(name: InputNorm, dim: int) -> nn.Module:
    """The input norm with this name in the config."""
    if name == "coot":
        return CootNorm(dim)
    if name == "layer":
        return nn.LayerNorm(dim)
    if name == "standard":
        return StandardNorm(dim)
    return UnitNorm() if name == "l2" else nn.Identity()


LEAST = 1e-6  # a constant channel becomes 0 and is not amplified


class StandardNorm(nn.Module):
    """``(x - mean) / deviation`` of each channel over the training samples; both are set once, before training.

    The features of some experts are all similar: speech embeddings have cosines of about 0.95. A norm of single rows
    does not change that, and an encoder spends its first epochs learning to tell them apart.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("deviation", torch.ones(dim))
        self._sums: list[Tensor] | None = None  # count, sum and sum of squares while it observes

    def forward(self, x: Tensor) -> Tensor:
        """Rows (..., dim) to rows of the same shape."""
        if self._sums is not None:
            rows = x.detach().reshape(-1, x.shape[-1]).double()
            self._sums[0] += len(rows)
            self._sums[1] += rows.sum(0)
            self._sums[2] += rows.square().sum(0)
        return (x - self.mean.to(x.dtype)) / self.deviation.to(x.dtype)

    def observe(self) -> None:
        """Start to observe the rows that pass through."""
        zeros = torch.zeros_like(self.mean, dtype=torch.float64)
        self._sums = [zeros.new_zeros(()), zeros, zeros.clone()]

    def fit(self) -> None:
        """Set mean and deviation from the observed rows; without any, nothing changes."""
        if self._sums is not None and self._sums[0] > 0:
            count, total, squares = self._sums
            mean = total / count
            deviation = (squares / count - mean.square()).clamp_min(0).sqrt()
            self.mean.copy_(mean)
            self.deviation.copy_(torch.where(deviation > LEAST * mean.abs().clamp_min(1.0), deviation, 1.0))
        self._sums = None
