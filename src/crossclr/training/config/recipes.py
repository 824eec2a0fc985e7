"""Recipes: named changes to any config that did well in experiments."""

from __future__ import annotations

from typing import Any

from crossclr.suggestions import suggest
from crossclr.training.config.run_config import RunConfig

FITTED_SEARCH: dict[str, Any] = {"views": {}, "anchors": {}, "hubs": {}}
"""Linear views, anchors and hub correction, each with its default settings."""

RECIPES = {
    "fitted": "negatives of the other modality only, at temperature 0.1, and search adjustments fitted after training: "
    "the best-performing setting in the experiments"
}
"""A description of each recipe."""

TEMPERATURE = 0.1


def recipe_changes(name: str, config: RunConfig) -> dict[str, Any]:
    """The changes that a recipe makes to a config, by dotted name.

    Args:
        name: one of `RECIPES`.
        config: the config to change; a level that it does not train stays untrained.

    Raises:
        ValueError: there is no such recipe.

    Example:
        >>> from crossclr.training import load_config
        >>> changes = recipe_changes("fitted", load_config("msvd"))
        >>> changes["loss.local"]["name"], changes["hubs"], "loss.global" in changes
        ('clip', {}, False)
    """
    if name not in RECIPES:
        raise ValueError(f"there is no recipe {name!r}; {suggest(name, RECIPES)}")
    loss = {"name": "clip", "learnable": False, "temperature": TEMPERATURE}
    levels = ["local"] if config.loss.global_ is None else ["local", "global"]
    return {**{f"loss.{level}": dict(loss) for level in levels}, **FITTED_SEARCH}
