"""A joint embedding with scikit-learn's interface: arrays in, arrays out."""

from collections.abc import Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from crossclr.estimator.encoder_training import Column, EncoderTraining, read_column, read_columns, read_labels
from crossclr.estimator.parameters import Parameters
from crossclr.evaluation import retrieval_metrics
from crossclr.models import ModelConfig, build_model
from crossclr.models.choice import SpaceData, choose_space
from crossclr.models.space import Facts, Part, SearchSpace, TrainedEncoder
from crossclr.notices import warn
from crossclr.storage import new_folder, write_file, write_json
from crossclr.storage.manifest import check_sealed
from crossclr.storage.reading import read_json_object
from crossclr.suggestions import suggest
from crossclr.training import FitConfig

PARAMETERS, WEIGHTS = "estimator.json", "model.safetensors"
Vectors = npt.NDArray[np.float32]
RECIPES = {
    "best": "closed form and trained encoders, chosen by cross-fitting",
    "closed-form": "kernel CCA with settings chosen by cross-fitting",
    "paper": "encoders trained with a loss, CrossCLR by default",
}


class JointEmbedding(Parameters):
    """One search space for several modalities.

    Pass two arrays, or a mapping from names to arrays; row i of each belongs to sample i. A sample that is None or all
    NaN in a modality lacks it. Without any setting you get the best-performing method that is known for small data:
    kernel CCA, with trained encoders where they help. ``parts_`` says what was chosen.

    Args:
        recipe: ``best``, ``closed-form`` (no training) or ``paper`` (trained encoders alone).
        loss: loss of the encoders: a name, or a module of your own that is called as ``loss(outputs, features=...,
            ids=..., present=...)``. Default: ``crossclr`` for ``paper``, otherwise ``clip`` at temperature 0.1.
        loss_options: options of the loss, for example ``{"temperature": 0.07}``.
        dim: channels of an encoder.
        encoder: ``mlp``, ``transformer``, or ``auto``: a transformer for sequences.
        dropout: dropout in the encoders.
        epochs: passes over the data.
        batch_size: samples in a step.
        learning_rate: peak rate of AdamW; it rises for a tenth of the epochs and falls along a cosine.
        weight_decay: weight decay of AdamW.
        device: where encoders are trained: ``cpu``, ``cuda``, ``mps`` or ``auto``.
        random_state: seed; equal seeds give equal embeddings.

    Attributes:
        space_: the fitted search space.
        parts_: what it consists of, and what each part gains.
        estimate_: the cross-fitted score with its standard error, or None.
        n_features_: channels of an input row of each modality.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> hidden = rng.normal(size=(200, 4))
        >>> video, text = hidden @ rng.normal(size=(4, 12)), hidden @ rng.normal(size=(4, 9))
        >>> joint = JointEmbedding(recipe="closed-form").fit({"video": video[:150], "text": text[:150]})
        >>> found = joint.queries(text=text[150:]) @ joint.items(video=video[150:]).T
        >>> bool((found.argmax(1) == np.arange(50)).mean() > 0.9)
        True
    """

    def __init__(
        self,
        recipe: Literal["best", "closed-form", "paper"] = "best",
        *,
        loss: str | nn.Module | None = None,
        loss_options: Mapping[str, Any] | None = None,
        dim: int = 256,
        encoder: Literal["auto", "mlp", "transformer"] = "auto",
        dropout: float = 0.1,
        epochs: int = 30,
        batch_size: int = 128,
        learning_rate: float = 1e-3,
        weight_decay: float = 0.01,
        device: Literal["auto", "cpu", "cuda", "mps"] = "cpu",
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.recipe = recipe
        self.loss = loss
        self.loss_options = loss_options
        self.dim = dim
        self.encoder = encoder
        self.dropout = dropout
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.device = device
        self.random_state = random_state

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        concepts: Sequence[Any] | None = None,
        groups: Sequence[Any] | None = None,
    ) -> "JointEmbedding":
        """Fit the search space.

        Args:
            X: a mapping from modalities to arrays (see `read_column` for what is accepted), or the first of two arrays.
            y: the second array; the two are then called ``a`` and ``b``.
            concepts: a label for each sample. Samples of one label show the same thing: they are never negatives of
                each other, and any of them is a right answer.
            groups: a label for each sample; samples of one group, such as clips of one video, are held out together.

        Returns:
            the estimator itself.
        """
        if self.recipe not in RECIPES:
            raise ValueError(f"there is no recipe {self.recipe!r}; {suggest(str(self.recipe), RECIPES)}")
        columns = read_columns(X, y)
        count = len(next(iter(columns.values())).rows)
        labels = {"concepts": read_labels(concepts, count, "concepts"), "groups": read_labels(groups, count, "groups")}
        seed = _seed(self.random_state)
        together = labels["groups"] if labels["groups"] is not None else labels["concepts"]
        settings = None if self.recipe == "closed-form" else self._config(columns, seed)
        train = EncoderTraining(self.loss, settings, self.device, columns, labels["concepts"])
        if self.recipe == "paper":
            encoder, _ = train(torch.arange(count), 0)
            dims = {name: column.dim for name, column in columns.items()}
            space = SearchSpace(dims, None, [encoder], facts=Facts((Part("trained encoder", 1.0),)))
        else:
            data = SpaceData(
                {name: torch.from_numpy(column.means()) for name, column in columns.items()},
                {name: torch.from_numpy(column.present) for name, column in columns.items()},
                together,
                labels["concepts"],
            )
            space = choose_space(data, None if self.recipe == "closed-form" else train, seed=seed % 1000)
            _report(space)
        self._take(space, None if settings is None else settings.model)
        self.history_ = train.history
        return self

    def queries(self, **data: Any) -> Any:
        """Unit vectors of samples as queries, such as ``queries(text=T)``; an array, or a mapping for several names."""
        return self._encoded(data, "queries")

    def items(self, **data: Any) -> Any:
        """Unit vectors of samples as search targets; a query's inner product with them ranks them."""
        return self._encoded(data, "items")

    def transform(self, X: Any = None, **data: Any) -> Any:
        """Unit vectors of samples for other models: ``transform(video=V)``, or ``transform(A)`` for the first modality.

        All modalities have the same kind of vector. For search, compare `queries` with `items`, which may differ.
        """
        self._check_fitted("space_")
        if (X is None) == (not data):
            raise ValueError(f"pass one array, or name it: transform({self.space_.modalities[0]}=...)")
        return self._encoded(data or {self.space_.modalities[0]: X}, "plain")

    def score(self, X: Any, y: Any = None, concepts: Sequence[Any] | None = None) -> float:
        """Share of samples that find their partner first in the other modality; mean over all directions.

        Args:
            X: as for `fit`.
            y: as for `fit`.
            concepts: a label for each sample; any partner of the same label is right.
        """
        self._check_fitted("space_")
        columns = read_columns(X, y)
        labels = read_labels(concepts, len(next(iter(columns.values())).rows), "concepts")
        found = []
        for query, item in permutations(columns, 2):
            both = columns[query].present & columns[item].present
            if not both.any():
                continue
            own = None if labels is None else labels[torch.from_numpy(both)]
            targets = None if own is None else [torch.nonzero(own == label).flatten().tolist() for label in own]
            queries = self._vectors(columns[query], query, "queries")[both]
            items = self._vectors(columns[item], item, "items")[both]
            found.append(retrieval_metrics(queries, items, targets, progress=False)["R@1"])
        return sum(found) / len(found) / 100

    @property
    def parts_(self) -> tuple[Part, ...]:
        """What the search space consists of, and what each part gains."""
        self._check_fitted("space_")
        return self.space_.parts

    def save(self, path: str | Path) -> None:
        """Write the estimator to a folder: its parameters as JSON, its weights as safetensors."""
        self._check_fitted("space_")
        path = Path(path)
        if path.exists():
            raise FileExistsError(f"{path} already exists; choose another folder")
        parameters = {name: _plain(value) for name, value in self.get_params(deep=False).items()}
        if isinstance(self.loss, nn.Module):
            parameters["loss"] = f"{type(self.loss).__module__}:{type(self.loss).__qualname__}"
        content = {
            "parameters": parameters,
            "model": None if self.model_config_ is None else self.model_config_.model_dump(mode="json"),
            "space": self.space_.description(),
            "history": self.history_,
        }
        tensors = self.space_.tensors()
        for number, encoder in enumerate(self.space_.trained):
            tensors |= {f"encoder/{number}/{key}": value for key, value in encoder.model.state_dict().items()}
        with new_folder(path) as partial:
            write_json(partial / PARAMETERS, content)
            write_file(partial / WEIGHTS, save({key: value.contiguous() for key, value in tensors.items()}))

    @classmethod
    def load(cls, path: str | Path) -> "JointEmbedding":
        """Read what ``save`` wrote."""
        path = Path(path)
        if not (path / PARAMETERS).is_file():
            raise FileNotFoundError(f"{path} does not hold an estimator ({PARAMETERS} is absent)")
        check_sealed(path, "save the estimator again")
        content = read_json_object(path / PARAMETERS)
        tensors, description = load_file(path / WEIGHTS), content["space"]
        config = None if content["model"] is None else ModelConfig.model_validate(content["model"])
        encoders = []
        for number in range(description["encoders"]):
            model = build_model(config or ModelConfig(), description["dims"], two_level=False)
            prefix = f"encoder/{number}/"
            model.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
            encoders.append(TrainedEncoder(model))
        own = {key: value for key, value in tensors.items() if not key.startswith("encoder/")}
        estimator = cls(**content["parameters"])
        estimator._take(SearchSpace.restore(own, description, encoders), config)
        estimator.history_ = content["history"]
        return estimator

    def _take(self, space: SearchSpace, config: ModelConfig | None) -> None:
        self.space_ = space.eval()
        self.model_config_ = config if len(space.encoders) else None
        self.n_features_, self.estimate_ = dict(space.dims), space.facts.estimate

    def _encoded(self, data: Mapping[str, Any], kind: str) -> Any:
        self._check_fitted("space_")
        if not data:
            raise ValueError(f"name what to encode, such as {kind}({self.space_.modalities[-1]}=...)")
        found = {}
        for name, values in data.items():
            if name not in self.n_features_:
                raise ValueError(f"there is no modality {name!r}; it was fitted with {', '.join(self.n_features_)}")
            column = read_column(values, name, self.n_features_[name])
            if not column.present.all():
                raise ValueError(f"{name}[{int(column.present.argmin())}] is empty; there is nothing to encode")
            found[name] = self._vectors(column, name, kind)
        return next(iter(found.values())) if len(found) == 1 else found

    def _vectors(self, column: Column, name: str, kind: str) -> Vectors:
        encoded: Tensor = getattr(self.space_, kind)(name, column.rows)
        return encoded.numpy().astype(np.float32)

    def _config(self, columns: Mapping[str, Column], seed: int) -> FitConfig:
        name, options = self.loss, dict(self.loss_options or {})
        if isinstance(name, nn.Module):
            name, options = "clip", {}  # any: the module takes its place
        elif name is None and self.recipe == "paper":
            name, options = "crossclr", {"temperature": 0.07, **options}
        elif name is None:
            name, options = "clip", {"temperature": 0.1, "learnable": False, **options}
        encoders = {name: self._encoder(column.flat) for name, column in columns.items()}
        values = {
            "seed": seed,
            "splits": {"train": "train", "validate": None, "test": None},
            "model": {"dim": self.dim, "encoders": encoders},
            "loss": {"local": {"name": name, **options}},
            "optimiser": {
                "name": "adamw",
                "learning_rate": self.learning_rate,
                "betas": (0.9, 0.98),
                "epsilon": 1e-8,
                "weight_decay": self.weight_decay,
            },
            "schedule": {"name": "cosine", "warmup_epochs": max(1, int(self.epochs) // 10)},
            "training": {"epochs": self.epochs, "batch_size": self.batch_size, "workers": 0},
        }
        try:
            return FitConfig.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            message = first["msg"].removeprefix("Value error, ")
            raise ValueError(f"{first['loc'][-1] if first['loc'] else 'parameters'}: {message}") from None

    def _encoder(self, flat: bool) -> dict[str, Any]:
        kind = self.encoder if self.encoder != "auto" else ("mlp" if flat else "transformer")
        if kind != "transformer":
            return {"kind": kind, "dropout": self.dropout}
        heads = next(count for count in (8, 4, 2, 1) if self.dim % count == 0)
        shape = {"heads": heads, "pooler_heads": min(2, heads)}
        return {"kind": "transformer", **shape, "dropout": self.dropout, "input_norm": "layer"}


def _report(space: SearchSpace) -> None:
    """Say that encoders were trained and are not used."""
    for part in space.parts:
        if part.name == "trained encoders" and not part.share:
            warn(
                f"trained encoders are not used: next to the closed form they gain {part.gain:+.1f} ± {part.error:.1f} "
                "points; recipe='closed-form' gives the same result in seconds"
            )


def _seed(random_state: Any) -> int:
    """A seed from a seed, from a generator, or from numpy's global generator for None."""
    if random_state is None:
        return int(np.random.randint(2**31 - 1))  # noqa: NPY002  # as scikit-learn does
    if not isinstance(random_state, np.random.RandomState):
        try:
            random_state = np.random.RandomState(random_state)
        except (TypeError, ValueError) as error:
            raise ValueError(f"random_state: {random_state!r} is not a seed ({error})") from None
    return int(random_state.randint(2**31 - 1))


def _plain(value: Any) -> Any:
    """A parameter in types that JSON has."""
    if isinstance(value, np.generic):
        return value.item()
    return None if isinstance(value, np.random.RandomState) else value
