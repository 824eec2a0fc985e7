"""The optimiser of a config: the steps of torch's own, without importing its compiler."""

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

from crossclr.training.optimiser import build_optimiser
from crossclr.training.run_config import OptimiserConfig


@pytest.mark.parametrize(("name", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
def test_steps_are_those_of_torch(name, kind):
    torch.manual_seed(0)
    model = nn.Linear(5, 3, bias=False)
    other = copy.deepcopy(model)
    config = OptimiserConfig(name=name, learning_rate=0.01, betas=(0.9, 0.98), epsilon=1e-8, weight_decay=0.1)
    ours = build_optimiser(config, model)
    theirs = kind(other.parameters(), lr=0.01, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.1, foreach=True)
    for _ in range(5):
        rows = torch.randn(7, 5)
        for one, optimiser in ((model, ours), (other, theirs)):
            optimiser.zero_grad()
            one(rows).square().sum().backward()
            optimiser.step()
    # the two kernels may round in another order, depending on the processor
    torch.testing.assert_close(model.weight, other.weight, rtol=1e-6, atol=1e-7)
    theirs.load_state_dict(ours.state_dict())


def test_it_does_not_import_the_compiler():
    code = """
import sys, torch
from crossclr.training.run_config import OptimiserConfig
from crossclr.training.optimiser import build_optimiser
for name in ("radam", "adam", "adamw"):
    model = torch.nn.Linear(2, 2)
    optimiser = build_optimiser(OptimiserConfig(name=name), model)
    optimiser.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimiser.step()
    optimiser.load_state_dict(optimiser.state_dict())
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
