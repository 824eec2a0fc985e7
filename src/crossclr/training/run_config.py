"""All options of a run as types. Every field has a description, and unknown fields are errors."""

import math
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from crossclr.data.config import StrictConfig
from crossclr.data.kinds import DataConfig
from crossclr.losses.names import check_options
from crossclr.models.model_config import ModelConfig


class TermConfig(StrictConfig):
    """One loss by name; every further key is an option of that loss.

    Example:
        >>> TermConfig(name="clip", temperature=0.05).options
        {'temperature': 0.05}
    """

    model_config = ConfigDict(extra="allow")

    name: str = Field(description="Name of the loss; the other keys of this section are its options.")

    @property
    def options(self) -> dict[str, Any]:
        """The options without the name."""
        return dict(self.model_extra or {})

    @model_validator(mode="after")
    def _known(self) -> "TermConfig":
        for option, value in self.options.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{option} must be a finite number, got {value}")
        check_options(self.name, self.options)  # values are checked by `check_losses`, which needs PyTorch
        return self


class LossConfig(StrictConfig):
    """L = L_local + global_weight · L_global."""

    local: TermConfig = Field(
        default_factory=lambda: TermConfig(name="crossclr"),
        description="Loss on clips, between all modalities or those of the option `pairs`. `coot` stands for COOT's "
        "own losses on all levels.",
    )
    global_: TermConfig | None = Field(
        default=None,
        alias="global",
        description="Loss on whole videos, for data of two levels; null: one level is trained.",
    )
    global_weight: float = Field(default=0.6, ge=0, le=1e6, description="Weight of the global loss in the sum.")

    @model_validator(mode="after")
    def _coot_stands_alone(self) -> "LossConfig":
        if self.global_ is not None and "coot" in (self.local.name, self.global_.name):
            raise ValueError("coot covers all levels by itself: use it as loss.local and set loss.global to null")
        return self

    @property
    def two_level(self) -> bool:
        """Whether the loss needs embeddings of whole videos."""
        return self.global_ is not None or self.local.name == "coot"


class OptimiserConfig(StrictConfig):
    """The optimiser. The defaults are the paper's."""

    name: Literal["radam", "adam", "adamw"] = Field(
        default="radam", description="COOT's RAdam, Adam (decay as L2 penalty) or AdamW (decoupled decay)."
    )
    learning_rate: float = Field(
        default=7e-4, gt=0, le=1000, description="Base learning rate; the schedule multiplies it."
    )
    betas: tuple[float, float] = Field(default=(0.56, 0.98), description="Decay of the first and of the second moment.")
    epsilon: float = Field(default=1.5e-9, ge=0, le=1, description="Added to the root of the second moment.")
    weight_decay: float = Field(default=0.0, ge=0, le=1000, description="Weight decay of all parameters except biases.")

    @field_validator("betas")
    @classmethod
    def _below_one(cls, betas: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"both betas must lie in [0, 1), got {betas}")
        return betas


class ScheduleConfig(StrictConfig):
    """The learning rate over the epochs. The defaults are the paper's."""

    name: Literal["plateau", "cosine", "constant"] = Field(
        default="plateau",
        description="Lower the rate when validation stalls, along half a cosine, or never. `best` has no validation, "
        "so there a plateau is a cosine.",
    )
    warmup_epochs: int = Field(default=4, ge=0, description="Epochs in which the rate rises to its base value.")
    patience: int = Field(default=6, ge=0, description="plateau: tolerated epochs without improvement.")
    cooldown: int = Field(default=4, ge=0, description="plateau: validated epochs after a reduction that do not count.")
    factor: float = Field(default=0.1, gt=0, lt=1, description="plateau: factor of a reduction.")
    final_factor: float = Field(default=0.0, ge=0, le=1, description="cosine: share of the base rate at the end.")
    early_stop: int | None = Field(
        default=None, ge=1, description="Stop this many epochs after the best epoch; null: never."
    )


class TrainingConfig(StrictConfig):
    """The training loop: length, batch size and devices."""

    epochs: int = Field(default=40, ge=1, description="Passes over the training split.")
    batch_size: int = Field(default=64, ge=2, description="Videos (samples) per step, over all processes.")
    gradient_clip: float | None = Field(
        default=None, gt=0, description="Clip the norm of the gradient to this value; null: no clipping."
    )
    precision: Literal["32-true", "bf16-mixed"] = Field(
        default="32-true", description="Exact float32, or bfloat16 where it is safe (losses stay in float32)."
    )
    accelerator: Literal["auto", "cpu", "cuda", "mps"] = Field(default="auto", description="Device to train on.")
    devices: int = Field(
        default=1,
        ge=1,
        description="Devices per machine, one process each; they share each batch. Under torchrun, its number of "
        "processes counts instead.",
    )
    nodes: int = Field(default=1, ge=1, description="Machines, each with `devices` devices.")
    micro_batch: int | None = Field(
        default=None,
        ge=1,
        description="Videos that a process encodes at once, for encoders too large for the batch. The step is still "
        "that of the whole batch (gradient caching), but each video is encoded twice. Null: all at once.",
    )
    workers: int = Field(default=2, ge=0, le=256, description="Background threads that read ahead.")
    in_memory: bool = Field(
        default=False,
        description="Read each split once and keep it in memory, pooled where the encoder pools anyway. Long sequences "
        "are then cut to the frames of evaluation instead of random ones.",
    )
    threads: int | None = Field(
        default=None, ge=1, description="CPU threads of torch; null: its default. Small models are fastest with 1."
    )
    deterministic: bool = Field(default=True, description="Use deterministic algorithms where torch has them.")
    log_every: int = Field(default=10, ge=1, description="Steps between two lines of metrics.")
    checkpoint_every: int | None = Field(
        default=None,
        ge=1,
        description="Steps between two checkpoints within an epoch, written in the background; null: once an epoch.",
    )


