"""The default options of CrossCLR against CLIP: the same small MLP on pooled features, temperatures tuned alike.

    python -m benchmarks.loss_defaults sets --out studies/loss-defaults.jsonl
    python -m benchmarks.loss_defaults sets --out studies/loss-defaults.jsonl --test CrossCLR

The sets are the files of `benchmarks.protocol_sets`. Re-split 0 of each divides it into a pool and a test part, of at
most 1,000 samples each. The first command trains each candidate at each temperature on random four fifths of the pool
and measures mAP, the mean of both directions, on the other fifth; it never reads the test part. The second takes the
best temperature of each loss, trains on the whole pool and measures the test part. A finished training is never
repeated.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.protocol import PairedSet
from crossclr.losses import CLIP, CrossCLR
from crossclr.models.cross_fit import average_precisions
from crossclr.notices import CrossCLRWarning

TEMPERATURES = (0.03, 0.07, 0.15, 0.3)
MOST, BATCH, EPOCHS, WIDTH, DIM = 1000, 200, 15, 256, 128
even = partial(CrossCLR, weight_scale=None)
limited = partial(CrossCLR, weight_scale=0.0035, min_effective=0.5)
quantile: dict[str, Any] = {"prune_by": "quantile", "prune_threshold": 0.9}
shared: dict[str, Any] = {"near_copies": 0.1, "shared_positives": 0.2}
LOSSES: dict[str, Callable[..., nn.Module]] = {
    "CLIP": lambda temperature: CLIP(temperature, learnable=False),
    "CrossCLR": CrossCLR,
    "no weights + near-copies 0.1 + shared 0.2": partial(even, **shared),
    "quantile + no weights + near-copies 0.1 + shared 0.2": partial(even, **quantile, **shared),
    "quantile + limited + near-copies 0.1 + shared 0.2": partial(limited, **quantile, **shared),
    "quantile + no weights + near-copies 0.1 + shared 0.2 + λ 0.5": partial(
        even, **quantile, **shared, intra_weight=0.5
    ),
    "unpruned + no weights + near-copies 0.1 + shared 0.2": partial(even, prune_threshold=None, **shared),
    "quantile + no weights + near-copies 0.1": partial(even, **quantile, near_copies=0.1),
    "quantile + no weights + near-copies 0.1 + λ 0.5": partial(even, **quantile, near_copies=0.1, intra_weight=0.5),
    "quantile + no weights + near-copies 0.1 + shared 0.1 + λ 0.5": partial(
        even, **quantile, near_copies=0.1, shared_positives=0.1, intra_weight=0.5
    ),
    "quantile + no weights + near-copies 0.1 + shared 0.1 + λ 0.3": partial(
        even, **quantile, near_copies=0.1, shared_positives=0.1, intra_weight=0.3
    ),
    "limited + near-copies 0.1 + shared 0.2": partial(limited, **shared),
    "limited + near-copies 0.1": partial(limited, near_copies=0.1),
    "no weights": even,
    "unlimited weights": partial(CrossCLR, weight_scale=0.0035, min_effective=0.0),
}


class Part:
    """The rows of one set and its places: a pool for training and choosing, and a test part."""

    def __init__(self, path: Path) -> None:
        data = PairedSet.read(path)
        train, val, test = data.resplit(0)
        pool = torch.cat([train, val])
        self.name, self.rows, self.concepts = path.stem, data.rows, data.concepts
        self.units = data.groups if data.units is None else data.units
        order = torch.from_numpy(np.random.default_rng(0).permutation(len(pool)))
        self.pool, self.test = pool[order[:MOST]], test[:MOST]

    def division(self, seed: int) -> tuple[Tensor, Tensor]:
        """Random four fifths of the pool, and the rest; samples of one unit stay together."""
        generator = np.random.default_rng(seed)
        units = torch.arange(len(self.pool)) if self.units is None else self.units[self.pool]
        rank = generator.permutation(int(units.max()) + 1)
        places = self.pool[torch.from_numpy(np.argsort(rank[units.numpy()], kind="stable"))]
        return places[: len(places) * 4 // 5], places[len(places) * 4 // 5 :]

    def measure(self, loss: nn.Module, seed: int, train: Tensor, held_out: Tensor) -> list[float]:
        """Train from a seed; the average precision of each held-out sample in percent, mean of both directions."""
        spaces = fit(loss, {name: rows[train] for name, rows in self.rows.items()}, seed)
        embedded = {name: space(self.rows[name][held_out]) for name, space in spaces.items()}
        scores = embedded["text"] @ embedded["video"].T
        concepts = None if self.concepts is None else self.concepts[held_out]
        values = (average_precisions(scores, concepts) + average_precisions(scores.T, concepts)) / 2
        return [round(100 * float(value), 3) for value in values]


def fit(loss: nn.Module, rows: dict[str, Tensor], seed: int) -> dict[str, Callable[[Tensor], Tensor]]:
    """An MLP on standardised rows for each modality; the loss gets the rows as they are."""
    torch.manual_seed(seed)
    moments = {name: (values.mean(0), values.std(0) + 1e-3) for name, values in rows.items()}
    mlps = nn.ModuleDict(
        {
            name: nn.Sequential(
                *(nn.Linear(values.shape[1], WIDTH), nn.GELU(), nn.Dropout(0.3), nn.Linear(WIDTH, DIM)),
            )
            for name, values in rows.items()
        }
    )
    count = len(rows["text"])
    steps = EPOCHS * -(-count // BATCH)
    optimiser = torch.optim.AdamW(mlps.parameters(), 3e-3, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(EPOCHS):
        for here in torch.randperm(count).split(BATCH):  # type: ignore[no-untyped-call]
            features = {name: values[here] for name, values in rows.items()}
            embedded = {name: mlps[name](apply(values, moments[name])) for name, values in features.items()}
            optimiser.zero_grad()
            loss(embedded, features=features).backward()
            optimiser.step()
            schedule.step()
    mlps.eval()
    return {name: partial(embed, mlps[name], moments[name]) for name in rows}


def apply(rows: Tensor, moments: tuple[Tensor, Tensor]) -> Tensor:
    """Rows with mean 0 and deviation 1 in the training samples."""
    return (rows - moments[0]) / moments[1]


@torch.no_grad()
def embed(mlp: nn.Module, moments: tuple[Tensor, Tensor], rows: Tensor) -> Tensor:
    """Unit vectors of new rows."""
    return nn.functional.normalize(mlp(apply(rows, moments)), dim=1)


class Journal:
    """Finished trainings, a line each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.values: dict[str, list[float]] = dict(json.loads(line) for line in lines)

    def once(self, key: Sequence[Any], train: Callable[[], list[float]]) -> list[float]:
        """The values stored under a key, or those of the training."""
        name = json.dumps(key, ensure_ascii=False)
        if name not in self.values:
            self.values[name] = train()
            with self.path.open("a") as file:
                file.write(json.dumps([name, self.values[name]], ensure_ascii=False) + "\n")
        return self.values[name]


