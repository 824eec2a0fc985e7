"""The run folder of a joint embedding."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save

from crossclr.features import DataError, Source, open_source
from crossclr.features.check.fingerprint import data_changes, fingerprint
from crossclr.models import JointModel, build_model
from crossclr.models.search_space.space import SearchSpace
from crossclr.models.search_space.trained import TrainedEncoder
from crossclr.storage import write_file, write_json
from crossclr.storage.checksums import check_sealed, seal, unlist
from crossclr.storage.json_files import read_json_object
from crossclr.storage.read_error import reading
from crossclr.training.config.config_files import load_config
from crossclr.training.config.run_config import RunConfig
from crossclr.training.run_folder.checkpoint import ADVICE, CheckpointError, load_tensors, save_checkpoint
from crossclr.training.run_folder.checkpoint import MODEL as WEIGHTS
from crossclr.training.run_folder.folder import CONFIG, DATA, ENVIRONMENT, MODEL, RunFolder, Which

SPACE, SPACE_TENSORS = "space.json", "space.safetensors"


class Run(RunFolder[RunConfig]):
    """The run folder of a joint embedding."""

    @classmethod
    def open(cls, path: str | Path) -> "Run":
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
    def create(
        cls, path: Path, config: RunConfig, model: JointModel, state: Mapping[str, Any], source: Source
    ) -> "Run":
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
        if which == "best" and not (self.path / which).is_dir() and (self.path / SPACE).is_file():
            raise ValueError(f"{self.path} has no trained encoder: its search space is the closed form alone")
        return self.load_weights_into(self._new_model(), which)

    def _new_model(self) -> JointModel:
        """The model without its weights."""
        dims, two_level = self.shape.get("dims"), self.shape.get("two_level")
        if not (isinstance(dims, dict) and dims and all(type(dim) is int and dim > 0 for dim in dims.values())):
            raise CheckpointError(f"{self.path / MODEL}: dims must map modalities to channels; restore the file")
        return build_model(self.config.model, dims, bool(two_level))

    def load_space(self, which: Which = "best") -> SearchSpace:
        """The search space of the run, or the model of a checkpoint as a search space of its own.

        Args:
            which: the checkpoint; ``last`` never has a search space that was fitted.
        """
        if which == "last" or not (self.path / SPACE).is_file():
            model = self.load_model(which)
            return SearchSpace(model.dims, None, [TrainedEncoder(model)])
        tensors = load_tensors(self.path / SPACE_TENSORS)
        with reading(self.path / SPACE, "search space", advice=ADVICE, kind=CheckpointError):
            description = read_json_object(self.path / SPACE)
            encoders = []
            for number in range(description["encoders"]):
                model = self._new_model()
                prefix = f"encoder/{number}/"
                model.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
                encoders.append(TrainedEncoder(model))
            own = {key: value for key, value in tensors.items() if not key.startswith("encoder/")}
            return SearchSpace.restore(own, description, encoders)

    def write_space(self, space: SearchSpace) -> None:
        """Store a search space, where `load_space` finds it."""
        tensors = space.tensors()
        for number, encoder in enumerate(space.trained):
            tensors |= {f"encoder/{number}/{key}": value for key, value in encoder.model.state_dict().items()}
        unlist(self.path, [SPACE_TENSORS, SPACE])  # a kill between two files must not look like damage
        write_file(self.path / SPACE_TENSORS, save({key: value.cpu().contiguous() for key, value in tensors.items()}))
        write_json(self.path / SPACE, space.description())
        seal(self.path, [SPACE_TENSORS, SPACE])

    def digest(self, which: Which = "best") -> str:
        """A digest of the weights, to check that embeddings come from this run."""
        space = self.path / SPACE_TENSORS
        file = space if which == "best" and space.is_file() else self.path / which / WEIGHTS
        return hashlib.sha256(file.read_bytes()).hexdigest()

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
