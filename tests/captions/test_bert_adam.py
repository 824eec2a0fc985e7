"""The optimiser against a loop over numbers, and the averaged weights against theirs."""

import math

import pytest
import torch
from torch import nn

from crossclr.captions.caption_training import BertAdam, MovingAverage, parameter_groups, warmup_linear


def test_steps_equal_a_loop_over_numbers():
    generator = torch.Generator().manual_seed(0)
    weights = [nn.Parameter(torch.randn(3, 2, dtype=torch.float64, generator=generator)) for _ in range(2)]
    optimiser = BertAdam(
        [{"params": [weights[0]], "weight_decay": 0.1}, {"params": [weights[1]], "weight_decay": 0.0}], lr=0.01
    )
    expected = [weight.detach().flatten().tolist() for weight in weights]
    moments = [[[0.0, 0.0] for _ in range(6)] for _ in weights]
    for step in range(4):
        rate = 0.01 * (step + 1)
        for group in optimiser.param_groups:
            group["lr"] = rate
        for number, weight in enumerate(weights):
            # one gradient is longer than one and is cut to it, the other is not
            weight.grad = torch.randn(3, 2, dtype=torch.float64, generator=generator) * (5.0 if number else 0.1)
            values = weight.grad.flatten().tolist()
            norm = math.sqrt(sum(g * g for g in values))
            factor = min(1.0, 1.0 / (norm + 1e-6))
            assert (factor < 1) == (number == 1)
            for i, g in enumerate(values):
                g *= factor
                m, v = moments[number][i]
                m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
                moments[number][i] = [m, v]
                p = expected[number][i]
                expected[number][i] = p - rate * (m / (math.sqrt(v) + 1e-6) + (0.1 if number == 0 else 0.0) * p)
        optimiser.step()
    for weight, values in zip(weights, expected, strict=True):
        assert weight.detach().flatten().tolist() == pytest.approx(values, rel=1e-12)


def test_weights_without_a_gradient_stay():
    weight = nn.Parameter(torch.ones(2))
    BertAdam([weight], weight_decay=0.5).step()
    assert weight.tolist() == [1, 1]


def test_biases_and_norms_do_not_decay():
    model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.Embedding(4, 3))
    decaying, free = parameter_groups(model, 0.01)
    assert {tuple(weight.shape) for weight in decaying["params"]} == {(3, 2), (4, 3)}
    assert len(free["params"]) == 3
    assert free["weight_decay"] == 0


def test_the_rate_rises_and_falls():
    rates = [warmup_linear(step / 100, 0.1) for step in range(101)]
    assert rates[0] == 0
    assert max(rates) == rates[10] == 1
    assert rates[100] == pytest.approx(0)
    assert rates[55] == pytest.approx(0.5)
    assert warmup_linear(0.0, 0.0) == 1


def test_averages_by_hand_and_back():
    model = nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(2.0)
    average = MovingAverage(model, 0.3)
    expected = 2.0
    for step, value in enumerate([3.0, 5.0, -1.0, 4.0]):
        model.weight.data.fill_(value)
        average.update(step)
        decay = min(0.3, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * value
    assert float(average.weights["weight"]) == pytest.approx(expected)
    with average.in_place() as averaged:
        assert float(averaged.weight.detach()) == pytest.approx(expected)
    assert float(model.weight.detach()) == 4.0
    other = MovingAverage(model, 0.3)
    other.load(average.weights)
    assert float(other.weights["weight"]) == pytest.approx(expected)
