"""Initial weights of the transformer networks, as COOT draws them."""

from __future__ import annotations

from torch import nn

from crossclr.models.norm import CootNorm


def initialise_like_coot(module: nn.Module, std: float = 0.01) -> None:
    """Weights and biases from a normal distribution cut at two deviations; norms start as the identity.

    Example:
        >>> from torch import nn
        >>> layer = nn.Linear(4, 4)
        >>> initialise_like_coot(layer)
        >>> bool(layer.weight.abs().max() <= 0.02)
        True
    """
    norms = {
        id(parameter)
        for part in module.modules()
        if isinstance(part, CootNorm | nn.LayerNorm)
        for parameter in part.parameters()
    }
    for parameter in module.parameters():
        if id(parameter) not in norms:
            nn.init.trunc_normal_(parameter, std=std, a=-2 * std, b=2 * std)
