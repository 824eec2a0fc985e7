"""The default against linear CCA and tuned losses; docs/protocol.md has the rules.

python -m benchmarks.protocol_sets DATA sets
python -m benchmarks.protocol sets --out studies/default
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crossclr.estimator import JointEmbedding
from crossclr.models.closed_form import ClosedForm, choose_linear
from crossclr.models.cross_fit import MEASURES, CrossFit, Grid, Measure, assign_folds
from crossclr.notices import CrossCLRWarning
from crossclr.storage import write_json
from crossclr.studies.significance import paired
from crossclr.studies.tables import Cell, Table

RESULT_SPLITS = (2, 3, 4, 5, 6)
LOSSES = ("crossclr", "clip", "ntxent")
TUNED_ON = 0  # the re-split whose train and validation parts tune the losses
Encode = Callable[[str, Tensor], Tensor]


@dataclass(frozen=True)
class PairedSet:
    """A data set of the protocol."""

    name: str  # of its file
    rows: dict[str, Tensor]  # (samples, channels) of ``video`` and ``text``
    sizes: tuple[int, int, int]  # number of training, validation and test samples
    concepts: Tensor | None  # (samples,) samples of one concept are right answers to each other, or None
    groups: Tensor | None  # (samples,) samples of one group are in one split, or None
    units: Tensor | None  # (samples,) samples of one unit are in one split, but no method knows units, or None
    metric: Measure  # ``recall`` (mean of R@1, R@5, R@10) or ``map``

    @classmethod
    def read(cls, path: Path) -> PairedSet:
        """Read an ``.npz`` file; the arrays have the names of the arguments, and ``video`` and ``text``."""
        with np.load(path, allow_pickle=False) as found:
            if absent := {"video", "text", "sizes"} - set(found):
                raise ValueError(f"{path} lacks the array {sorted(absent)[0]!r}; see docs/protocol.md")
            rows = {name: torch.from_numpy(found[name].astype(np.float32)) for name in ("video", "text")}
            labels = {
                name: torch.from_numpy(np.unique(found[name], return_inverse=True)[1].ravel())
                if name in found
                else None
                for name in ("concepts", "groups", "units")
            }
            metric: Measure = "map" if "metric" in found and str(found["metric"]) == "map" else "recall"
            train, val, test = (int(size) for size in found["sizes"])
        return cls(path.stem, rows, (train, val, test), **labels, metric=metric)

    def resplit(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """Places of the training, validation and test samples of a random re-split."""
        count, generator = len(self.rows["text"]), np.random.default_rng(number)
        units = self.groups if self.units is None else self.units
        if units is None:
            order = generator.permutation(count)
        else:
            rank = generator.permutation(int(units.max()) + 1)
            order = np.argsort(rank[units.numpy()], kind="stable")
        train, val, _ = self.sizes
        places = torch.from_numpy(order)
        return places[:train], places[train : train + val], places[train + val :]

    def at(self, places: Tensor) -> dict[str, Any]:
        """Some of the samples, as `JointEmbedding.fit` takes them."""
        labels = {"concepts": self.concepts, "groups": self.groups}
        given = {name: value[places].numpy() for name, value in labels.items() if value is not None}
        return {"X": {name: rows[places].numpy() for name, rows in self.rows.items()}, **given}

    def measure(self, queries: Encode, items: Encode, test: Tensor) -> dict[str, float]:
        """The metric in both directions, in percent."""
        concepts = None if self.concepts is None else self.concepts[test]
        found: dict[str, float] = {}
        for query, item in (("text", "video"), ("video", "text")):
            scores = queries(query, self.rows[query][test]) @ items(item, self.rows[item][test]).T
            values = MEASURES[self.metric](scores, concepts)
            first = scores.argmax(dim=1)
            own = torch.arange(len(test)) if concepts is None else concepts
            right = (own[first] == own).float()
            found |= {f"{query}->{item}": 100 * float(values.mean()), f"{query}->{item}/R@1": 100 * float(right.mean())}
        return found


def run_default(
    folder: str | Path, out: str | Path, draws: int = 16, report: Callable[[str], None] = print
) -> list[Table]:
    """Run what is missing and return one table for each data set.

    Args:
        folder: of the data sets, one ``.npz`` file each.
        out: where results are stored, one JSON file for each method and split; finished ones are never repeated.
        draws: settings that are tried to tune each loss; 0: no loss is trained.
        report: called with a line for each finished step.
    """
    paths = sorted(Path(folder).glob("*.npz"))
    if not paths:
        raise FileNotFoundError(f"{folder} has no .npz files; docs/protocol.md says what they hold")
    return [_run_set(PairedSet.read(path), _Results(Path(out) / path.stem, report), draws) for path in paths]


def _run_set(data: PairedSet, results: _Results, draws: int) -> Table:
    for split in RESULT_SPLITS:
        results.once(f"linear-validation-{split}", partial(closed_form, data, split, by_folds=False))
        results.once(f"linear-folds-{split}", partial(closed_form, data, split))
        results.once(f"kernel-folds-{split}", partial(closed_form, data, split, Grid()))
        results.once(f"default-{split}", partial(default, data, split))
        if data.concepts is not None:
            results.once(f"default-untold-{split}", partial(default, data, split, told=False))
    for loss in LOSSES if draws else ():
        found = [results.once(f"tune-{loss}-{number}", partial(draw, data, loss, number)) for number in range(draws)]
        best = max(found, key=lambda one: one["score"])["options"]
        for split in RESULT_SPLITS:
            results.once(f"{loss}-{split}", partial(tuned, data, loss, best, split))
    return _table(data, results, draws)


class _Results:
    """Results by name, each in a file of its own."""

    def __init__(self, folder: Path, report: Callable[[str], None]) -> None:
        self.folder, self.report = folder, report
        folder.mkdir(parents=True, exist_ok=True)

    def once(self, name: str, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        path = self.folder / f"{name}.json"
        if not path.is_file():
            write_json(path, run())
            self.report(f"{self.folder.name} {name}: {path.read_text().strip()}")
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def of(self, method: str, key: str) -> list[float]:
        return [float(self.once(f"{method}-{split}", dict)[key]) for split in RESULT_SPLITS]

    def means(self, method: str) -> list[float]:
        """The mean of both directions for each split."""
        there, back = (self.of(method, key) for key in ("text->video", "video->text"))
        return [(x + y) / 2 for x, y in zip(there, back, strict=True)]


def closed_form(data: PairedSet, split: int, grid: Grid | None = None, by_folds: bool = True) -> dict[str, float]:
    """Kernel CCA with the best settings of a grid, the same for both modalities; without a grid, linear CCA.

    Four folds of train and validation choose them, or the validation part alone does. The model is refitted on both
    parts if folds choose, and fitted on the training part otherwise.
    """
    train, val, test = data.resplit(split)
    both = torch.cat([train, val])
    groups, concepts = (None if labels is None else labels[both] for labels in (data.groups, data.concepts))
    rows = {name: values[both] for name, values in data.rows.items()}
    folds = torch.cat([torch.full((len(train),), -1), torch.zeros(len(val), dtype=torch.int64)])
    if by_folds:
        folds = assign_folds(len(both), 4, groups, concepts)
    if grid is None:
        settings = choose_linear(rows, folds, concepts=concepts, measure=data.metric)
    else:
        search = CrossFit(rows, concepts=concepts, measure=data.metric, folds=folds)
        settings = search.search_all(grid)[0].settings
    used = both if by_folds else train
    model = ClosedForm(settings).fit({name: values[used] for name, values in data.rows.items()})
    return data.measure(model.encode, model.encode, test)


def default(data: PairedSet, split: int, told: bool = True) -> dict[str, Any]:
    """`JointEmbedding()` on train and validation; ``told``: it gets the concepts."""
    train, val, test = data.resplit(split)
    known = data.at(torch.cat([train, val]))
    if not told:
        del known["concepts"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CrossCLRWarning)
        joint = JointEmbedding(verbose=False).fit(**known)
    measured: dict[str, Any] = data.measure(joint.space_.encode_queries, joint.space_.encode_items, test)
    return measured | {
        "parts": {part.name: part.share for part in joint.parts_},
        "settings": joint.space_.facts.settings,
    }


def draw(data: PairedSet, loss: str, number: int) -> dict[str, Any]:
    """One tuning draw: trained on the training part of re-split 0, scored on its validation part."""
    rng = np.random.default_rng([number, LOSSES.index(loss)])
    low, high = np.log(0.02), np.log(0.3)
    options = {
        "temperature": float(np.exp(rng.uniform(low, high))),
        "learning_rate": float(np.exp(rng.uniform(np.log(3e-4), np.log(3e-3)))),
    }
    train, val, _ = data.resplit(TUNED_ON)
    found = _trained(data, loss, options, train, val)
    return {"score": (found["text->video"] + found["video->text"]) / 2, "options": options}


def tuned(data: PairedSet, loss: str, options: dict[str, float], split: int) -> dict[str, float]:
    """A loss with its tuned options, trained on train and validation."""
    train, val, test = data.resplit(split)
    return _trained(data, loss, options, torch.cat([train, val]), test)


def _trained(data: PairedSet, loss: str, options: dict[str, float], train: Tensor, test: Tensor) -> dict[str, float]:
    own: dict[str, Any] = {"temperature": options["temperature"]}
    if loss == "clip":
        own["learnable"] = False
    joint = JointEmbedding("paper", loss=loss, loss_options=own, learning_rate=options["learning_rate"])
    space = joint.fit(**data.at(train)).space_
    return data.measure(space.encode_queries, space.encode_items, test)


def _table(data: PairedSet, results: _Results, draws: int) -> Table:
    methods = {
        "linear CCA, chosen on validation": "linear-validation",
        "linear CCA, chosen by folds": "linear-folds",
        "kernel CCA, chosen by folds": "kernel-folds",
        **({f"{loss}, best of {draws} draws": loss for loss in LOSSES} if draws else {}),
        **({"default, not told of concepts": "default-untold"} if data.concepts is not None else {}),
        "default": "default",
    }
    keys = ("text->video", "video->text", "text->video/R@1", "video->text/R@1")
    rows = [[Cell(text=title), *(Cell.of(results.of(name, key)) for key in keys)] for title, name in methods.items()]
    rivals = {title: name for title, name in methods.items() if name not in ("linear-folds", "default")}
    differences = [
        paired(results.means("default"), results.means(name), title).words() for title, name in rivals.items()
    ]
    heads = ["", "text → video", "video → text", "R@1 text → video", "R@1 video → text"]
    metric = "mean of R@1, R@5, R@10" if data.metric == "recall" else "mAP"
    splits = ", ".join(map(str, RESULT_SPLITS))
    caption = f"{metric}, re-splits {splits}. Mean of both directions: {'; '.join(differences)}."
    return Table(f"default-{data.name}", data.name, heads, rows, caption)


def main() -> None:
    """Run what is missing and print the tables."""
    from rich.console import Console

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="folder of the data sets, one .npz file each")
    parser.add_argument("--out", required=True, help="folder of the results; finished ones are never repeated")
    parser.add_argument("--draws", type=int, default=16, help="settings that are tried to tune each loss; 0: no loss")
    given, console = parser.parse_args(), Console()
    for table in run_default(given.folder, given.out, draws=given.draws, report=console.print):
        console.print(*table.rich())
        console.print(table.caption, "", highlight=False, style="dim")


if __name__ == "__main__":
    main()
