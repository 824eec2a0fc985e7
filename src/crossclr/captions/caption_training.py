"""BertAdam: Adam without bias correction, with gradient clipping per tensor and decoupled weight decay.

Training of a captioner: steps, averaged weights, and the best epoch by caption scores.
"""

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from crossclr.captions.caption_config import CaptionConfig
from crossclr.captions.caption_set import TrainingBatch, TrainingSentences
from crossclr.captions.captioner import Captioner
from crossclr.training import Trainable, TrainingError
from crossclr.training.optimiser import Schedule
from crossclr.training.processes import make_fabric


def warmup_linear(progress: float, warmup: float) -> float:
    """Share of the rate after ``progress`` (0 to 1) of all steps: it rises to one, then falls to zero.

    Example:
        >>> [warmup_linear(progress, 0.1) for progress in (0.0, 0.05, 0.1, 1.0)]
        [0.0, 0.5, 1.0, 0.0]
    """
    if progress < warmup:
        return progress / warmup
    return max(0.0, (1.0 - progress) / (1.0 - warmup))


class BertAdam(torch.optim.Optimizer):
    """m = β₁ m + (1−β₁) g;  v = β₂ v + (1−β₂) g²;  p −= rate · (m / (√v + ε) + decay · p).

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(1))
        >>> weight.grad = torch.tensor([0.5])
        >>> optimiser = BertAdam([weight], lr=0.1, weight_decay=0.0)
        >>> _ = optimiser.step()
        >>> round(float(weight.detach()), 4)  # 1 − 0.1 · (0.1 · 0.5) / √(0.001 · 0.25)
        0.6838
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        max_norm: float = 1.0,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "max_norm": max_norm}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if weights:
                self._move(weights, group)
        return loss

    def _move(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        states = [self.state[weight] for weight in weights]
        for weight, state in zip(weights, states, strict=True):
            if not state:
                state["m"], state["v"] = torch.zeros_like(weight), torch.zeros_like(weight)
        first, second = [state["m"] for state in states], [state["v"] for state in states]
        beta1, beta2 = group["betas"]
        given = [weight.grad for weight in weights if weight.grad is not None]
        norms = torch.stack(torch._foreach_norm(given))
        factors = (group["max_norm"] / (norms + 1e-6)).clamp(max=1.0)
        gradients = torch._foreach_mul(given, list(factors.unbind()))
        torch._foreach_mul_(first, beta1)
        torch._foreach_add_(first, gradients, alpha=1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, value=1 - beta2)
        below = torch._foreach_sqrt(second)
        torch._foreach_add_(below, group["eps"])
        if group["weight_decay"]:
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_addcdiv_(weights, first, below, value=-group["lr"])


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameters with weight decay, and biases and norms without."""
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            (free if "bias" in name or isinstance(module, nn.LayerNorm) else decayed).append(weight)
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": free, "weight_decay": 0.0}]


def smoothed_loss(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """Σ KL(target ‖ softmax) of logits (count, words): 1 − smoothing on the target, the rest spread over all others.

    Example:
        >>> float(smoothed_loss(torch.zeros(1, 4), torch.tensor([2]), 0.0))  # log 4
        1.3862943649291992
    """
    words = logits.shape[1]
    share = smoothing / (words - 1)
    # torch spreads over all words, the right one included: the same target with a slightly larger share
    total = functional.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing * words / (words - 1))
    entropy = -sum(p * math.log(p) * n for p, n in ((1 - smoothing, 1), (share, words - 1)) if p > 0)
    return total - entropy * len(targets)


