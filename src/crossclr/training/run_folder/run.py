"""The run folder of a joint embedding."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crossclr.features import Source, open_source
from crossclr.models import JointModel, build_model
from crossclr.training.config.config_files import load_config
from crossclr.training.config.run_config import RunConfig
from crossclr.training.run_folder.checkpoint import MODEL as WEIGHTS
from crossclr.training.run_folder.checkpoint import save_checkpoint
from crossclr.training.run_folder.folder import CONFIG, ENVIRONMENT, MODEL, RunFolder, Which


class Run(RunFolder[RunConfig]):
    """The run folder of a joint embedding."""

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
            raise FileNotFoundError(f"{path} is not a run folder ({CONFIG} or {MODEL} is absent){hint}")
        return cls(path, load_config(path / CONFIG))

    @classmethod
    def create(cls, path: Path, config: RunConfig, model: JointModel, state: Mapping[str, Any]) -> Run:
        """Write a run folder with its first checkpoint; it appears complete or not at all."""
        config = config.model_copy(update={"data": config.data.with_absolute_paths()})
        with cls.creating(path, config, shape_of(model)) as folder:
            save_checkpoint(folder / "last", model.state_dict(), state)
        return cls(path, config)

    def load_model(self, which: Which = "best") -> JointModel:
        """The trained model, in evaluation mode on the CPU.

        Args:
            which: the checkpoint.
        """
        shape = self.shape
        model = build_model(self.config.model, shape["dims"], shape["two_level"])
        return self.load_weights_into(model, which)

    def digest(self, which: Which = "best") -> str:
        """A digest of the weights, to check that embeddings come from this model."""
        return hashlib.sha256((self.path / which / WEIGHTS).read_bytes()).hexdigest()

    def open_source(self) -> Source:
        """The data of the run."""
        return open_source(self.config.data)

    @property
    def launch(self) -> str | None:
        """The call of torchrun that started the run."""
        path = self.path / ENVIRONMENT
        found: str | None = json.loads(path.read_text()).get("launch") if path.is_file() else None
        return found


def shape_of(model: JointModel) -> dict[str, Any]:
    """The sizes of a model for `RunFolder.creating`."""
    return {"dims": model.dims, "two_level": model.two_level}
