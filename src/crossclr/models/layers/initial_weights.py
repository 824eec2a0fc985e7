"""Initial weights of the transformer networks."""

import math
from collections.abc import Iterator
from typing import Literal

from torch import Tensor, nn

from crossclr.models.layers.norm import CootNorm


def initialise(module: nn.Module, initial_weights: Literal["coot", "xavier"]) -> None:
    """Draw the weights of a network; norms start as the identity.

    ``coot``: weights and biases from a normal distribution with deviation 0.01, truncated at two deviations.
    ``xavier``: weights from a uniform distribution that preserves the scale of the activations, biases zero.

    Example:
        >>> from torch import nn
        >>> layer = nn.Linear(4, 4)
        >>> initialise(layer, "coot")
        >>> bool(layer.weight.abs().max() <= 0.02)
        True
        >>> initialise(layer, "xavier")
        >>> layer.bias.tolist()
        [0.0, 0.0, 0.0, 0.0]
    """
    for name, parameter in _without_norms(module):
        if initial_weights == "coot":
            nn.init.trunc_normal_(parameter, std=0.01, a=-0.02, b=0.02)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
        else:
            bound = math.sqrt(6 / (parameter.shape[-1] + parameter.shape[-2]))  # heads, if any, come first
            nn.init.uniform_(parameter, -bound, bound)


def _without_norms(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    norms = {
        id(parameter)
        for part in module.modules()
        if isinstance(part, CootNorm | nn.LayerNorm)
        for parameter in part.parameters()
    }
    return ((name, parameter) for name, parameter in module.named_parameters() if id(parameter) not in norms)