def validation(part: Part, journal: Journal, loss: str, temperature: float, seeds: int) -> float:
    """mAP on the held-out fifths of the pool, mean over the divisions."""
    means = []
    for seed in range(seeds):
        train, held_out = part.division(seed)
        key = ("validation", part.name, loss, temperature, seed)
        means.append(mean(journal.once(key, lambda: part.measure(LOSSES[loss](temperature), seed, train, held_out))))  # noqa: B023
    return mean(means)


def on_test(part: Part, journal: Journal, loss: str, temperature: float, seeds: int) -> list[float]:
    """Average precision of each test sample, mean over the seeds."""
    values = []
    for seed in range(seeds):
        key = ("test", part.name, loss, temperature, seed)
        values.append(journal.once(key, lambda: part.measure(LOSSES[loss](temperature), seed, part.pool, part.test)))  # noqa: B023
    return [mean(column) for column in zip(*values, strict=True)]


def choose(part: Part, journal: Journal, losses: Sequence[str], seeds: int) -> dict[str, float]:
    """Print the validation mAP of each loss; returns the best temperature of each."""
    best = {}
    for loss in losses:
        scores = {temperature: validation(part, journal, loss, temperature, seeds) for temperature in TEMPERATURES}
        best[loss] = max(TEMPERATURES, key=scores.__getitem__)
        row = " ".join(f"{score:6.2f}" for score in scores.values())
        print(f"{part.name:16} {loss:42} {row}   best {max(scores.values()):6.2f}", flush=True)
    return best


def compare(part: Part, journal: Journal, loss: str, seeds: int, test_seeds: int) -> None:
    """Print the test mAP of a loss and of CLIP and their difference, with the standard error over test samples."""
    best = choose(part, journal, ("CLIP", loss), seeds)
    rival, ours = (on_test(part, journal, name, best[name], test_seeds) for name in ("CLIP", loss))
    difference = [one - other for one, other in zip(ours, rival, strict=True)]
    error = stdev(difference) / len(difference) ** 0.5
    both = f"CLIP {mean(rival):.2f} (τ {best['CLIP']:g}), {loss} {mean(ours):.2f} (τ {best[loss]:g})"
    print(f"{part.name:16} test: {both}, difference {mean(difference):+.2f} ± {error:.2f}", flush=True)


def main() -> None:
    """Run what is missing and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path)
    parser.add_argument("--names", default="vrd,emoji,exercises,msvd,photos,breakfast,youcook2-spoken")
    parser.add_argument("--losses", default=",".join(LOSSES), help="separated by commas")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=2, help="divisions of the pool")
    parser.add_argument("--test", metavar="LOSS", help="compare this loss with CLIP on the test parts")
    parser.add_argument("--test-seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", CrossCLRWarning)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    journal = Journal(options.out)
    losses = options.losses.split(",")
    for name in options.names.split(","):
        part = Part(options.sets / f"{name}.npz")
        if options.test:
            compare(part, journal, options.test, options.seeds, options.test_seeds)
        else:
            choose(part, journal, losses, options.seeds)


if __name__ == "__main__":
    main()
