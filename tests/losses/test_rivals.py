"""Each rival against its loop, and against another library where there is one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from crossclr.losses import CLIP, DCL, MILNCE, CrossCLR, MaxMargin, NTXent, SigLIP, build_loss
from tests.losses import reference

CASES: dict[str, tuple[Callable[[], nn.Module], Callable[..., torch.Tensor]]] = {
    "clip": (CLIP, reference.clip),
    "ntxent": (NTXent, reference.ntxent),
    "maxmargin": (MaxMargin, reference.maxmargin),
    "milnce": (MILNCE, reference.milnce),
    "dcl": (DCL, reference.dcl),
    "dcl at 0.5": (
        lambda: DCL(temperature=0.5, prior=0.3),
        lambda *z: reference.dcl(*z, temperature=0.5, prior=0.3),
    ),
    "siglip": (SigLIP, reference.siglip),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_equals_the_loop(name: str, repeated: bool, dtype: torch.dtype) -> None:
    build, loop = CASES[name]
    tolerance = 1e-6 if dtype == torch.float64 else 1e-4
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        size = int(torch.randint(1, 9, (), generator=generator))
        ids = torch.randint(0, 4, (size,), generator=generator) if repeated else torch.arange(size)
        exact = [torch.randn(size, 4, generator=generator).double().requires_grad_() for _ in range(2)]
        inputs = [z.detach().to(dtype).requires_grad_() for z in exact]
        loss_fn = build().double()
        value, expected = loss_fn(*inputs, ids=ids), loop(*exact, ids.tolist())
        assert value.detach().item() == pytest.approx(expected.detach().item(), rel=tolerance, abs=tolerance)
        value.backward()
        if expected.requires_grad:
            expected.backward()
        for mine, theirs in zip(inputs, exact, strict=True):
            wanted = torch.zeros_like(theirs) if theirs.grad is None else theirs.grad
            largest = max(1.0, float(wanted.abs().max()))
            assert (mine.grad.double() - wanted).abs().max() <= tolerance * largest


@pytest.mark.parametrize("temperature", [0.03, 0.07, 0.5])
def test_ntxent_equals_pytorch_metric_learning(temperature: float) -> None:
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    torch.manual_seed(0)
    za, zb = torch.randn(32, 16), torch.randn(32, 16)
    theirs = losses.NTXentLoss(temperature=temperature)(torch.cat([za, zb]), torch.arange(32).repeat(2))
    assert NTXent(temperature=temperature)(za, zb).item() == pytest.approx(theirs.item(), rel=1e-5)


def test_clip_equals_two_cross_entropies_and_learns_its_temperature() -> None:
    torch.manual_seed(0)
    za, zb = torch.randn(16, 8), torch.randn(16, 8)
    loss_fn = CLIP(temperature=0.1)
    loss = loss_fn(za, zb)
    loss.backward()
    log_scale = loss_fn.log_scale.detach().clone().requires_grad_()
    logits = log_scale.exp() * F.normalize(za, dim=1) @ F.normalize(zb, dim=1).T
    labels = torch.arange(16)
    plain = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
    plain.backward()
    torch.testing.assert_close(loss, plain)
    torch.testing.assert_close(loss_fn.log_scale.grad, log_scale.grad)
    assert CLIP(temperature=0.05, learnable=False).log_scale.requires_grad is False
    assert CLIP(temperature=0.05).temperature == pytest.approx(0.05)


def test_clip_and_ntxent_are_special_cases_of_crossclr() -> None:
    torch.manual_seed(0)
    za, zb = torch.randn(16, 8), torch.randn(16, 8)
    off = {"prune_threshold": None, "weight_scale": None, "temperature": 0.07}
    torch.testing.assert_close(CrossCLR(intra_weight=0, **off)(za, zb), CLIP(temperature=0.07)(za, zb).detach())
    torch.testing.assert_close(CrossCLR(intra_weight=1, **off)(za, zb), NTXent(temperature=0.07)(za, zb))


@pytest.mark.parametrize("name", ["clip", "ntxent", "milnce", "dcl"])
def test_softmax_losses_take_chunks(name: str) -> None:
    torch.manual_seed(0)
    za, zb = torch.randn(30, 8), torch.randn(30, 8)
    ids = torch.randint(0, 20, (30,))
    results = []
    for chunk in (None, 1, 7, 64):
        inputs = [z.clone().requires_grad_() for z in (za, zb)]
        loss = build_loss(name, chunk_size=chunk)(*inputs, ids=ids)
        loss.backward()
        results.append((loss.detach(), inputs[0].grad, inputs[1].grad))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=1e-5, atol=1e-6)


def test_siglip_learns_scale_and_bias() -> None:
    torch.manual_seed(0)
    loss_fn = SigLIP()
    loss_fn(torch.randn(5, 4), torch.randn(5, 4)).backward()
    assert loss_fn.log_scale.grad is not None
    assert loss_fn.bias.grad is not None
    assert loss_fn.temperature == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("clip", {"temperature": 0}, "temperature"),
        ("clip", {"temperature": 0.001}, "max_scale"),
        ("ntxent", {"temperature": -1}, "temperature"),
        ("milnce", {"chunk_size": 0}, "chunk_size"),
        ("dcl", {"prior": 1.0}, "prior"),
        ("dcl", {"prior": -0.1}, "prior"),
        ("maxmargin", {"margin": -1}, "margin"),
        ("siglip", {"temperature": 0}, "temperature"),
    ],
)
def test_bad_options_are_named(name: str, options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_loss(name, **options)


@pytest.mark.parametrize("name", ["CrossCLR", "cross-clr", "NT-Xent", "MIL-NCE", "SigLIP", "max_margin"])
def test_names_are_forgiving(name: str) -> None:
    assert isinstance(build_loss(name), nn.Module)


def test_unknown_names_and_options_are_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"no loss 'clop'; did you mean 'clip'\?"):
        build_loss("clop")
    with pytest.raises(ValueError, match=r"no loss 'xyz'; there are: crossclr, clip"):
        build_loss("xyz")
    with pytest.raises(ValueError, match=r"maxmargin has no option 'temperature'; there are: margin"):
        build_loss("maxmargin", temperature=0.1)