class MovingAverage:
    """average = d · average + (1 − d) · weights, with d = min(decay, (1 + t) / (10 + t)) at step t.

    A ``decay`` of 0 keeps the weights themselves.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> _ = model.weight.data.fill_(0.0)
        >>> average = MovingAverage(model, 0.9999)
        >>> _ = model.weight.data.fill_(1.0)
        >>> average.update(step=0)  # d = 1 / 10
        >>> round(float(average.weights["weight"]), 4)
        0.9
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay = model, decay
        self.weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the weights after step ``step`` (from 0)."""
        decay = min(self.decay, (1 + step) / (10 + step))
        current = [weight.detach() for weight in self.model.parameters()]
        torch._foreach_lerp_(list(self.weights.values()), current, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[nn.Module]:
        """The model with the averaged weights; its own weights are restored afterwards."""
        current = {name: weight.detach().clone() for name, weight in self.model.named_parameters()}
        try:
            self._put(self.weights)
            yield self.model
        finally:
            self._put(current)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Restore stored averages."""
        for name, weight in self.weights.items():
            weight.copy_(weights[name])

    def _put(self, weights: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, weight in self.model.named_parameters():
                weight.copy_(weights[name])


class CaptionTraining(Trainable[TrainingBatch]):
    """Trains a captioner on the CPU."""

    config: CaptionConfig
    model: Captioner

    def __init__(self, config: CaptionConfig, model: Captioner, sentences: TrainingSentences) -> None:
        self.sentences = sentences
        settings, moves = config.training, config.optimiser
        optimiser = BertAdam(
            parameter_groups(model, moves.weight_decay),
            lr=moves.learning_rate,
            betas=moves.betas,
            eps=moves.epsilon,
            max_norm=moves.gradient_clip,
        )
        self.average = MovingAverage(model, settings.ema_decay)
        batches = sentences.batches_per_epoch(settings.batch_size)
        schedule = Schedule(early_stop=settings.early_stop)
        super().__init__(config, model, optimiser, schedule, make_fabric("cpu"), batches)

    def batches(self, epoch: int, start: int = 0) -> Generator[TrainingBatch, None, None]:
        """The batches of an epoch."""
        yield from self.sentences.batches(self.config.seed, epoch, self.config.training.batch_size, start)

    def learning_rate(self) -> float:
        """A linear warm-up and decay over all steps."""
        moves = self.config.optimiser
        return moves.learning_rate * warmup_linear(self.position.step / self.steps, moves.warmup)

    def loss(self, batch: TrainingBatch) -> tuple[Tensor, int]:
        """The summed loss of a batch and its number of words."""
        hidden = self.model(batch.features, batch.rows, batch.words, batch.lengths, batch.active)
        has_target, targets = batch.targets()
        logits = self.model.logits(hidden[:, :-1][has_target])  # only at positions with a word to predict
        return smoothed_loss(logits, targets, self.config.training.label_smoothing), len(targets)

    def learn(self, batch: TrainingBatch) -> dict[str, float]:
        """One step; returns the mean loss of a word."""
        self.items = len(batch.rows)
        self.model.train()
        loss, words = self.loss(batch)
        value = float(loss.detach()) / words
        if not math.isfinite(value):
            position = self.position
            raise TrainingError(
                f"the loss is {value} at step {position.step} (epoch {position.epoch}); lower optimiser.learning_rate"
            )
        self.optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.optimiser.gradient_clip)
        self.optimiser.step()
        self.average.update(self.position.step)
        return {"loss": value}

    def score(self, metrics: Mapping[str, float]) -> float:
        """The metric ``validation.select_by``."""
        name = self.config.validation.select_by
        if name not in metrics:
            raise TrainingError(f"validation.select_by is {name}, which could not be computed; choose CIDEr instead")
        return metrics[name]

    @contextmanager
    def evaluating(self) -> Iterator[nn.Module]:
        """The model with its averaged weights."""
        with self.average.in_place() as model:
            yield model

    def best_weights(self) -> Mapping[str, Tensor]:
        """The averaged weights."""
        return self.average.weights

    def state_dict(self) -> dict[str, Any]:
        """Everything but the weights."""
        return {**super().state_dict(), "average": self.average.weights}

    def load_state_dict(self, weights: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Resume exactly where ``state_dict`` was taken."""
        super().load_state_dict(weights, state)
        self.average.load(state["average"])
