"""The settings of a study: one data set, one small config, and what the experiments vary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from crossclr.analysis.studies.compared_losses import METHODS, Range
from crossclr.training import ConfigError, RunConfig, config_names, dump_config, load_config
from crossclr.training.config.config_files import check_config, check_values, config_text, put_value, read_values
from crossclr.training.config.run_config import StrictConfig

SHIPPED = "analysis/studies/shipped"
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
    changed = load_config(study.config, study.set)
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
