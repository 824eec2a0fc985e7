"""The reference numbers of ``tests/fixtures``; its README says how they were made."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FIXTURES = Path(__file__).parents[1] / "fixtures"


def coot_arrays() -> dict[str, NDArray[Any]]:
    """All arrays of the small COOT network, by name."""
    with np.load(FIXTURES / "coot_small.npz", allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def coot_network() -> dict[str, Any]:
    """State, input and outputs of the small COOT network; the state by network and key."""
    groups: dict[str, Any] = {"state": {}, "input": {}, "output": {}, "output_masked_mean": {}}
    for name, values in coot_arrays().items():
        group, _, rest = name.partition("/")
        if group == "state":
            network, _, key = rest.partition("/")
            groups["state"].setdefault(network, {})[key] = values
        elif group in groups:
            groups[group][rest] = values
    return groups


def caption_metric_cases() -> dict[str, Any]:
    """Predictions and references with the scores that four other programs gave them."""
    cases: dict[str, Any] = json.loads((FIXTURES / "caption_metrics.json").read_text(encoding="utf-8"))["cases"]
    return cases
