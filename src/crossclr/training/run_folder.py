"""The environment of a run: everything except its config that may affect its results.

The files of every run folder. Commands pass data to each other only through run folders.

config.yaml        the whole config, defaults included
data.json          a fingerprint of the data
checksums.json     size and checksum of every file that no longer changes; the checkpoints have their own
environment.json   versions, machine, command
model.json         sizes of the model, to build it without the data
metrics.jsonl      one line for every few steps and one for every epoch; equal runs have equal bytes
tensorboard/       the same as events, with times
last/  best/       checkpoints; training resumes from ``last``
results.json       the final evaluation; present when the run is finished
"""

import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import torch
from pydantic import BaseModel
from torch import Tensor, nn

from crossclr.storage import new_folder, write_file, write_json
from crossclr.storage.manifest import seal
from crossclr.storage.reading import parse_json, read_json_object
from crossclr.training.checkpoint import CheckpointError, load_checkpoint, load_weights
from crossclr.training.config_files import dump_config
from crossclr.training.processes import launch

PACKAGES = ("torch", "numpy", "scipy", "pydantic", "safetensors", "lightning-fabric")


def environment() -> dict[str, Any]:
    """Versions, machine, devices and command."""
    return {
        "crossclr": metadata.version("crossclr"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
        "devices": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "command": sys.argv,
        "launch": launch(),
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"


CONFIG, ENVIRONMENT, MODEL, RESULTS = "config.yaml", "environment.json", "model.json", "results.json"
DATA, METRICS = "data.json", "metrics.jsonl"
ConfigT = TypeVar("ConfigT", bound=BaseModel)
ModuleT = TypeVar("ModuleT", bound=nn.Module)
Which = Literal["best", "last"]


@dataclass(frozen=True)
class RunFolder(Generic[ConfigT]):
    """A run folder and its config.

    Args:
        path: the folder.
        config: the config of the run.
    """

    path: Path
    config: ConfigT

    @staticmethod
    @contextmanager
    def creating(
        path: Path, config: BaseModel, shape: Mapping[str, Any] | None, *, replace: bool = False
    ) -> Iterator[Path]:
        """A temporary folder with the files that every run has; add the others, and it becomes ``path``.

        Args:
            path: the run folder.
            config: the config of the run.
            shape: sizes of the model; None where there is no model.
            replace: replace an existing folder.

        Raises:
            FileExistsError: there is a folder already.
        """
        if path.exists() and not replace:
            raise FileExistsError(f"{path} already exists; resume it with --resume {path} or choose another --out")
        with new_folder(path, replace=replace) as folder:
            write_file(folder / CONFIG, dump_config(config))
            write_json(folder / ENVIRONMENT, environment())
            if shape is not None:
                write_json(folder / MODEL, shape)
            yield folder

    @property
    def shape(self) -> dict[str, Any]:
        """Sizes of the model."""
        return read_json_object(self.path / MODEL, kind=CheckpointError)

    def load_weights_into(self, model: ModuleT, which: Which) -> ModuleT:
        """Load the weights of a checkpoint; returns the model in evaluation mode.

        Raises:
            ValueError: there is no such checkpoint.
            CheckpointError: the weights do not fit the model.
        """
        if which not in ("best", "last"):
            raise ValueError(f"a run has the checkpoints best and last, not {which!r}")
        try:
            model.load_state_dict(load_weights(self.path / which))
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:300]
            raise CheckpointError(f"the weights in {self.path / which} do not fit {CONFIG}: {reason}") from error
        return model.eval()

    def load_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Weights and state to resume from."""
        return load_checkpoint(self.path / "last")

    def metrics(self) -> list[dict[str, Any]]:
        """The records of ``metrics.jsonl``, without a last line that a kill cut short."""
        path = self.path / METRICS
        if not path.is_file():
            return []
        lines = path.read_bytes().split(b"\n")
        whole = enumerate(lines[:-1], 1)  # text after the last line end is an incomplete line
        return [parse_json(line, f"{path} line {number}") for number, line in whole]

    def history(self) -> dict[str, Any]:
        """The part of the results about training: epochs, best epoch, its validation, a warning."""
        epochs = [record for record in self.metrics() if record["kind"] == "epoch"]
        best = [record for record in epochs if record.get("best")]
        warnings = [record["warning"] for record in epochs if "warning" in record]
        return {
            "epochs": len(epochs),
            "best_epoch": best[-1]["epoch"] if best else len(epochs) - 1,
            "validation": best[-1]["validation"] if best else None,
            "warning": warnings[0] if warnings else None,
        }

    @property
    def results(self) -> dict[str, Any] | None:
        """The final evaluation, or None while the run is not finished."""
        path = self.path / RESULTS
        return read_json_object(path, kind=CheckpointError) if path.is_file() else None

    def write_results(self, results: Mapping[str, Any]) -> None:
        """Store the final evaluation, which marks the run as finished."""
        write_json(self.path / RESULTS, results)
        seal(self.path, [RESULTS])


def free_folder(wanted: Path) -> Path:
    """``wanted``, or the first of ``wanted-2``, ``wanted-3``, ... that does not exist.

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
