"""The run folder of a joint embedding."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crossclr.features import DataError, Source, open_source
from crossclr.features.check.fingerprint import data_changes, fingerprint
from crossclr.models import JointModel, build_model
from crossclr.storage import write_json
from crossclr.storage.checksums import check_sealed
from crossclr.storage.json_yaml import read_json_object
from crossclr.training.config.config_files import load_config
from crossclr.training.config.run_config import RunConfig
from crossclr.training.run_folder.checkpoint import MODEL as WEIGHTS
from crossclr.training.run_folder.checkpoint import save_checkpoint
from crossclr.training.run_folder.folder import CONFIG, DATA, ENVIRONMENT, MODEL, RunFolder, Which


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
        check_sealed(path)
        return cls(path, load_config(path / CONFIG))

    @classmethod
    def create(cls, path: Path, config: RunConfig, model: JointModel, state: Mapping[str, Any], source: Source) -> Run:
        """Write a run folder with its first checkpoint; it appears complete or not at all."""
        config = config.model_copy(update={"data": config.data.with_absolute_paths()})
        with cls.creating(path, config, shape_of(model)) as folder:
            roles = [config.splits.train, config.splits.validate_, config.splits.test]
            splits = dict.fromkeys([*source.splits, *(split for split in roles if split is not None)])
            write_json(folder / DATA, fingerprint(source, list(splits)))
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

    def open_source(self, check: bool = True) -> Source:
        """The data of the run.

        Args:
            check: compare it with the fingerprint that the run stored.

        Raises:
            DataError: the data is not what it was when the run was created.
        """
        source = open_source(self.config.data)
        before = self.path / DATA
        if check and before.is_file() and (found := data_changes(read_json_object(before), source)):
            raise DataError(
                f"the data changed since {self.path} was created: {'; '.join(found)}. Restore the data, or, if you "
                f"changed it on purpose, run: crossclr verify {self.path} --accept"
            )
        return source

    @property
    def launch(self) -> str | None:
        """The call of torchrun that started the run."""
        path = self.path / ENVIRONMENT
        found: str | None = read_json_object(path).get("launch") if path.is_file() else None
        return found


def shape_of(model: JointModel) -> dict[str, Any]:
    """The sizes of a model for `RunFolder.creating`."""
    return {"dims": model.dims, "two_level": model.two_level}