class ValidationConfig(StrictConfig):
    """When to validate, and which metric selects the best epoch."""

    first_epoch: int = Field(default=0, ge=0, description="First epoch (from 0) that is validated; 3 in COOT's recipe.")
    every: int = Field(
        default=1, ge=1, description="Epochs between two validations; the last epoch is always validated."
    )
    batch_size: int = Field(default=64, ge=1, description="Videos (samples) embedded at once.")
    select_by: str = Field(
        default="clip/R@1",
        description="Metric that selects the best epoch: `level/metric` is the mean of all directions, "
        "`level/direction/metric` one of them, as in `clip/text->video/R@1`, by the names in data.modalities.",
    )

    @field_validator("select_by")
    @classmethod
    def _known_shape(cls, name: str) -> str:
        parts = name.split("/")
        if parts[0] not in ("clip", "video") or len(parts) not in (2, 3):
            raise ValueError(f"expected level/metric or level/direction/metric with level clip or video, got {name!r}")
        return name


class SplitsConfig(StrictConfig):
    """The splits of the data and their roles."""

    train: str = Field(default="train", description="Split to train on.")
    validate_: str | None = Field(
        default="val", alias="validate", description="Split that selects the best epoch; null: keep the last epoch."
    )
    test: str | None = Field(
        default="test", description="Split of the final evaluation; null: none. COOT reports on its validation split."
    )


Recipe = Literal["best", "closed-form", "paper"]
RECIPE_LOSS: dict[str, dict[str, Any]] = {
    "best": {"name": "clip", "temperature": 0.1, "learnable": False},
    "closed-form": {"name": "clip", "temperature": 0.1, "learnable": False},  # not used
    "paper": {"name": "crossclr", "temperature": 0.1},
}
"""The loss of the encoders of each recipe, where a config does not name one."""


def recipe_of(values: Mapping[str, Any]) -> str:
    """The recipe of the plain values of a config: `paper` if they have a loss and no recipe, else `best`.

    Example:
        >>> recipe_of({}), recipe_of({"loss": {"local": {"name": "clip"}}})
        ('best', 'paper')
    """
    return str(values.get("recipe", "paper" if "loss" in values else "best"))


class FitConfig(StrictConfig):
    """How to train on any data: recipe, model, loss, optimiser, schedule and loop."""

    recipe: Recipe = Field(
        default="best",
        description="`best`: closed form and trained encoders, chosen by cross-fitting; `closed-form`: no training; "
        "`paper`: encoders trained with the loss. Default: `best` if there is no section `loss`, else `paper`.",
    )
    select_by: Literal["auto", "recall", "map"] = Field(
        default="auto",
        description="`best` and `closed-form`: what decides, the mean of R@1, R@5 and R@10 or mean average precision; "
        "`auto`: `map` if the data has concepts, else `recall`.",
    )
    zero_shot: str | None = Field(
        default=None,
        description="`best` and `closed-form`: file of a space that modalities share without pairs; `crossclr extract` "
        "writes it.",
    )
    seed: int = Field(
        default=0, ge=0, lt=2**63, description="Seed of weights, order of samples, frame sampling and dropout."
    )
    splits: SplitsConfig = Field(default=SplitsConfig(), description="The splits and their roles.")
    model: ModelConfig = Field(default=ModelConfig(), description="The joint model.")
    loss: LossConfig = Field(default=LossConfig(), description="The loss.")
    optimiser: OptimiserConfig = Field(default=OptimiserConfig(), description="The optimiser.")
    schedule: ScheduleConfig = Field(default=ScheduleConfig(), description="The learning rate.")
    training: TrainingConfig = Field(default=TrainingConfig(), description="The loop.")
    validation: ValidationConfig = Field(default=ValidationConfig(), description="Validation during training.")

    @model_validator(mode="before")
    @classmethod
    def _default_recipe(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        recipe = recipe_of(values)
        schedule = values.get("schedule", {})
        if recipe != "paper" and isinstance(schedule, dict) and schedule.get("name", "plateau") == "plateau":
            schedule = {**schedule, "name": "cosine"}  # all samples train, so there is no validation that could stall
        loss = {"local": RECIPE_LOSS.get(recipe, RECIPE_LOSS["best"])}
        return {"loss": loss, **values, "recipe": recipe, "schedule": schedule}

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.validation.select_by.startswith("video") and not self.loss.two_level:
            raise ValueError(
                "validation.select_by names the video level, but loss.global is null, so only clips are trained"
            )
        if self.recipe != "paper" and any(one.kind == "experts" for one in self.model.encoders.values()):
            raise ValueError(
                "an encoder of kind experts needs recipe=paper: name a loss, such as loss.local.name=crossclr"
            )
        if self.training.batch_size < self.training.devices * self.training.nodes:
            raise ValueError(
                "training.batch_size must be at least training.devices * training.nodes: each process needs a sample"
            )
        return self


class _NamedData(StrictConfig):
    name: str = Field(
        default="run", pattern=r"^[\w+-][\w.+-]*$", max_length=200, description="Short name; names the run folder."
    )
    about: str = Field(default="", description="A sentence that describes the config.")
    data: DataConfig = Field(description="Where the modalities come from.")


class RunConfig(FitConfig, _NamedData):
    """A whole run: its data and how to train on it."""
