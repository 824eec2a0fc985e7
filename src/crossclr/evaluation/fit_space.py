"""Fit the search space of a run on the training and validation samples of its data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from rich.console import Console
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from crossclr.data import Dataset
from crossclr.data.sample import stable_hash
from crossclr.evaluation.baseline import Pairs, pooled_rows
from crossclr.evaluation.metrics import evaluate_embeddings
from crossclr.models import SearchSpace, embed_data
from crossclr.models.choice import Encode, choose_space, measure_of
from crossclr.models.space import TrainedEncoder
from crossclr.models.zero_shot import ZeroShot
from crossclr.storage import write_file
from crossclr.storage.reading import reading
from crossclr.training import JointTraining, MemoryRecorder, Run, RunConfig, fit
from crossclr.training.checkpoint import load_tensors
from crossclr.training.recorder import fit_run, live_progress

if TYPE_CHECKING:
    from lightning_fabric import Fabric


Results = dict[str, dict[str, float]]
RECALLS = ("R@1", "R@5", "R@10")
FINISHED = ".encoder-"  # weights of a training for cross-fitting, which a resumed run need not repeat


class SpaceFit:
    """Fits the search space of a run whose recipe is ``best`` or ``closed-form``, in one process.

    ``loss`` is one of the caller's own; ``console`` shows the progress of each training; ``zero_shot`` is a space that
    modalities of the data share without pairs.
    """

    def __init__(
        self,
        config: RunConfig,
        data: Dataset,
        fabric: Fabric,
        loss: nn.Module | None,
        console: Console | None,
        zero_shot: ZeroShot | None = None,
    ) -> None:
        if fabric.world_size > 1:
            raise ValueError(f"recipe {config.recipe} trains in one process; use recipe=paper for several")
        self.config, self.data, self.fabric, self.loss, self.console = config, data, fabric, loss, console
        self.zero_shot = zero_shot
        if zero_shot is not None:
            zero_shot.check_channels(data.dims)
        splits = [split for split in (config.splits.train, config.splits.validate_) if split]
        keys = dict.fromkeys(key for split in splits for key in data.where(split=split).keys)
        if config.splits.test is not None:  # COOT's data sets report on their validation split
            for key in data.where(split=config.splits.test).keys:
                keys.pop(key, None)
        self.samples = data.where(keys=list(keys))

    def training(self, places: Sequence[int] | None = None, number: int = 0) -> JointTraining:
        """A training on all samples or some of them."""
        config = self.config.model_copy(update={"seed": self.config.seed + number})
        samples = self.samples if places is None else self.samples.select(np.asarray(places, dtype=np.int64))
        return JointTraining(config, samples, self.fabric, self.loss)

    def fit(self, run: Run) -> SearchSpace:
        """Choose and fit the space; the first encoder on all samples is trained in the run folder and resumable."""
        pooled = pooled_rows(self.samples)
        parents = pooled.groups if self.data.groups_are_parents else ()
        pairs = Pairs.of(pooled, parents or self.samples.families().to_pylist())

        def train(places: Tensor, number: int) -> tuple[nn.Module, Encode]:
            videos = torch.unique(pairs.video_of[places])
            training = self.training(videos.tolist(), number)
            if len(places) == len(pairs.data) and number == 0:
                weights, state = run.load_state()
                training.load_state_dict(weights, state)
                fit_run(run, training, state, console=self.console)
                model = run.load_model("best")
            else:
                file = run.path / f"{FINISHED}{stable_hash(f'{number} {videos.tolist()}')}"
                if not file.is_file():
                    memory = MemoryRecorder()
                    with live_progress(training, self.console) as reporter:
                        fit(training, memory, reporter)
                    write_file(file, save({name: weights.contiguous() for name, weights in memory.best.items()}))
                training.model.load_state_dict(load_tensors(file))
                model = training.model.cpu()
            encoder = TrainedEncoder(model)
            found = embed_data(model, self.samples, self.config.validation.batch_size)
            return encoder, lambda name, where: found[name].rows[pairs.rows_of[name][where]]

        measure = measure_of(self.config.select_by, pooled.concepts is not None)
        encoders = train if self.config.recipe == "best" else None
        report = (lambda step: None) if self.console is None else partial(self.console.print, highlight=False)
        space = choose_space(replace(pairs.data, measure=measure), encoders, self.config.seed, report, self.zero_shot)
        for file in run.path.glob(f"{FINISHED}*"):
            file.unlink()
        return space


def load_shared_space(path: Path) -> ZeroShot:
    """A space that modalities share without pairs, as `crossclr extract` writes it."""
    with reading(path, "shared space"), safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return ZeroShot.from_tensors(tensors, file.metadata()["about"])


def measure_parts(space: SearchSpace, data: Dataset, batch_size: int) -> dict[str, Results]:
    """Metrics of a space and of its parts alone, by the name that a table shows."""
    spaces, whole = {"": space}, set(space.dims)
    joined = len(space.encoders) or space.hubs is not None or space.zero_shot is not None
    if space.closed_form is not None and joined and set(space.closed_form.modalities) == whole:
        spaces["closed form alone"] = SearchSpace(space.dims, space.closed_form)
    if space.closed_form is not None and len(space.encoders):
        spaces["trained encoders alone"] = SearchSpace(space.dims, None, list(space.encoders))
    if space.closed_form is not None and space.zero_shot is not None and set(space.zero_shot.modalities) == whole:
        spaces[f"{space.zero_shot.about} alone"] = SearchSpace(space.dims, None, zero_shot=space.zero_shot)
    return {
        name: evaluate_embeddings(embed_data(one, data, batch_size), progress=False) for name, one in spaces.items()
    }


def below_closed_form(parts: dict[str, Results]) -> str | None:
    """A warning if a space is worse than its closed form alone."""

    def mean(results: Results) -> float:
        values = [found[name] for key, found in results.items() if key.startswith("clip/") for name in RECALLS]
        return sum(values) / len(values)

    closed = parts.get("closed form alone")
    if closed is None or mean(parts[""]) >= mean(closed):
        return None
    return (
        f"the search space ({mean(parts['']):.1f}) is below its closed form ({mean(closed):.1f}) on the test split; "
        "train with recipe=closed-form, or with more samples"
    )
