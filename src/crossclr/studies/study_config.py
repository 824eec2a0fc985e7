"""The losses that are compared: how each is put into a config, and which of its options are tuned.

The settings of a study: one data set, one small config, and what the experiments vary.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from crossclr.data.config import StrictConfig
from crossclr.losses.names import loss_class
from crossclr.training import ConfigError, RunConfig, config_names, dump_config, load_config
from crossclr.training.config_files import check_config, check_values, config_text, put_value, read_values


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
        >>> config = load_config("emoji", {"recipe": "paper"})
        >>> loss_option(config, "temperature"), loss_option(config, "min_keep")
        (0.1, 0.25)
    """
    local = config.loss.local
    if "." in name:
        value: Any = config.model_dump(mode="json", by_alias=True)
        for key in name.split("."):
            value = value[int(key) if isinstance(value, list) else key]
        return value
    if name in local.options:
        return local.options[name]
    parameter = inspect.signature(loss_class(local.name)).parameters.get(name)
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
    base_loss = values["loss"]["local"] if base.loss.local.name == "crossclr" else {"name": "crossclr"}
    start = dict(method.loss) if method.loss is not None else dict(base_loss)
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


SHIPPED = "studies/shipped"
Overrides = dict[str, Any]


class StudyConfig(StrictConfig):
    """The settings of a study."""

    config: str = Field(description="Shipped config or YAML file with data, model and schedule of every training.")
    about: str = Field(default="", description="A sentence about the data, for the report.")
    set: Overrides = Field(
        default={}, description="Changes to the config, by dotted name, so that a training takes about a minute."
    )
    methods: list[str] = Field(default=list(METHODS), description="Losses to compare.")
    seeds: list[int] = Field(default=[0, 1, 2, 3, 4], min_length=1, description="Seeds of the tables.")
    few_seeds: int = Field(default=3, ge=1, description="Number of seeds for sweeps, grids and pairs.")
    ablation_seeds: int | None = Field(default=None, ge=1, description="Number of seeds for the ablation; null: all.")
    trials: int = Field(
        default=16,
        ge=0,
        description="Tuning runs of each loss; the first has the default options. 0: use the config's own options.",
    )
    tune_by: list[str] = Field(
        default=["R@1", "R@10", "nDCG", "sR@1"],
        min_length=1,
        description="Metrics of the validation split whose mean over both directions tuning maximises.",
    )
    tune_also: dict[str, Range] = Field(
        default={},
        description="Fields of the config that tuning searches for every loss, such as optimiser.learning_rate or "
        "training.epochs.",
    )
    sweeps: dict[str, list[Any]] = Field(
        default={
            "prune_threshold": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0],
            "weight_scale": [0.001, 0.003, 0.005, 0.007, 0.009, 0.01, 0.1],
            "intra_weight": [0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0],
            "temperature": [0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3],
            "queue_size": [0, 500, 1000, 2000, 5000],
        },
        description="Options of CrossCLR or fields of the config, such as optimiser.learning_rate, and the values that "
        "each takes, all others at their tuned values.",
    )
    positives: list[int] = Field(default=[1, 2, 5], description="K, extra positives, of the table of positives.")
    positive_weights: list[float] = Field(default=[0.05, 0.15, 0.3], description="β, their weights.")
    modalities: dict[str, dict[str, Overrides]] = Field(
        default={},
        description="Modalities of the grid of pairs; the changes by the modality of the config that each replaces.",
    )
    experts: dict[str, Overrides] = Field(default={}, description="Single experts of the first modality.")
    joined_experts: dict[str, Overrides] = Field(default={}, description="Experts joined before the encoder (+).")
    fused_experts: list[list[str]] = Field(default=[], description="Experts fused after the encoder (⊕).")
    histograms: list[str] = Field(
        default=["maxmargin", "ntxent", "crossclr"], description="Losses whose similarities are compared."
    )

    @model_validator(mode="after")
    def _known(self) -> StudyConfig:
        for name in (*self.methods, *self.histograms):
            if name not in METHODS:
                raise ValueError(f"there is no method {name!r}; there are {', '.join(METHODS)}")
        for names in self.fused_experts:
            for name in names:
                if name not in self.experts:
                    raise ValueError(f"fused_experts names {name!r}, which is not among experts")
        return self


def study_names() -> list[str]:
    """Names of the shipped studies.

    Example:
        >>> "emoji" in study_names()
        True
    """
    return config_names(SHIPPED)


def load_study(name_or_path: str | Path) -> StudyConfig:
    """Load a shipped study, a YAML file of a study, or a run config, which gets the default experiments.

    Example:
        >>> load_study("emoji").config
        'emoji'
    """
    name, path = str(name_or_path), Path(name_or_path)
    is_study = not path.is_file() and name in study_names()
    if not (is_study or path.is_file() or path.suffix in (".yaml", ".yml") or name in config_names()):
        raise ConfigError(
            f"there is no study {name!r}, no shipped config of that name and no such file; there are "
            f"{', '.join(study_names())}"
        )
    values = read_values(config_text(name_or_path, SHIPPED if is_study else "configs"), name)
    if "config" not in values:
        return StudyConfig(config=name)
    return check_values(values, StudyConfig, name)


def base_config(study: StudyConfig, overrides: Sequence[str] = ()) -> RunConfig:
    """The config that every training of a study starts from; ``overrides`` are applied after those of the study."""
    changed = load_config(study.config, {"recipe": "paper", **study.set})
    return check_config(read_values(dump_config(changed), study.config, overrides), study.config)


def with_overrides(config: RunConfig, overrides: Mapping[str, Any]) -> RunConfig:
    """A config with some fields changed, by dotted name.

    Example:
        >>> with_overrides(load_config("emoji"), {"data.modalities.image": "fluent"}).data.modalities["image"]
        'fluent'
    """
    values = config.model_dump(mode="json", by_alias=True)
    for key, value in overrides.items():
        put_value(values, key, value)
    return check_config(values)
