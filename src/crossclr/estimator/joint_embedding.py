"""A joint embedding with scikit-learn's interface: arrays in, arrays out."""

import tempfile
from collections.abc import Mapping, Sequence
from itertools import permutations, zip_longest
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import ValidationError
from rich.console import Console
from safetensors.torch import save
from torch import Tensor, nn

from crossclr.devices import usable_device
from crossclr.estimator.encoder_training import (
    Column,
    EncoderTraining,
    read_column,
    read_columns,
    read_labels,
)
from crossclr.estimator.parameters import Parameters, plain_value, read_seed
from crossclr.evaluation import retrieval_metrics
from crossclr.models import ModelConfig, build_model
from crossclr.models.choice import SpaceData, choose_space, measure_of
from crossclr.models.cross_fit import MEASURES
from crossclr.models.space import Facts, Part, SearchSpace, TrainedEncoder
from crossclr.models.zero_shot import ZeroShot
from crossclr.notices import warn
from crossclr.progress_bar import show_steps
from crossclr.storage import new_folder, write_file, write_json
from crossclr.storage.manifest import check_sealed
from crossclr.storage.reading import read_json_object
from crossclr.suggestions import suggest
from crossclr.training import Run
from crossclr.training.checkpoint import load_tensors
from crossclr.training.run_config import RECIPE_LOSS, FitConfig
from crossclr.training.sharing import fetch, push_folder

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
            ids=..., present=...)``. Default, at temperature 0.1: ``crossclr`` for ``paper``, otherwise ``clip``.
        loss_options: options of the loss, for example ``{"temperature": 0.07}``.
        dim: channels of an encoder.
        encoder: ``mlp``, ``transformer``, or ``auto``: a transformer for sequences.
        dropout: dropout in the encoders.
        epochs: passes over the data.
        batch_size: samples in a step.
        learning_rate: peak rate of AdamW; it rises for a tenth of the epochs and falls along a cosine.
        weight_decay: weight decay of AdamW.
        device: where encoders are trained: ``cpu``, ``cuda``, ``mps`` or ``auto``.
        select_by: what a good setting is: ``recall`` (mean of R@1, R@5 and R@10), ``map`` (mean average precision), or
            ``auto``: ``map`` if `fit` is given concepts, else ``recall``.
        random_state: seed; equal seeds give equal embeddings.
        verbose: show on standard error what takes longer than two seconds, and one sentence about the result.
        zero_shot: a space that modalities share without pairs, such as that of CLIP; see `ZeroShot`. With it, `fit`
            also takes samples of which none has two modalities.

    Attributes:
        space_: the fitted search space.
        parts_: what it consists of, and what each part gains; `summary` shows them as a table.
        estimate_: the cross-fitted score with its standard error, or None.
        n_features_: channels of an input row of each modality.
        feature_names_: names of the channels of each modality that was given as a data frame.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> hidden = rng.normal(size=(200, 4))
        >>> video, text = hidden @ rng.normal(size=(4, 12)), hidden @ rng.normal(size=(4, 9))
        >>> joint = JointEmbedding(recipe="closed-form").fit({"video": video[:150], "text": text[:150]})
        >>> scores = joint.encode_queries(text=text[150:]) @ joint.encode_items(video=video[150:]).T
        >>> bool((scores.argmax(1) == np.arange(50)).mean() > 0.9)
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
        select_by: Literal["auto", "recall", "map"] = "auto",
        random_state: int | np.random.RandomState | None = 0,
        verbose: bool = True,
        zero_shot: ZeroShot | None = None,
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
        self.select_by = select_by
        self.random_state = random_state
        self.verbose = verbose
        self.zero_shot = zero_shot

    def fit(
        self, X: Any, y: Any = None, *, concepts: Sequence[Any] | None = None, groups: Sequence[Any] | None = None
    ) -> "JointEmbedding":
        """Fit the search space; returns the estimator itself.

        Args:
            X: a mapping from modalities to arrays (see `read_column` for what is accepted), or the first of two arrays.
            y: the second array; the two are then called ``a`` and ``b``.
            concepts: what is equal: a label for each sample, such as the dish that a clip shows. Samples of one label
                are never negatives of each other, and any of them is a right answer.
            groups: what must not be split: a label for each sample, such as the video that a clip was cut from.
                Samples of one group are held out together. Without groups, each sample is held out by itself, also
                if others show the same concept: new samples of known concepts are what is searched.
        """
        if self.recipe not in RECIPES:
            raise ValueError(f"there is no recipe {self.recipe!r}; {suggest(str(self.recipe), RECIPES)}")
        if self.select_by not in ("auto", *MEASURES):
            raise ValueError(f"select_by: {self.select_by!r} is not auto, {' or '.join(MEASURES)}")
        if self.device != "auto":
            usable_device(self.device)
        columns = read_columns(X, y, pairs=self.zero_shot is None)
        if self.zero_shot is not None:
            self.zero_shot.check_channels({name: column.dim for name, column in columns.items()})
        count = len(next(iter(columns.values())).rows)
        labels = {"concepts": read_labels(concepts, count, "concepts"), "groups": read_labels(groups, count, "groups")}
        seed = read_seed(self.random_state)
        settings = None if self.recipe == "closed-form" else self._config(columns, seed)
        train = EncoderTraining(self.loss, settings, self.device, columns, labels["concepts"])
        with show_steps(self.verbose) as report:
            if self.recipe == "paper":
                report(f"training an encoder on {count:,} samples")
                encoder, _ = train(torch.arange(count), 0)
                dims = {name: column.dim for name, column in columns.items()}
                space = SearchSpace(dims, None, [encoder], facts=Facts((Part("trained encoder", 1.0),)))
            else:
                data = SpaceData(
                    {name: torch.from_numpy(column.means()) for name, column in columns.items()},
                    {name: torch.from_numpy(column.present) for name, column in columns.items()},
                    **labels,
                    measure=measure_of(self.select_by, labels["concepts"] is not None),
                )
                encoders = None if self.recipe == "closed-form" else train
                space = choose_space(data, encoders, seed % 1000, report, self.zero_shot)
        if self.verbose:
            Console(stderr=True).print(space.facts.sentence(), highlight=False, soft_wrap=True)
        names = {name: list(column.names) for name, column in columns.items() if column.names}
        self._take(space, None if settings is None else settings.model, names)
        self.history_ = train.history
        return self

    def fit_transform(self, X: Any, y: Any = None, **labels: Any) -> Any:
        """`fit`, then `transform` of X: vectors of the first array, or of each modality of the mapping."""
        return self.fit(X, y, **labels).transform(X)

    def summary(self) -> str:
        """What the search space consists of, what each part gains, and what to expect on new samples."""
        self._check_fitted("space_")
        facts: Facts = self.space_.facts
        rows = [("part", "used with", "score", "gain"), *facts.rows()]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        dims = ", ".join(f"{name} ({dim:,} channels)" for name, dim in self.n_features_.items())
        return "\n".join([f"JointEmbedding of {dims}", *table, f"settings: {facts.settings}", facts.sentence()])

    def encode_queries(self, **data: Any) -> Any:
        """Unit vectors of samples as queries: ``encode_queries(text=T)``; a mapping of arrays for several names."""
        return self._encoded(data, "encode_queries")

    def encode_items(self, **data: Any) -> Any:
        """Unit vectors of samples as search targets; a query's inner product with them ranks them."""
        return self._encoded(data, "encode_items")

    def transform(self, X: Any = None, **data: Any) -> Any:
        """Unit vectors of samples for other models: ``transform(video=V)``, or ``transform(A)`` for the first modality.

        All modalities have the same kind of vector. For search, compare `encode_queries` with `encode_items`.
        """
        self._check_fitted("space_")
        if (X is None) == (not data):
            raise ValueError(f"pass one array, or name it: transform({self.space_.modalities[0]}=...)")
        if X is not None:
            data = dict(X) if isinstance(X, Mapping) else {self.space_.modalities[0]: X}
        return self._encoded(data, "plain")

    def score(self, X: Any, y: Any = None, concepts: Sequence[Any] | None = None) -> float:
        """Share of samples that find their partner first in the other modality; mean over all directions.

        Args:
            X: as for `fit`.
            y: as for `fit`.
            concepts: a label for each sample; any partner of the same label is right.
        """
        self._check_fitted("space_")
        columns = read_columns(X, y)
        for name, column in columns.items():
            self._check_names(name, column)
        labels = read_labels(concepts, len(next(iter(columns.values())).rows), "concepts")
        found = []
        for query, item in permutations(columns, 2):
            both = columns[query].present & columns[item].present
            if not both.any():
                continue
            own = None if labels is None else labels[torch.from_numpy(both)]
            targets = None if own is None else [torch.nonzero(own == label).flatten().tolist() for label in own]
            queries = self._vectors(columns[query], query, "encode_queries")[both]
            items = self._vectors(columns[item], item, "encode_items")[both]
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
        parameters = {name: plain_value(value) for name, value in self.get_params(deep=False).items()}
        if isinstance(self.loss, nn.Module):
            parameters["loss"] = f"{type(self.loss).__module__}:{type(self.loss).__qualname__}"
        parameters["zero_shot"] = None  # the space has it
        content = {
            "parameters": parameters,
            "model": None if self.model_config_ is None else self.model_config_.model_dump(mode="json"),
            "space": self.space_.description(),
            "history": self.history_,
            "feature_names": self.feature_names_,
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
        tensors, description = load_tensors(path / WEIGHTS), content["space"]
        config = None if content["model"] is None else ModelConfig.model_validate(content["model"])
        encoders = []
        for number in range(description["encoders"]):
            model = build_model(config or ModelConfig(), description["dims"], two_level=False)
            prefix = f"encoder/{number}/"
            model.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
            encoders.append(TrainedEncoder(model))
        own = {key: value for key, value in tensors.items() if not key.startswith("encoder/")}
        space = SearchSpace.restore(own, description, encoders)
        estimator = cls(**{**content["parameters"], "zero_shot": space.zero_shot})
        estimator._take(space, config, content["feature_names"])
        estimator.history_ = content["history"]
        return estimator

    def push_to_hub(self, name: str, *, private: bool = False, token: str | None = None) -> str:
        """Share the estimator as ``owner/name`` on the hub; see `Run.push_to_hub`. Returns its address."""
        self._check_fitted("space_")
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "estimator"
            self.save(folder)
            use = f'from crossclr import JointEmbedding\n\njoint = JointEmbedding.from_pretrained("{name}")'
            card = f"---\nlibrary_name: crossclr\n---\n\n```text\n{self.summary()}\n```\n\n```python\n{use}\n```\n"
            write_file(folder / "README.md", card)
            return push_folder(folder, name, private=private, token=token)

    @classmethod
    def from_pretrained(cls, name: str, *, revision: str | None = None, token: str | None = None) -> "JointEmbedding":
        """Load an estimator or a run that was shared: a folder, or ``owner/name`` on the hub. See `Run.push_to_hub`."""
        folder = fetch(name, revision=revision, token=token)
        if (folder / PARAMETERS).is_file():
            return cls.load(folder)
        run = Run.open(folder)
        estimator = cls(recipe=run.config.recipe)
        estimator._take(run.load_space(), run.config.model, {})
        estimator.history_ = []
        return estimator

    def _take(self, space: SearchSpace, config: ModelConfig | None, names: dict[str, list[str]]) -> None:
        self.space_, self.feature_names_ = space.eval(), names
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
            self._check_names(name, column)
            if not column.present.all():
                raise ValueError(f"{name}[{int(column.present.argmin())}] is empty; there is nothing to encode")
            found[name] = self._vectors(column, name, kind)
        return next(iter(found.values())) if len(found) == 1 else found

    def _check_names(self, name: str, column: Column) -> None:
        """The columns of a data frame must be those of `fit`, in their order."""
        known = tuple(self.feature_names_.get(name, ()))
        if bool(known) != bool(column.names):
            lacks = "fitted without" if column.names else "fitted with"
            warn(f"{name} was {lacks} names of columns, so their order is not checked")
        elif known != column.names:
            other = next(label for label, right in zip_longest(column.names, known) if label != right)
            raise ValueError(
                f"the columns of {name} are not those of fit in their order, the first that differs is {other!r}; "
                f"select them with data[model.feature_names_[{name!r}]]"
            )

    def _vectors(self, column: Column, name: str, kind: str) -> Vectors:
        encoded: Tensor = getattr(self.space_, kind)(name, column.rows)
        return encoded.numpy().astype(np.float32)

    def _config(self, columns: Mapping[str, Column], seed: int) -> FitConfig:
        options = dict(self.loss_options or {})
        if isinstance(self.loss, nn.Module):
            local = RECIPE_LOSS["best"]  # any: the module takes its place
        else:
            local = {**(RECIPE_LOSS[self.recipe] if self.loss is None else {"name": self.loss}), **options}
        encoders = {name: self._encoder(column.flat) for name, column in columns.items()}
        values = {
            "seed": seed,
            "splits": {"train": "train", "validate": None, "test": None},
            "model": {"dim": self.dim, "encoders": encoders},
            "loss": {"local": local},
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
