"""The run folder of a joint embedding.

Compare a run folder, an index or an export with its manifests, and a run with its data.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save

from crossclr.data import DataError, Dataset, open_data
from crossclr.data.fingerprint import data_changes, fingerprint
from crossclr.errors import ReadError
from crossclr.models import JointModel, build_model
from crossclr.models.space import SearchSpace, TrainedEncoder
from crossclr.storage import write_file, write_json
from crossclr.storage.manifest import NAME, changes, check_sealed, file_digest, renew, seal, sealed_folders, unlist
from crossclr.storage.reading import read_json_object, reading
from crossclr.training.checkpoint import ADVICE, REST, TENSORS, CheckpointError, load_tensors, save_checkpoint
from crossclr.training.checkpoint import MODEL as WEIGHTS
from crossclr.training.config_files import dump_config, load_config
from crossclr.training.run_config import RunConfig
from crossclr.training.run_folder import CONFIG, DATA, ENVIRONMENT, MODEL, RESULTS, RunFolder, Which

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
        cls, path: Path, config: RunConfig, data: Dataset, model: JointModel | None = None, state: Any = None
    ) -> "Run":
        """Write a run folder, with the first checkpoint of a model; it appears complete or not at all."""
        config = config.model_copy(update={"data": config.data.with_absolute_paths()})
        shape = {"dims": data.dims, "two_level": False} if model is None else shape_of(model)
        with cls.creating(path, config, shape) as folder:
            roles = [config.splits.train, config.splits.validate_, config.splits.test]
            splits = dict.fromkeys([*data.splits, *(split for split in roles if split is not None)])
            write_json(folder / DATA, fingerprint(data, list(splits)))
            if model is not None:
                save_checkpoint(folder / "last", model.state_dict(), state)
        return cls(path, config)

    def follow_data(self, config: RunConfig, data: Dataset) -> "Run":
        """Take over data that grew, in a run without trained encoders; `write_space` then stores its new space."""
        config = config.model_copy(update={"data": config.data.with_absolute_paths()})
        changed = [CONFIG, MODEL, DATA]
        unlist(self.path, changed)  # a kill between two files must not look like damage
        write_file(self.path / CONFIG, dump_config(config))
        write_json(self.path / MODEL, {"dims": data.dims, "two_level": False})
        write_json(self.path / DATA, fingerprint(data, list(data.splits)))
        seal(self.path, changed)
        return Run(self.path, config)

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
        return file_digest(file)

    def open_data(self, check: bool = True) -> Dataset:
        """The data of the run.

        Args:
            check: compare it with the fingerprint that the run stored.

        Raises:
            DataError: the data is not what it was when the run was created.
        """
        data = open_data(self.config.data)
        before = self.path / DATA
        if check and before.is_file() and (found := data_changes(read_json_object(before), data)):
            raise DataError(
                f"the data changed since {self.path} was created: {'; '.join(found)}. Restore the data, or, if you "
                f"changed it on purpose, run: crossclr check {self.path} --accept"
            )
        return data

    def push_to_hub(self, name: str, *, private: bool = False, token: str | None = None) -> str:
        """Share the run as the model ``owner/name`` on the hub of Hugging Face; returns its address.

        Weights (safetensors), config, results and model card are uploaded; data, training state and the paths of your
        machine are not. Others load it with ``crossclr pull owner/name``.

        Args:
            name: ``owner/name``; the repository is created if it does not exist.
            private: whether only you may see a repository that is created.
            token: an access token; default: the one that ``hf auth login`` stored, or HF_TOKEN.
        """
        from crossclr.training.sharing import push_run

        return push_run(self, name, private=private, token=token)

    @property
    def launch(self) -> str | None:
        """The call of torchrun that started the run."""
        path = self.path / ENVIRONMENT
        found: str | None = read_json_object(path).get("launch") if path.is_file() else None
        return found


def shape_of(model: JointModel) -> dict[str, Any]:
    """The sizes of a model for `RunFolder.creating`."""
    return {"dims": model.dims, "two_level": model.two_level}


LISTED = [CONFIG, ENVIRONMENT, MODEL, DATA, RESULTS, SPACE, SPACE_TENSORS, WEIGHTS, TENSORS, REST]


@dataclass(frozen=True)
class Verified:
    """What `verify` found."""

    folders: int  # folders that were compared
    differences: list[str]  # what differs, in words


def verify(path: str | Path, *, accept: bool = False) -> Verified:
    """Compare every file with its checksum, and the data of a run with its fingerprint.

    Args:
        path: a run folder, a folder of runs, an index or an export.
        accept: take what is found as the new truth, after you changed it on purpose.
    """
    path = Path(path)
    if accept:
        _seal_runs(path)
    folders = sealed_folders(path)
    if not folders:
        raise FileNotFoundError(f"{path} has no {NAME}, so there is nothing to verify; name a run folder or an index")
    differences = []
    for folder in folders:
        differences += [f"{folder}: {change}" for change in changes(folder, everything=True)]
        if accept:
            renew(folder)
        if (folder / DATA).is_file() and (folder / CONFIG).is_file():
            differences += [f"data of {folder}: {change}" for change in _compare_data(folder, accept)]
    return Verified(len(folders), differences)


def _seal_runs(path: Path) -> None:
    """Write the manifests that run folders and checkpoints lack."""
    for folder in sorted(found.parent for name in (CONFIG, WEIGHTS) for found in path.rglob(name)):
        if not (folder / NAME).exists():
            seal(folder, LISTED)


def _compare_data(folder: Path, accept: bool) -> list[str]:
    try:
        data = Run.open(folder).open_data(check=False)
        before = read_json_object(folder / DATA)
        found = data_changes(before, data)
        if accept and found:
            write_json(folder / DATA, fingerprint(data, [split for split in before if split in data.splits_of.places]))
            renew(folder)
    except (ReadError, OSError) as error:
        return [str(error)]
    return found
