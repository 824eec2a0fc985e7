"""Recipes: valid on every shipped config, and what the experiments measured."""

import json

import pytest

from crossclr.analysis.studies.compared_losses import METHODS, configure
from crossclr.training import config_names, load_config
from crossclr.training.config.recipes import RECIPES, recipe_changes


@pytest.mark.parametrize("name", config_names())
@pytest.mark.parametrize("recipe", RECIPES)
def test_they_fit_every_shipped_config(name, recipe):
    plain = load_config(name)
    changes = recipe_changes(recipe, plain)
    found = load_config(name, changes)
    assert found == load_config(name, [f"{key}={json.dumps(value)}" for key, value in changes.items()])
    assert (found.loss.global_ is None) == (plain.loss.global_ is None)
    untouched = {"loss", "views", "anchors", "hubs"}
    assert found.model_dump(exclude=untouched) == plain.model_dump(exclude=untouched)


@pytest.mark.parametrize("name", ["msvd", "emoji"])
def test_fitted_is_what_the_experiments_measure(name):
    plain = load_config(name)
    measured = configure(plain, METHODS["clip-fitted"], {"temperature": 0.1})
    found = load_config(name, recipe_changes("fitted", plain))
    assert found == measured


def test_an_unknown_recipe_is_named():
    with pytest.raises(ValueError, match="there is no recipe 'best'; there are: fitted"):
        recipe_changes("best", load_config("emoji"))
