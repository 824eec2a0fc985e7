"""Recipes: changes to any config that have proven good in experiments, by name."""

from __future__ import annotations

from typing import Any

from crossclr.training.config.run_config import RunConfig

FITTED_SEARCH: dict[str, Any] = {"views": {}, "anchors": {}, "hubs": {}}
"""Linear views, anchors and a correction of hubs with their own settings."""

RECIPES = {
    "fitted": "negatives of the other modality only, at temperature 0.1, and search fitted after training: what finds "
    "clips best in the experiments"
}
"""What each recipe is."""

TEMPERATURE = 0.1


def recipe_changes(name: str, config: RunConfig) -> dict[str, Any]:
    """The changes that a recipe makes to a config, by dotted name.

    Args:
        name: one of `RECIPES`.
        config: what is changed; a level that it does not train stays untrained.

    Raises:
        ValueError: there is no such recipe.

    Example:
        >>> from crossclr.training import load_config
        >>> changes = recipe_changes("fitted", load_config("msvd"))
        >>> changes["loss.local"]["name"], changes["hubs"], "loss.global" in changes
        ('clip', {}, False)
    """
    if name not in RECIPES:
        raise ValueError(f"there is no recipe {name!r}; there are: {', '.join(RECIPES)}")
    loss = {"name": "clip", "learnable": False, "temperature": TEMPERATURE}
    levels = ["local"] if config.loss.global_ is None else ["local", "global"]
    return {**{f"loss.{level}": dict(loss) for level in levels}, **FITTED_SEARCH}
