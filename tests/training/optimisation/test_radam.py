import math

import numpy as np
import pytest
import torch

from crossclr.training.optimiser import RAdam, rectified_scale
from tests.support.references import coot_arrays


@pytest.fixture(scope="module")
def reference():
    return coot_arrays()


@pytest.mark.parametrize("name", ["scalar", "vector", "vector_wd"])
def test_trajectory_equals_coots(reference, name):
    part = {key: reference[f"radam/{name}/{key}"] for key in ("p", "a", "c", "exp_avg", "exp_avg_sq", "weight_decay")}
    start = torch.from_numpy(part["p"][0].copy())
    parameter = torch.nn.Parameter(start.clone())
    curvature, centre = torch.from_numpy(part["a"]), torch.from_numpy(part["c"])
    optimiser = RAdam(
        [parameter],
        lr=float(reference["radam/lr"]),
        betas=tuple(reference["radam/betas"].tolist()),
        eps=float(reference["radam/eps"]),
        weight_decay=float(part["weight_decay"]),
    )
    for step in range(12):
        optimiser.zero_grad()
        (0.5 * curvature * (parameter - centre) ** 2).sum().backward()
        optimiser.step()
        moved, expected = parameter.detach() - start, torch.from_numpy(part["p"][step + 1]) - start
        torch.testing.assert_close(moved, expected, atol=5e-7, rtol=0)
        state = optimiser.state[parameter]
        np.testing.assert_allclose(state["exp_avg"].numpy(), part["exp_avg"][step], rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(state["exp_avg_sq"].numpy(), part["exp_avg_sq"][step], rtol=1e-5, atol=1e-7)


def test_every_parameter_moves_like_a_loop_in_float64():
    """Many tensors at once, some of which join later: the bundled update is the rule of each alone."""
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(shape, dtype=torch.float64)) for shape in [(3,), (2, 4), (5,)]]
    plain = [parameter.detach().clone() for parameter in parameters]
    first, second, steps = [torch.zeros_like(p) for p in plain], [torch.zeros_like(p) for p in plain], [0, 0, 0]
    lr, beta1, beta2, eps, decay = 0.01, 0.9, 0.97, 1e-8, 0.05
    optimiser = RAdam(parameters, lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=decay)
    longest = 2 / (1 - beta2) - 1
    for step in range(20):
        for index, parameter in enumerate(parameters):
            late = index == 2 and step < 7
            parameter.grad = None if late else torch.randn_like(parameter)
            if late:
                continue
            steps[index] += 1
            t, gradient = steps[index], parameter.grad
            first[index] = beta1 * first[index] + (1 - beta1) * gradient
            second[index] = beta2 * second[index] + (1 - beta2) * gradient**2
            length = longest - 2 * t * beta2**t / (1 - beta2**t)
            if length >= 5:
                r = math.sqrt((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length))
                plain[index] = plain[index] - lr * decay * plain[index]
                step_size = lr * r * math.sqrt(1 - beta2**t) / (1 - beta1**t)
                plain[index] = plain[index] - step_size * first[index] / (second[index].sqrt() + eps)
        optimiser.step()
    for parameter, expected in zip(parameters, plain, strict=True):
        torch.testing.assert_close(parameter.detach(), expected, rtol=1e-12, atol=1e-14)


def test_first_five_steps_change_nothing_not_even_by_weight_decay():
    parameter = torch.nn.Parameter(torch.tensor([2.0]))
    optimiser = RAdam([parameter], weight_decay=0.5)
    for _ in range(5):
        parameter.grad = torch.ones(1)
        optimiser.step()
        assert parameter.item() == 2.0
    assert [rectified_scale(t, 0.56, 0.98) is None for t in range(1, 8)] == [True] * 5 + [False] * 2


def test_state_dict_continues_bit_equal():
    def make():
        return torch.nn.Parameter(torch.linspace(-1, 1, 6))

    def run(optimiser, parameter, start, stop):
        for step in range(start, stop):
            parameter.grad = torch.sin(parameter.detach() * (step + 1))
            optimiser.step()

    whole = make()
    run(RAdam([whole], lr=0.1), whole, 0, 12)
    halved = make()
    first = RAdam([halved], lr=0.1)
    run(first, halved, 0, 7)
    second = RAdam([halved], lr=0.1)
    second.load_state_dict(first.state_dict())
    run(second, halved, 7, 12)
    assert torch.equal(whole, halved)


@pytest.mark.parametrize("options", [{"lr": -1.0}, {"betas": (1.0, 0.9)}, {"eps": -1.0}, {"weight_decay": -0.1}])
def test_impossible_settings_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        RAdam([torch.nn.Parameter(torch.ones(1))], **options)
