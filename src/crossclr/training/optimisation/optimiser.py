"""The optimiser of a config."""

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
    # fused on the CPU too: one pass over each parameter takes a quarter of the time
    kind, options = {
        "radam": (RAdam, {}),
        "adam": (torch.optim.Adam, {"fused": True}),
        "adamw": (torch.optim.AdamW, {"fused": True}),
    }[config.name]
    rates = {"lr": config.learning_rate, "betas": config.betas, "eps": config.epsilon}
    built: torch.optim.Optimizer = _without_compiler(kind)(groups, **rates, **options)
    return built


def _without_compiler(kind: type[torch.optim.Optimizer]) -> Any:
    """The same optimiser without the decorators that import ``torch.compile``, which takes two seconds."""

    def plain(name: str) -> Any:
        return getattr(getattr(kind, name), "__wrapped__", getattr(kind, name))

    methods = {name: plain(name) for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict")}
    return type(kind.__name__, (kind,), methods | {"step": torch.no_grad()(plain("step"))})
