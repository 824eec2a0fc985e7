"""The losses that are compared: how each is put into a config, and which of its options are tuned."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from crossclr.losses import LOSSES
from crossclr.training import RunConfig
from crossclr.training.config.config_files import check_config, put_value
from crossclr.training.config.run_config import StrictConfig


class Range(StrictConfig):
    """Values that tuning may try for one option.

    Example:
        >>> Range(low=10, high=60, whole=True).clip(7.4), Range(low=0.01, high=0.5).clip(0.03)
        (10, 0.03)
    """

    low: float = Field(description="Smallest value.")
    high: float = Field(description="Largest value.")
    log: bool = Field(default=True, description="Sample on a logarithmic scale.")
    whole: bool = Field(default=False, description="Try whole numbers only.")

    def clip(self, value: float) -> float:
        """The nearest allowed value."""
        value = min(max(value, self.low), self.high)
        return int(value) if self.whole else value


TEMPERATURE = Range(low=0.01, high=0.5)
CROSSCLR_SPACE = {"temperature": TEMPERATURE, "intra_weight": Range(low=0.02, high=1.0)}


@dataclass(frozen=True)
class Method:
    """One loss of a comparison."""

    title: str  # its name in tables
    loss: Mapping[str, Any] | None = None  # the loss and its options; None uses those of the study's config
    options: Mapping[str, Any] = field(default_factory=dict)  # replace options of the loss
    space: Mapping[str, Range] = field(default_factory=dict)  # the options that are tuned
    ours: bool = False  # whether it is CrossCLR; all others are rivals


METHODS: dict[str, Method] = {
    "crossclr": Method("CrossCLR", space=CROSSCLR_SPACE, ours=True),
    "crossclr-mp": Method(
        "CrossCLR+MP",
        options={"extra_positives": 2, "positive_weight": 0.15},
        space={**CROSSCLR_SPACE, "positive_weight": Range(low=0.02, high=0.5)},
        ours=True,
    ),
    "maxmargin": Method("MaxMargin", {"name": "maxmargin", "margin": 0.2}, space={"margin": Range(low=0.02, high=0.8)}),
    "milnce": Method("MIL-NCE", {"name": "milnce"}, space={"temperature": TEMPERATURE}),
    "clip": Method("CLIP", {"name": "clip", "learnable": False}, space={"temperature": TEMPERATURE}),
    "dcl": Method(
        "DCL", {"name": "dcl", "prior": 0.1}, space={"temperature": TEMPERATURE, "prior": Range(low=0.001, high=0.3)}
    ),
    "ntxent": Method("NT-Xent", {"name": "ntxent"}, space={"temperature": TEMPERATURE}),
    "siglip": Method(
        "SigLIP",
        {"name": "siglip", "bias": -10.0},
        space={"temperature": TEMPERATURE, "bias": Range(low=-15.0, high=0.0, log=False)},
    ),
    "coot": Method(
        "COOT's losses",
        {"name": "coot", "margin": 0.2, "cluster_low": 1.0},
        space={"margin": Range(low=0.02, high=0.8), "cluster_low": Range(low=0.01, high=2.0)},
    ),
}


def loss_option(config: RunConfig, name: str) -> Any:
    """The value of an option of a config's local loss, or its default; None if the loss has no such option.

    A name with dots is a field of the config.

    Example:
        >>> from crossclr.training import load_config
        >>> loss_option(load_config("emoji"), "temperature"), loss_option(load_config("emoji"), "min_keep")
        (0.1, 0.25)
    """
    local = config.loss.local
    if "." in name:
        found: Any = config.model_dump(mode="json", by_alias=True)
        for key in name.split("."):
            found = found[int(key) if isinstance(found, list) else key]
        return found
    if name in local.options:
        return local.options[name]
    parameter = inspect.signature(LOSSES[local.name]).parameters.get(name)
    return None if parameter is None else parameter.default


def configure(base: RunConfig, method: Method, options: Mapping[str, Any] | None = None) -> RunConfig:
    """The config of a study with the loss of a method.

    If the config trains two levels, the loss is used on both, without a queue on the upper one. CrossCLR keeps the
    config's own options there, such as another rule for pruning.

    Args:
        base: the study's config.
        method: the loss.
        options: options of the loss, and fields of the config under dotted names; they replace everything else.

    Example:
        >>> from crossclr.training import load_config
        >>> configured = configure(load_config("emoji"), METHODS["dcl"], {"prior": 0.2})
        >>> configured.loss.local.name, configured.loss.local.options["prior"], configured.data.modalities["image"]
        ('dcl', 0.2, 'noto')
    """
    values = base.model_dump(mode="json", by_alias=True)
    own = values["loss"]["local"] if base.loss.local.name == "crossclr" else {"name": "crossclr"}
    start = dict(method.loss) if method.loss is not None else dict(own)
    if "temperature" in method.space:
        start.setdefault("temperature", base.loss.local.options.get("temperature", 0.1))
    given = options or {}
    changes = {**method.options, **{name: value for name, value in given.items() if "." not in name}}
    local, above = {**start, **changes}, values["loss"]["global"]
    if above is not None:
        keep = method.loss is None and above["name"] == "crossclr"
        above = {**(above if keep else local), **changes}
        if local["name"] == "crossclr":
            above["queue_size"] = 0
    values["loss"].update({"local": local, "global": None if local["name"] == "coot" else above})
    for key, value in given.items():
        if "." in key:
            put_value(values, key, value)
    return check_config(values, method.title)
