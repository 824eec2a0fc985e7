"""Gradients against finite differences; inference mode, embeddings of any length, huge options, losses of a user."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from crossclr.losses import CrossCLR, build_loss
from crossclr.losses.names import LOSS_PATHS, printed_options

CASES: dict[str, dict[str, object]] = {name: {"temperature": 0.3} for name in LOSS_PATHS}
CASES["maxmargin"] = {"margin": 1.3}
CASES["coot"] = {"margin": 1.3}
CASES["crossclr sum"] = {"temperature": 0.3, "intra_mode": "sum", "self_logit": "zero"}
CASES["crossclr positives"] = {"temperature": 0.3, "extra_positives": 2, "prune_threshold": 0.5, "weight_scale": 0.1}
CASES["crossclr similar"] = {
    "temperature": 0.3,
    "near_copies": 0.2,
    "shared_positives": 0.3,
    "sharing_temperature": 0.5,
}
CASES["crossclr printed"] = printed_options("equation") | {
    "temperature": 0.3,
    "extra_positives": 1,
    "prune_threshold": 0.2,
}
CASES["crossclr queue"] = {"temperature": 0.3, "queue_size": 9}
pytestmark = pytest.mark.filterwarnings("ignore:pruning by")


def batch(count: int = 3, size: int = 4, seed: int = 0) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    names = ("video", "text", "audio")[:count]
    z = {name: torch.randn(size, 3, generator=generator, dtype=torch.float64) for name in names}
    return z, {name: torch.randn(size, 3, generator=generator, dtype=torch.float64) + 0.5 for name in names}


def make(case: str, chunk_size: int | None) -> nn.Module:
    chunks = {} if case == "coot" or chunk_size is None else {"chunk_size": chunk_size}
    return build_loss(case.split()[0], **CASES[case], **chunks).double()


@pytest.mark.parametrize("chunk_size", [None, 2])
@pytest.mark.parametrize("case", CASES)
def test_gradients_against_finite_differences(case: str, chunk_size: int | None) -> None:
    z, x = batch()
    ids, present = torch.tensor([0, 1, 2, 1]), {"audio": torch.tensor([True, True, False, True])}
    loss_fn = make(case, chunk_size)
    older = batch(seed=1)
    loss_fn(older[0], features=older[1], ids=torch.arange(4) + 2)
    state = {name: value.clone() for name, value in loss_fn.state_dict().items()}

    def value(*rows: Tensor) -> Tensor:
        loss_fn.load_state_dict(state)  # a call moves the queue on
        return loss_fn(dict(zip(z, rows, strict=True)), features=x, ids=ids, present=present)

    assert torch.autograd.gradcheck(value, tuple(rows.clone().requires_grad_() for rows in z.values()))


@pytest.mark.parametrize("name", LOSS_PATHS)
def test_a_second_derivative_is_refused(name: str) -> None:
    z, x = batch(2)
    video = z["video"].clone().requires_grad_()
    loss = build_loss(name).double()({**z, "video": video}, features=x)
    with pytest.raises(RuntimeError, match=r"differentiable once; .* without create_graph=True"):
        torch.autograd.grad(loss, video, create_graph=True)


@pytest.mark.parametrize("case", [*LOSS_PATHS, "crossclr queue"])
def test_a_loss_first_called_in_inference_mode_can_be_trained(case: str) -> None:
    z, x = batch(2)
    loss_fn, plain = make(case, None), make(case, None)
    with torch.inference_mode():
        first = loss_fn(z, features=x)
    assert first == plain(z, features=x)
    leaves = {name: rows.clone().requires_grad_() for name, rows in z.items()}
    loss = loss_fn(leaves, features=x)
    loss.backward()
    assert torch.equal(loss.detach(), plain(z, features=x).detach())
    assert all(leaf.grad is not None for leaf in leaves.values())


@pytest.mark.parametrize("case", [*LOSS_PATHS, "crossclr queue"])
@pytest.mark.parametrize("length", [1e20, 3e37, 1e-13, 1e-30, 1e-40])
def test_embeddings_of_any_finite_length_are_accepted(case: str, length: float) -> None:
    z, x = ({name: rows.float() for name, rows in part.items()} for part in batch(2))
    wanted = make(case, None)(z, features=x)
    long = {name: rows * length for name, rows in z.items()}
    torch.testing.assert_close(make(case, None)(long, features=x).detach(), wanted.detach(), rtol=1e-4, atol=1e-5)


def test_gradients_of_tiny_embeddings_are_finite_and_point_the_same_way() -> None:
    z, x = batch(2)
    plain, tiny = ({n: (rows * scale).requires_grad_() for n, rows in z.items()} for scale in (1.0, 1e-30))
    for leaves in (plain, tiny):
        make("crossclr", None)(leaves, features=x).backward()
    for name in z:
        assert torch.isfinite(tiny[name].grad).all()
        directions = (torch.nn.functional.normalize(leaves[name].grad, dim=1) for leaves in (plain, tiny))
        torch.testing.assert_close(*directions)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queue_size": 10**12}, "queue_size must be a whole number of at least 0 and at most 10,000,000"),
        ({"queue_size": 10**400}, "queue_size .* got a whole number of 401 digits"),
        ({"temperature": 1e-300}, "temperature must be a number at least 1e-05"),
        ({"temperature": 10**400}, "temperature"),
        ({"intra_weight": float("inf")}, "intra_weight .* at most 1e\\+06, got inf"),
        ({"weight_scale": 1e-300}, "weight_scale"),
        ({"positive_weight": 1e30}, "positive_weight"),
        ({"chunk_size": 10**400}, None),
        ({"extra_positives": 10**400}, None),
    ],
)
def test_huge_options_get_one_clear_error_or_do_no_harm(options: dict[str, object], message: str | None) -> None:
    z, x = batch(2)
    if message is None:
        assert CrossCLR(**options)(z, features=x).isfinite()  # type: ignore[arg-type]
        return
    with pytest.raises(ValueError, match=message) as found:
        CrossCLR(**options)  # type: ignore[arg-type]
    assert len(str(found.value)) < 200


@pytest.mark.slow
def test_importing_the_losses_does_not_import_the_compiler() -> None:
    code = "import sys, torch; before = 'torch._dynamo' in sys.modules; "
    code += "from crossclr.losses.names import LOSS_PATHS, loss_class; [loss_class(name) for name in LOSS_PATHS]; "
    code += "print(before, 'torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, after = done.stdout.split()
    assert after == before == "False"


class Mine(nn.Module):
    """A loss of a user: the same call, nothing else."""

    def __init__(self, power: float = 2.0) -> None:
        super().__init__()
        self.power = power

    def forward(self, za, zb, a=None, b=None, ids=None):
        return (za - zb).abs().pow(self.power).mean()


def test_a_loss_of_your_own_is_built_by_its_place() -> None:
    place = f"{__name__}:Mine"
    loss_fn = build_loss(place, power=1.0)
    assert loss_fn(torch.ones(2, 3), torch.zeros(2, 3)) == 1
    with pytest.raises(ValueError, match=r"has no option 'pover'; did you mean 'power'\?"):
        build_loss(place, pover=1.0)
    for wrong, message in (
        ("no_such_package:Mine", "No module named 'no_such_package'"),
        (f"{__name__}:Yours", "has no attribute 'Yours'"),
        ("math:sqrt", "is not a class that inherits from torch.nn.Module"),
    ):
        with pytest.raises(ValueError, match=message):
            build_loss(wrong)
