"""The optimiser of a config."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from crossclr.training.config.run_config import OptimiserConfig
from crossclr.training.optimisation.radam import RAdam


def build_optimiser(config: OptimiserConfig, *modules: nn.Module) -> torch.optim.Optimizer:
    """An optimiser over all parameters of the modules; biases have no weight decay."""
    decayed: list[nn.Parameter] = []
    spared: list[nn.Parameter] = []
    for module in modules:
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                (spared if "bias" in name else decayed).append(parameter)
    groups: list[dict[str, Any]] = [
        {"params": params, "weight_decay": decay}
        for params, decay in ((decayed, config.weight_decay), (spared, 0.0))
        if params
    ]
    # foreach on the CPU too, where torch would go parameter by parameter
    kind: Any = {
        "radam": RAdam,
        "adam": partial(torch.optim.Adam, foreach=True),
        "adamw": partial(torch.optim.AdamW, foreach=True),
    }[config.name]
    built: torch.optim.Optimizer = kind(groups, lr=config.learning_rate, betas=config.betas, eps=config.epsilon)
    return built
