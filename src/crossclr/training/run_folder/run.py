"""A run folder: the only thing that passes from one command to the next.

config.yaml        the whole config, defaults included
environment.json   versions, machine, command
model.json         input dims and levels of the model, so that it can be built without the data
metrics.jsonl      one line for every few steps and one for every epoch; equal runs have equal bytes
tensorboard/       the same as events, with times
last/  best/       checkpoints; training continues from ``last``; what was fitted for search lies in ``best``
results.json       the final evaluation; present when the run is finished
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from crossclr.features import ArraysConfig, CootConfig, Source, open_source
from crossclr.features.sources.data_config import ShardsConfig
from crossclr.models import Anchors, Hubs, TwoBranch, Views, build_model
from crossclr.storage import new_folder, restore_folder, write_file, write_json
from crossclr.training.config.config_files import dump_config, load_config
from crossclr.training.config.run_config import RunConfig
from crossclr.training.processes import launch
from crossclr.training.run_folder.checkpoint import MODEL as WEIGHTS
from crossclr.training.run_folder.checkpoint import (
    BackgroundWriter,
    CheckpointError,
    load_checkpoint,
    load_weights,
    save_checkpoint,
    snapshot,
)
from crossclr.training.run_folder.journal import Journal, read_metrics

CONFIG, ENVIRONMENT, MODEL, RESULTS = "config.yaml", "environment.json", "model.json", "results.json"
VIEWS, ANCHORS, HUBS = "views.safetensors", "anchors.safetensors", "hubs.safetensors"
PACKAGES = ("torch", "numpy", "scipy", "pydantic", "safetensors", "lightning-fabric")


@dataclass(frozen=True)
class Run:
    """A run folder and its config."""

    path: Path
    config: RunConfig

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """Open an existing run folder.

        Raises:
            FileNotFoundError: there is none at ``path``.
        """
        path = Path(path)
        if not (path / CONFIG).is_file() or not (path / MODEL).is_file():
            seeds = sorted(folder.parent.name for folder in path.glob(f"seed-*/{CONFIG}"))
            hint = f"; it holds the runs {', '.join(seeds)}: name one of them" if seeds else ""
            raise FileNotFoundError(f"{path} is no run folder ({CONFIG} or {MODEL} is absent){hint}")
        return cls(path, load_config(path / CONFIG))

    @classmethod
    def create(
        cls, path: Path, config: RunConfig, model: TwoBranch, weights: Mapping[str, Tensor], state: Mapping[str, Any]
    ) -> Run:
        """Make a run folder with its first checkpoint; it appears complete or not at all."""
        if path.exists():
            raise FileExistsError(f"{path} is already there; continue it with --resume {path} or choose another --out")
        config = config.model_copy(update={"data": with_absolute_paths(config.data)})
        with new_folder(path) as partial:
            write_file(partial / CONFIG, dump_config(config))
            write_json(partial / ENVIRONMENT, environment())
            write_json(partial / MODEL, {"dims": list(model.dims), "two_level": model.two_level})
            save_checkpoint(partial / "last", weights, state)
        return cls(path, config)

    def load_model(self, which: Literal["best", "last"] = "best", fitted: bool = True) -> TwoBranch:
        """The trained model, in evaluation mode on the CPU.

        Args:
            which: the checkpoint.
            fitted: with what was fitted for search after training, if anything; it belongs to the best checkpoint.
        """
        if which not in ("best", "last"):
            raise ValueError(f"a run has the checkpoints best and last, not {which!r}")
        weights = load_weights(self.path / which)
        shape = json.loads((self.path / MODEL).read_text())
        model = build_model(self.config.model, tuple(shape["dims"]), shape["two_level"])
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:
            raise CheckpointError(f"the weights in {self.path / which} do not fit {CONFIG}: {error}") from error
        if fitted and which == "best":
            views, anchors, hubs = (self._read_fitted(name) for name in (VIEWS, ANCHORS, HUBS))
            if views and self.config.views is not None:
                model.views = Views(**views)
            if anchors and self.config.anchors is not None:
                model.anchors = Anchors(self.config.anchors, **anchors)
            if hubs and self.config.hubs is not None:
                sides = [side for side in ("a", "b") if f"queries_{side}" in hubs]
                model.hubs = {s: Hubs(hubs[f"queries_{s}"], *hubs[f"settings_{s}"].tolist()) for s in sides}
        return model.eval()

    def digest(self, which: Literal["best", "last"] = "best") -> str:
        """What tells whether embeddings are those of this model: of its weights and of the views beside them."""
        found = hashlib.sha256((self.path / which / WEIGHTS).read_bytes())
        if which == "best" and (self.path / which / VIEWS).is_file():
            found.update((self.path / which / VIEWS).read_bytes())
        return found.hexdigest()

    def write_fitted(self, model: TwoBranch) -> None:
        """Put what was fitted for search beside the best weights, from where `load_model` takes it."""
        found: dict[str, dict[str, Tensor]] = {VIEWS: {}, ANCHORS: {}, HUBS: {}}
        if model.views is not None:
            found[VIEWS] = model.views.tensors()
        if model.anchors is not None:
            found[ANCHORS] = {"clips": model.anchors.clips, "sentences": model.anchors.sentences}
        for side, hubs in model.hubs.items():
            settings = torch.tensor([hubs.sharpness, hubs.weight], dtype=torch.float64)
            found[HUBS] |= {f"queries_{side}": hubs.queries, f"settings_{side}": settings}
        for name, tensors in found.items():
            path = self.path / "best" / name
            if tensors:
                write_file(path, save({key: value.cpu().contiguous() for key, value in tensors.items()}))
            else:
                path.unlink(missing_ok=True)

    def _read_fitted(self, name: str) -> dict[str, Tensor]:
        path = self.path / "best" / name
        if not path.is_file():
            return {}
        try:
            return load_file(path)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error

    def load_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Weights and state to continue from."""
        return load_checkpoint(self.path / "last")

    def open_source(self) -> Source:
        """The data of the run."""
        return open_source(self.config.data)

    def metrics(self) -> list[dict[str, Any]]:
        """The records of ``metrics.jsonl``."""
        return read_metrics(self.path)

    @property
    def launch(self) -> str | None:
        """The call of torchrun that began the run."""
        path = self.path / ENVIRONMENT
        found: str | None = json.loads(path.read_text()).get("launch") if path.is_file() else None
        return found

    @property
    def results(self) -> dict[str, Any] | None:
        """The final evaluation, or None while the run is not finished."""
        path = self.path / RESULTS
        if not path.is_file():
            return None
        loaded: dict[str, Any] = json.loads(path.read_text())
        return loaded

    def write_results(self, results: Mapping[str, Any]) -> None:
        """Store the final evaluation; this is what makes a run finished."""
        write_json(self.path / RESULTS, results)


