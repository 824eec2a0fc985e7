"""A joint embedding with scikit-learn's interface: arrays in, arrays out."""

from __future__ import annotations

import copy
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from crossclr.evaluation import retrieval_metrics
from crossclr.evaluation.retrieval.validation import retrieval_validator
from crossclr.features import ArraySource, Batch, Inputs, Ragged
from crossclr.models import JointModel, build_model
from crossclr.storage import new_folder, write_file, write_json
from crossclr.storage.checksums import check_sealed
from crossclr.storage.json_yaml import read_json_object
from crossclr.training import FitConfig, Interrupted, JointTraining, MemoryRecorder, fit, make_fabric
from crossclr.training.random_state import random_state as generator_states
from crossclr.training.random_state import set_random_state

PARAMETERS, WEIGHTS = "estimator.json", "model.safetensors"
Data = npt.NDArray[np.floating] | Sequence[npt.NDArray[np.floating]]
Encoder = Literal["auto", "mlp", "transformer"]


class JointEmbedding(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """One embedding space for two modalities.

    Row i of A goes with row i of B. Either is an array of vectors (N, D), an array of sequences (N, rows, D) or a list
    of sequences (rows, D) of different lengths. Vectors get a residual MLP, sequences a transformer.

    Args:
        loss: name of the loss, one of ``crossclr clip ntxent maxmargin milnce dcl siglip``, or a module of your own
            that is called as ``loss(za, zb, a=..., b=..., ids=...)`` and returns a scalar. ``fit`` trains a copy.
        loss_options: options of the loss, for example ``{"temperature": 0.07}``; None takes the defaults below.
        dim: channels of the embeddings.
        encoder_a: encoder of A: ``mlp``, ``transformer`` or ``auto``.
        encoder_b: encoder of B.
        dropout: dropout in both encoders.
        epochs: passes over the data.
        batch_size: pairs in a step.
        learning_rate: peak rate of AdamW; it rises for a tenth of the epochs and falls along a cosine.
        weight_decay: weight decay of AdamW.
        validation_fraction: share of the pairs held out to select the best epoch; 0 keeps the last epoch.
        device: ``cpu``, ``cuda``, ``mps`` or ``auto``.
        random_state: seed; equal seeds give equal embeddings.

    Attributes:
        model_: the trained model.
        n_features_a_: channels of A's input rows; likewise ``n_features_b_``.
        history_: one record for each epoch.
        best_epoch_: the epoch whose weights were kept.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> hidden = rng.normal(size=(200, 4))
        >>> A, B = hidden @ rng.normal(size=(4, 12)), hidden @ rng.normal(size=(4, 9))
        >>> joint = JointEmbedding(epochs=5, dim=16, random_state=0).fit(A[:150], B[:150])
        >>> joint.encode_a(A[150:]).shape
        (50, 16)
    """

    def __init__(
        self,
        loss: str | nn.Module = "crossclr",
        *,
        loss_options: Mapping[str, Any] | None = None,
        dim: int = 256,
        encoder_a: Encoder = "auto",
        encoder_b: Encoder = "auto",
        dropout: float = 0.1,
        epochs: int = 50,
        batch_size: int = 128,
        learning_rate: float = 1e-3,
        weight_decay: float = 0.01,
        validation_fraction: float = 0.0,
        device: Literal["auto", "cpu", "cuda", "mps"] = "cpu",
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.loss = loss
        self.loss_options = loss_options
        self.dim = dim
        self.encoder_a = encoder_a
        self.encoder_b = encoder_b
        self.dropout = dropout
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.validation_fraction = validation_fraction
        self.device = device
        self.random_state = random_state

    def fit(self, A: Data, B: Data, ids: Sequence[Any] | None = None) -> JointEmbedding:
        """Learn the embedding.

        Args:
            A: modality A.
            B: modality B, row by row.
            ids: a label for each pair; pairs with equal labels mean the same and are never negatives of each other.

        Returns:
            the estimator itself.
        """
        _check_pairs(A, B, ids, least=2)
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(f"validation_fraction must lie in [0, 1), got {self.validation_fraction}")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        labels = np.unique(np.asarray(range(len(A)) if ids is None else ids), return_inverse=True)[1].ravel()
        held_out = _held_out(labels, self.validation_fraction, seed)
        keys = np.arange(len(A)).astype(str)
        splits = {"train": keys[~held_out].tolist(), "val": keys[held_out].tolist()}
        source = ArraySource(A, B, splits={name: part for name, part in splits.items() if part})
        config = self._config(seed, _is_flat(A), _is_flat(B), bool(held_out.any()))
        before = generator_states()  # training seeds the global generators, which belong to the caller
        try:
            training = _LabelledTraining(config, source, make_fabric(self.device), labels, self._own_loss())
            memory = MemoryRecorder()
            fit(training, memory, validate=retrieval_validator(source, config.splits.validate_, batch_size=256))
        except Interrupted:
            raise KeyboardInterrupt from None
        finally:
            set_random_state(before)
        training.model.load_state_dict(memory.best)
        self._take(training.model)
        self.history_ = [{key: value for key, value in record.items() if key != "kind"} for record in memory.epochs]
        self.best_epoch_ = memory.best_epoch
        return self

    def encode_a(self, A: Data) -> npt.NDArray[np.float32]:
        """(N, dim) embeddings of A as unit rows, so that dot products are cosines."""
        return self._encode(A, "a")

    def encode_b(self, B: Data) -> npt.NDArray[np.float32]:
        """(N, dim) embeddings of B as unit rows."""
        return self._encode(B, "b")

    def score(self, A: Data, B: Data, ids: Sequence[Any] | None = None) -> float:
        """Share of rows that find their partner first among all rows of the other modality; mean of both directions.

        Args:
            A: modality A.
            B: modality B, row by row.
            ids: a label for each pair; any partner of the same label is right.
        """
        _check_pairs(A, B, ids, least=1)
        targets = None
        if ids is not None:
            labels = np.unique(np.asarray(ids), return_inverse=True)[1].ravel()
            members = [np.flatnonzero(labels == label) for label in range(labels.max() + 1)]
            targets = [members[label].tolist() for label in labels]
        za, zb = self.encode_a(A), self.encode_b(B)
        found = [retrieval_metrics(q, g, targets, progress=False)["R@1"] for q, g in ((za, zb), (zb, za))]
        return sum(found) / 200

    def save(self, path: str | Path) -> None:
        """Write the estimator to a folder: its parameters as JSON, its weights as safetensors."""
        check_is_fitted(self, "model_")
        path = Path(path)
        if path.exists():
            raise FileExistsError(f"{path} already exists; choose another folder")
        parameters = {**self.get_params(deep=False)}
        if not isinstance(self.random_state, int | None):
            parameters["random_state"] = None  # a generator cannot be stored
        if isinstance(self.loss, nn.Module):
            parameters["loss"] = f"{type(self.loss).__module__}:{type(self.loss).__qualname__}"
        content = {
            "parameters": parameters,
            "n_features": [self.n_features_a_, self.n_features_b_],
            "model": self.model_.config.model_dump(mode="json"),
            "history": self.history_,
            "best_epoch": self.best_epoch_,
        }
        with new_folder(path) as partial:
            write_json(partial / PARAMETERS, content)
            write_file(partial / WEIGHTS, save(self.model_.state_dict()))

    @classmethod
    def load(cls, path: str | Path) -> JointEmbedding:
        """Read what ``save`` wrote."""
        path = Path(path)
        if not (path / PARAMETERS).is_file():
            raise FileNotFoundError(f"{path} does not hold an estimator ({PARAMETERS} is absent)")
        check_sealed(path, "save the estimator again")
        content = read_json_object(path / PARAMETERS)
        estimator = cls(**content["parameters"])
        model_config = FitConfig.model_validate({"model": content["model"]}).model
        model = build_model(model_config, dict(zip("ab", content["n_features"], strict=True)), two_level=False)
        model.load_state_dict(load_file(path / WEIGHTS))
        estimator._take(model)
        estimator.history_ = content["history"]
        estimator.best_epoch_ = content["best_epoch"]
        return estimator

    def _take(self, model: JointModel) -> None:
        self.model_ = model.eval().cpu()
        self.n_features_a_, self.n_features_b_ = model.dims.values()

    def _config(self, seed: int, flat_a: bool, flat_b: bool, validated: bool) -> FitConfig:
        name, options = self.loss, self.loss_options
        if isinstance(name, nn.Module):
            name, options = "clip", {}  # any: the module takes its place
        elif options is None:
            options = {"temperature": 0.07} if name == "crossclr" else {}
        return FitConfig.model_validate(
            {
                "seed": seed,
                "splits": {"train": "train", "validate": "val" if validated else None, "test": None},
                "model": {
                    "dim": self.dim,
                    "encoders": {
                        "a": self._encoder(self.encoder_a, flat_a),
                        "b": self._encoder(self.encoder_b, flat_b),
                    },
                },
                "loss": {"local": {"name": name, **options}},
                "optimiser": {
                    "name": "adamw",
                    "learning_rate": self.learning_rate,
                    "betas": (0.9, 0.98),
                    "epsilon": 1e-8,
                    "weight_decay": self.weight_decay,
                },
                "schedule": {"name": "cosine", "warmup_epochs": max(1, self.epochs // 10)},
                "training": {"epochs": self.epochs, "batch_size": self.batch_size, "workers": 0},
            }
        )

    def _own_loss(self) -> nn.Module | None:
        return copy.deepcopy(self.loss) if isinstance(self.loss, nn.Module) else None

    def _encoder(self, kind: Encoder, flat: bool) -> dict[str, Any]:
        if kind == "auto":
            kind = "mlp" if flat else "transformer"
        if kind == "mlp":
            return {"kind": "mlp", "dropout": self.dropout}
        heads = next(count for count in (8, 4, 2, 1) if self.dim % count == 0)
        return {
            "kind": "transformer",
            "heads": heads,
            "pooler_heads": min(2, heads),
            "dropout": self.dropout,
            "input_norm": "layer",
        }

    def _encode(self, data: Data, side: Literal["a", "b"]) -> npt.NDArray[np.float32]:
        check_is_fitted(self, "model_")
        width = self.n_features_a_ if side == "a" else self.n_features_b_
        found: list[Tensor] = []
        with torch.inference_mode():
            for start in range(0, len(data), 256):
                rows = [
                    _rows(item, width, f"{side.upper()}[{start + i}]")
                    for i, item in enumerate(data[start : start + 256])
                ]
                embedded = self.model_.encode_modality(side, Inputs(Ragged.from_list(rows)))["clip"]
                found.append(torch.nn.functional.normalize(embedded, dim=1))
        joined = torch.cat(found) if found else torch.zeros(0, self.dim)
        return joined.numpy().astype(np.float32)


class _LabelledTraining(JointTraining):
    """Training whose batches have the user's labels as ids."""

    def __init__(
        self,
        config: FitConfig,
        source: ArraySource,
        fabric: Any,
        labels: npt.NDArray[np.int64],
        loss: nn.Module | None,
    ) -> None:
        super().__init__(config, source, fabric, loss)
        self.labels = torch.from_numpy(labels.astype(np.int64))

    def batches(self, epoch: int, start: int = 0) -> Generator[Batch, None, None]:
        """The batches of an epoch."""
        for batch in super().batches(epoch, start):
            ids = self.labels[[int(key) for key in batch.keys]]
            yield replace(batch, ids=ids, video_ids=ids)


def _held_out(labels: npt.NDArray[np.int64], fraction: float, seed: int) -> npt.NDArray[np.bool_]:
    """Which pairs validate; pairs of one label stay together."""
    kinds = int(labels.max()) + 1
    count = round(kinds * fraction)
    if fraction and (count < 1 or kinds - count < 2):
        raise ValueError(f"validation_fraction={fraction} leaves too little of {kinds} different pairs")
    chosen = np.random.default_rng(seed).permutation(kinds)[:count]
    return np.isin(labels, chosen)


def _is_flat(data: Data) -> bool:
    return isinstance(data, np.ndarray) and data.ndim == 2


def _check_pairs(A: Data, B: Data, ids: Sequence[Any] | None, least: int) -> None:
    if len(A) != len(B):
        raise ValueError(f"A has {len(A)} samples and B has {len(B)}; row i of one goes with row i of the other")
    if len(A) < least:
        raise ValueError(f"at least {least} pairs are needed, got {len(A)}")
    if ids is not None and len(ids) != len(A):
        raise ValueError(f"there are {len(A)} pairs but {len(ids)} ids")
    for name, data in (("A", A), ("B", B)):
        width = np.asarray(data[0]).shape[-1]
        for index, item in enumerate(data):
            _rows(item, width, f"{name}[{index}]")


def _rows(item: Any, width: int, name: str) -> Tensor:
    rows = np.asarray(item, dtype=np.float32)
    rows = rows[None] if rows.ndim == 1 else rows
    if rows.ndim != 2 or not len(rows) or rows.shape[1] != width:
        raise ValueError(
            f"{name} has shape {np.shape(item)}; a vector or at least one row of {width} channels is needed"
        )
    if not np.isfinite(rows).all():
        raise ValueError(f"{name} has NaN or infinite values")
    return torch.from_numpy(rows)
