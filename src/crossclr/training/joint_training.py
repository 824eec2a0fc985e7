"""Gradient caching: the exact step of a large batch with the memory of a part of it.

First all parts are embedded without a graph. Then the loss of the whole batch gives the gradient of each embedding.
Then each part is embedded again with the same dropout, and its gradients flow into the encoder.

Training of a joint embedding: encoders, a loss and the samples of a source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from crossclr.data import Batch, Dataset, batches
from crossclr.data.order import bounds
from crossclr.data.sample import stable_hash
from crossclr.data.sequences import Pooling
from crossclr.losses.base import Loss, NotFiniteError
from crossclr.losses.distributed import process_group
from crossclr.models import JointModel, ModelConfig, build_model
from crossclr.models.embeddings import fit_standard_norms
from crossclr.models.model_config import EncoderConfig, MLPEncoderConfig
from crossclr.training.checkpoint import seed_everything
from crossclr.training.loop import Trainable, TrainingError
from crossclr.training.objective import Objective
from crossclr.training.optimiser import build_optimiser, build_schedule
from crossclr.training.processes import gather, part
from crossclr.training.run_config import FitConfig

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def backward_in_parts(
    fabric: Fabric, model: Any, parts: Sequence[Batch], loss_of: Callable[[dict[str, Tensor]], Tensor]
) -> Tensor:
    """Add the gradients of the whole batch with the memory of one part; returns the loss, detached.

    The model comes from ``fabric.setup``; processes exchange gradients once, with the last part. ``loss_of`` takes the
    embeddings of the whole batch, and its own parameters get their gradients too.
    """
    states, embedded = [], []
    with torch.no_grad():
        for part in parts:
            states.append(_generators(fabric.device))
            embedded.append(model(part))
    leaves = {name: torch.cat([found[name] for found in embedded]).requires_grad_() for name in embedded[0]}
    loss = loss_of(leaves)
    loss.backward()  # type: ignore[no-untyped-call]
    first = dict.fromkeys(leaves, 0)
    for number, (part, state) in enumerate(zip(parts, states, strict=True)):
        _set_generators(fabric.device, state)  # the same dropout as before
        alone = fabric.world_size > 1 and number < len(parts) - 1
        with fabric.no_backward_sync(model) if alone else nullcontext():
            total = torch.zeros((), device=fabric.device)
            for name, rows in model(part).items():
                gradient = leaves[name].grad
                if gradient is not None:  # None: the loss does not use this embedding
                    total = total + (rows * gradient[first[name] : first[name] + len(rows)]).sum()
                first[name] += len(rows)
            fabric.backward(total)
    return loss.detach()


def _generators(device: torch.device) -> tuple[Tensor, Tensor | None]:
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def _set_generators(device: torch.device, state: tuple[Tensor, Tensor | None]) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], device)


class JointTraining(Trainable[Batch]):
    """Trains the joint model on samples.

    Args:
        config: how to train.
        data: the samples to train on.
        fabric: device, precision and processes.
        loss: a loss of your own in place of the one that ``config.loss.local`` names; called like the losses of
            `crossclr.losses`.
    """

    config: FitConfig
    model: JointModel

    def __init__(self, config: FitConfig, data: Dataset, fabric: Fabric, loss: nn.Module | None = None) -> None:
        seed_everything(config.seed)
        if config.loss.global_ is not None and not data.two_level:
            raise TrainingError(
                "loss.global needs data of two levels (clips within videos), but this data has one level; set it to "
                "null"
            )
        self.two_level = data.two_level and config.loss.two_level
        model = build_model(config.model, data.input_dims, self.two_level)
        self.objective = Objective(config.loss, len(model.experts) or 1)
        self.objective.check(data.modalities)
        check_pairs_present(data, config.splits.train, self.objective)
        if loss is not None:
            self.objective.local = loss
            if isinstance(loss, Loss):
                loss.experts = len(model.experts) or 1
        self.objective.to(fabric.device)
        self.data = inputs_of(data, config)
        fit_standard_norms(model, self.data)
        self.samples = len(data)
        super().__init__(
            config,
            model,
            build_optimiser(config.optimiser, model, self.objective),
            build_schedule(config.schedule, config.training.epochs),
            fabric,
            batches_per_epoch=math.ceil(self.samples / config.training.batch_size),
        )
        self._wrapped, self._wrapped_optimiser = fabric.setup(self.model, self.optimiser)
        if fabric.global_rank:  # weights start equal everywhere, dropout must differ
            torch.manual_seed(config.seed + 1_000_003 * fabric.global_rank)

    def batches(self, epoch: int, start: int = 0) -> Generator[Batch, None, None]:
        """This process's share of the batches of an epoch, from batch ``start`` on."""
        config, fabric = self.config, self.fabric
        size, workers = config.training.batch_size, config.training.workers
        share = fabric.global_rank, fabric.world_size
        return batches(self.data, size, config.seed, epoch, start, workers=workers, share=share)

    def read_first_batch(self) -> Batch:
        """The first batch, to find invalid data before a run folder is written."""
        stream = self.batches(0)
        first = next(stream, None)
        stream.close()
        if first is None:
            raise TrainingError(f"the training split {self.config.splits.train!r} has no samples")
        return first

    def learning_rate(self) -> float:
        """The base rate times the factor of the schedule."""
        progress = self.position.batch / self.batches_per_epoch
        return self.config.optimiser.learning_rate * self.schedule.factor(self.position.epoch, progress)

    def learn(self, batch: Batch) -> dict[str, float]:
        """One step of all processes, each with its own share of the batch."""
        settings, fabric = self.config.training, self.fabric
        batch = batch.to(fabric.device)
        self._wrapped.train()
        self.objective.train()
        self._wrapped_optimiser.zero_grad()
        largest = -(-self._videos // fabric.world_size)  # the same on all processes, so all take the same path
        if settings.micro_batch is None or settings.micro_batch >= largest:
            loss = self._loss(self._wrapped(batch), batch)
            fabric.backward(loss)
        else:
            starts = range(0, len(batch.keys), settings.micro_batch)
            parts = [part(batch, start, min(start + settings.micro_batch, len(batch.keys))) for start in starts]
            loss = backward_in_parts(fabric, self._wrapped, parts, lambda outputs: self._loss(outputs, batch))
        if settings.gradient_clip is not None:
            fabric.clip_gradients(self._wrapped, self._wrapped_optimiser, max_norm=settings.gradient_clip)
        self._wrapped_optimiser.step()
        return {"loss": float(loss.detach()), **self.objective.parts}

    def score(self, metrics: Mapping[str, float]) -> float:
        """The metric ``validation.select_by``."""
        return selection_score(metrics, self.config.validation.select_by)

    def state_dict(self) -> dict[str, Any]:
        """Everything but the weights, with the random states of all processes."""
        generator = torch.get_rng_state()
        generators = cast(Tensor, self.fabric.all_gather(generator))
        return {
            **super().state_dict(),
            "objective": self.objective.state_dict(),
            "random_of_processes": generators.cpu().reshape(-1, len(generator)),
        }

    def load_state_dict(self, weights: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Resume where ``state_dict`` was taken: exactly, if the number of processes is the same."""
        super().load_state_dict(weights, state)
        self.objective.load_state_dict(state["objective"])
        states, rank = state["random_of_processes"], self.fabric.global_rank
        if len(states) == self.fabric.world_size:
            torch.set_rng_state(states[rank].clone())  # torch reads a view from the start of its base
        else:  # another number of processes: everything but dropout resumes exactly
            torch.manual_seed(stable_hash(f"{self.config.seed}:{self.position.step}:{rank}"))

    @property
    def _videos(self) -> int:
        """Videos of the current batch over all processes."""
        size = self.config.training.batch_size
        return min(size, self.samples - self.position.batch * size)

    def _loss(self, outputs: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """The loss of the batch of all processes, from the embeddings of this process's share."""
        position, fabric = self.position, self.fabric
        first, last = bounds(self._videos, fabric.global_rank, fabric.world_size)
        features = self.objective.needs_features
        everyone, whole = gather(fabric, outputs, batch, idle=first == last, features=features)
        self.items = len(whole.ids)
        sampling = torch.Generator().manual_seed(self.config.seed * 1_000_003 + position.step)
        try:
            loss: Tensor = self.objective(everyone, whole, sampling, process_group())
            value = float(loss.detach())
        except NotFiniteError:  # the embeddings themselves
            value = math.nan
        if not math.isfinite(value):
            raise TrainingError(
                f"the loss is {value} at step {position.step} (epoch {position.epoch}); lower optimiser.learning_rate, "
                "set training.gradient_clip=1.0, or check the data with `crossclr check`"
            )
        return loss


def check_pairs_present(data: Dataset, split: str, objective: Objective) -> None:
    """Check that the training samples have every pair that the loss names, and each modality with another one."""
    present = data.present()
    if present is None:
        return
    named = [
        pair for term in (objective.local, objective.global_) for pair in getattr(term, "pair_weights", None) or ()
    ]
    empty = [pair for pair in named if not (present[pair[0]] & present[pair[1]]).any()]
    if empty:
        raise TrainingError(
            f"no sample of the split {split!r} has both {' and '.join(empty[0])}; correct the ids of the data, or "
            "omit the pair from loss.local.pairs (`crossclr check` counts all pairs)"
        )
    several = np.sum(list(present.values()), axis=0) > 1
    for name, having in present.items():
        if not (having & several).any():
            raise TrainingError(
                f"no sample of the split {split!r} has {name} and another modality; correct the ids of the data, or "
                f"omit data.modalities.{name} (`crossclr check` counts all pairs)"
            )


def inputs_of(data: Dataset, config: FitConfig) -> Dataset:
    """The samples themselves, or kept in memory in the form that the encoders take."""
    if data.varies or data.is_pooled or not config.training.in_memory:
        return data
    forms = memory_forms(config.model, data.modalities)
    return data if data.is_in_memory and set(forms.values()) == {"rows"} else data.pooled(forms)


def memory_forms(model: ModelConfig, modalities: Sequence[str]) -> dict[str, Pooling]:
    """How the sequences of each modality can be kept."""
    return {name: memory_form(model.encoder_of(name)) for name in modalities}


def memory_form(encoder: EncoderConfig) -> Pooling:
    """How sequences can be kept for an encoder: pooled if it always pools them in the same way, else as rows."""
    if isinstance(encoder, MLPEncoderConfig) and not encoder.row_dropout:
        return encoder.sequence_pooling
    return "rows"


def selection_score(metrics: Mapping[str, float], name: str) -> float:
    """The metric that selects the best epoch; ``level/metric`` is the mean over all directions.

    Example:
        >>> selection_score({"clip/video->text/R@1": 10.0, "clip/text->video/R@1": 20.0}, "clip/R@1")
        15.0
    """
    if name in metrics:
        return metrics[name]
    level, _, metric = name.partition("/")
    both = [value for key, value in metrics.items() if key.startswith(f"{level}/") and key.endswith(f"/{metric}")]
    if not both:
        raise TrainingError(f"validation.select_by is {name!r}, but validation measures only: {', '.join(metrics)}")
    return sum(both) / len(both)
