from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossclr.models import norm
from crossclr.models.norm import CootNorm, build_input_norm


def reference(x: torch.Tensor, gain: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    std = x.var(-1, unbiased=True, keepdim=True).sqrt()
    return (x - x.mean(-1, keepdim=True)) / (std + 1e-6) * gain + bias


def filled(dim: int, dtype: torch.dtype) -> CootNorm:
    module = CootNorm(dim).to(dtype)
    with torch.no_grad():
        module.gain.normal_()
        module.bias.normal_()
    return module


@given(rows=st.integers(1, 9), dim=st.integers(2, 7), scale=st.sampled_from([1e-6, 1.0, 100.0]))
def test_values_and_gradients_are_those_of_the_composed_formula(rows: int, dim: int, scale: float) -> None:
    torch.manual_seed(rows * 31 + dim)
    module = filled(dim, torch.float64)
    x = (torch.randn(rows, dim, dtype=torch.float64) * scale).requires_grad_()
    upstream = torch.randn(rows, dim, dtype=torch.float64)
    parameters = [x, module.gain, module.bias]
    expected = reference(*parameters)
    expected_gradients = torch.autograd.grad(expected, parameters, upstream)
    got = module(x)
    torch.testing.assert_close(got, expected, atol=1e-11, rtol=1e-11)
    for mine, theirs in zip(torch.autograd.grad(got, parameters, upstream), expected_gradients, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-10, rtol=1e-8)


def test_gradient_is_the_numerical_one() -> None:
    torch.manual_seed(0)
    module = filled(5, torch.float64)
    x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(module, (x,))


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module = filled(4, torch.float64)
    x = torch.randn(23, 4, dtype=torch.float64, requires_grad=True)
    whole = module(x)
    whole_gradient = torch.autograd.grad(whole.square().sum(), [x, module.gain, module.bias])
    monkeypatch.setattr(norm, "_CHUNK_ELEMENTS", 12)  # three rows at a time
    parts = module(x)
    assert torch.equal(parts, whole)
    for mine, theirs in zip(
        torch.autograd.grad(parts.square().sum(), [x, module.gain, module.bias]), whole_gradient, strict=True
    ):
        torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("needs_gradient", [False, True])
def test_norm_then_linear_is_linear_of_norm(needs_gradient: bool) -> None:
    torch.manual_seed(0)
    module, linear = filled(6, torch.float64), torch.nn.Linear(6, 4, dtype=torch.float64)
    x = torch.randn(9, 6, dtype=torch.float64, requires_grad=needs_gradient)
    parameters = [module.gain, module.bias, linear.weight, linear.bias, *([x] if needs_gradient else [])]
    upstream = torch.randn(9, 4, dtype=torch.float64)
    expected = reference(x, module.gain, module.bias) @ linear.weight.T + linear.bias
    got = module.then(linear, x)
    torch.testing.assert_close(got, expected, atol=1e-12, rtol=1e-12)
    expected_gradients = torch.autograd.grad(expected, parameters, upstream)
    for mine, theirs in zip(torch.autograd.grad(got, parameters, upstream), expected_gradients, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-11, rtol=1e-11)


def test_constant_row_becomes_the_bias_and_has_a_finite_gradient() -> None:
    module = filled(4, torch.float32)
    x = torch.full((1, 4), 3.0, requires_grad=True)
    out = module(x)
    out.sum().backward()
    torch.testing.assert_close(out[0], module.bias)
    assert x.grad is not None
    assert bool(x.grad.isfinite().all())


def test_bfloat16_is_computed_in_float32() -> None:
    torch.manual_seed(0)
    module = filled(64, torch.float32)
    x = torch.randn(8, 64).bfloat16()
    half = CootNorm(64).bfloat16()
    half.load_state_dict(module.state_dict())
    out = half(x)
    assert out.dtype == torch.bfloat16
    expected = reference(x.float(), half.gain.float(), half.bias.float())
    torch.testing.assert_close(out.float(), expected, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize(
    ("name", "expected"), [("l2", [[0.6 * 2**0.5, 0.8 * 2**0.5]]), ("none", [[3.0, 4.0]]), ("layer", [[-1.0, 1.0]])]
)
def test_input_norms(name: str, expected: list[list[float]]) -> None:
    got = build_input_norm(name, 2)(torch.tensor([[3.0, 4.0]]))  # type: ignore[arg-type]
    torch.testing.assert_close(got, torch.tensor(expected), atol=1e-4, rtol=0)


def test_one_channel_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 channels"):
        CootNorm(1)