class RunRecorder:
    """Keeps in a run folder what the loop produces.

    Args:
        run: the folder.
        state: the state that the run continues from, which tells how much of the metrics belongs to it.
    """

    def __init__(self, run: Run, state: Mapping[str, Any] | None = None) -> None:
        for name in ("last", "best"):
            restore_folder(run.path / name)
        size, step = (0, 0) if state is None else (state.get("metrics_bytes", 0), state["position"]["step"])
        self.run = run
        self.journal = Journal(run.path, size, step)
        self._writer = BackgroundWriter()

    def log(self, record: Mapping[str, Any]) -> None:
        """Append to the metrics."""
        self.journal.log(record)

    def save(self, weights: Mapping[str, Tensor], state: Mapping[str, Any], best: bool) -> None:
        """Take a copy and let it be written while training goes on; waits where the one before is not finished."""
        self._writer.wait()
        taken = snapshot({**state, "metrics_bytes": self.journal.written})
        self._writer.start(self._write, snapshot(weights), taken, best)

    def flush(self) -> None:
        """Wait until the last checkpoint is on the disk."""
        self._writer.wait()

    def close(self) -> None:
        """Finish writing and close the metrics."""
        try:
            self._writer.wait()
        finally:
            self.journal.close()

    def _write(self, weights: Mapping[str, Tensor], state: Mapping[str, Any], best: bool) -> None:
        # `best` before `last`: a kill between them repeats the epoch and writes the same `best` again
        self.journal.sync()
        if best:
            chosen = {"position": state["position"], "schedule": state["schedule"]}
            save_checkpoint(self.run.path / "best", weights, chosen)
        save_checkpoint(self.run.path / "last", weights, state)


def with_absolute_paths(data: Any) -> Any:
    """The data config with the places that its files were found at, so that the run can be opened from anywhere."""

    def found(place: str, option: str) -> str:
        file, mark, name = place.partition("#")
        return str(data.resolve(file, option).absolute()) + mark + name if file else place

    if isinstance(data, CootConfig):
        names = {"meta": found(data.meta, "meta")}
        lists = {side: [found(path, side) for path in getattr(data, side)] for side in ("video", "text")}
        return data.model_copy(update={**names, **lists})
    if isinstance(data, ArraysConfig):
        update: dict[str, Any] = {}
        for side in ("a", "b"):
            update[side] = [
                expert.model_copy(update={n: found(p, side) for n, p in expert if p is not None})
                for expert in getattr(data, side)
            ]
        for option in ("splits", "texts", "groups"):
            place = getattr(data, option)
            update[option] = None if place is None else found(place, option)
        return data.model_copy(update=update)
    if isinstance(data, ShardsConfig):
        return data.model_copy(
            update={"shards": {split: [str(place) for place in data.places(split)] for split in data.shards}}
        )
    return data


def environment() -> dict[str, Any]:
    """What the figures of a run may depend on beside its config."""
    packages = {}
    for name in PACKAGES:
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            packages[name] = "absent"
    return {
        "crossclr": metadata.version("crossclr"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": packages,
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
        "devices": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "command": sys.argv,
        "launch": launch(),
    }


def free_folder(wanted: Path) -> Path:
    """``wanted``, or the first of ``wanted-2``, ``wanted-3``, ... that is not there yet.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> free_folder(folder).name == folder.name + "-2", free_folder(folder / "new").name
        (True, 'new')
    """
    candidate, number = wanted, 1
    while candidate.exists():
        number += 1
        candidate = wanted.with_name(f"{wanted.name}-{number}")
    return candidate
