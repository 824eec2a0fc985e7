"""Optimiser and schedule from their configs."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from crossclr.training.config.run_config import OptimiserConfig, ScheduleConfig
from crossclr.training.optimisation.radam import RAdam
from crossclr.training.optimisation.schedule import Cosine, Plateau, Schedule


def build_optimiser(config: OptimiserConfig, *modules: nn.Module) -> torch.optim.Optimizer:
    """An optimiser over all parameters of the modules; biases are spared weight decay.

    Example:
        >>> optimiser = build_optimiser(OptimiserConfig(weight_decay=0.1), nn.Linear(2, 2))
        >>> [group["weight_decay"] for group in optimiser.param_groups]
        [0.1, 0.0]
    """
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


def build_schedule(config: ScheduleConfig, epochs: int) -> Schedule:
    """A schedule over a run of so many epochs.

    Example:
        >>> type(build_schedule(ScheduleConfig(name="cosine"), epochs=10)).__name__
        'Cosine'
    """
    shared: dict[str, Any] = {"warmup_epochs": config.warmup_epochs, "early_stop": config.early_stop}
    if config.name == "plateau":
        return Plateau(**shared, patience=config.patience, cooldown=config.cooldown, factor_on_plateau=config.factor)
    if config.name == "cosine":
        return Cosine(**shared, epochs=epochs, final_factor=config.final_factor)
    return Schedule(**shared)
