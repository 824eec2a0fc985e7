"""The run folder of a joint embedding; adjustments fitted for search are stored next to its best weights."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from crossclr.features import Source, open_source
from crossclr.models import Anchors, Hubs, TwoBranch, Views, build_model
from crossclr.storage import write_file
from crossclr.storage.json_yaml import read_json_object
from crossclr.training.config.config_files import load_config
from crossclr.training.config.run_config import RunConfig
from crossclr.training.run_folder.checkpoint import MODEL as WEIGHTS
from crossclr.training.run_folder.checkpoint import load_tensors, save_checkpoint
from crossclr.training.run_folder.folder import CONFIG, ENVIRONMENT, MODEL, RunFolder, Which

VIEWS, ANCHORS, HUBS = "views.safetensors", "anchors.safetensors", "hubs.safetensors"


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
    def create(cls, path: Path, config: RunConfig, model: TwoBranch, state: Mapping[str, Any]) -> Run:
        """Write a run folder with its first checkpoint; it appears complete or not at all."""
        config = config.model_copy(update={"data": config.data.with_absolute_paths()})
        with cls.creating(path, config, shape_of(model)) as folder:
            save_checkpoint(folder / "last", model.state_dict(), state)
        return cls(path, config)

    def load_model(self, which: Which = "best", fitted: bool = True) -> TwoBranch:
        """The trained model, in evaluation mode on the CPU.

        Args:
            which: the checkpoint.
            fitted: apply the adjustments that were fitted for search; they belong to the best checkpoint.
        """
        shape = self.shape
        model = build_model(self.config.model, tuple(shape["dims"]), shape["two_level"])
        self.load_weights_into(model, which)
        if fitted and which == "best":
            views, anchors, hubs = (self._read_fitted(name) for name in (VIEWS, ANCHORS, HUBS))
            if views and self.config.views is not None:
                model.views = Views(**views)
            if anchors and self.config.anchors is not None:
                model.anchors = Anchors(self.config.anchors, **anchors)
            if hubs and self.config.hubs is not None:
                sides = [side for side in ("a", "b") if f"queries_{side}" in hubs]
                model.hubs = {s: Hubs(hubs[f"queries_{s}"], *hubs[f"settings_{s}"].tolist()) for s in sides}
        return model

    def digest(self, which: Which = "best") -> str:
        """A digest of the weights and views, to check that embeddings come from this model."""
        found = hashlib.sha256((self.path / which / WEIGHTS).read_bytes())
        if which == "best" and (self.path / which / VIEWS).is_file():
            found.update((self.path / which / VIEWS).read_bytes())
        return found.hexdigest()

    def write_fitted(self, model: TwoBranch) -> None:
        """Store the adjustments that were fitted for search next to the best weights, where `load_model` finds them."""
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
        return load_tensors(path) if path.is_file() else {}

    def open_source(self) -> Source:
        """The data of the run."""
        return open_source(self.config.data)

    @property
    def launch(self) -> str | None:
        """The call of torchrun that started the run."""
        path = self.path / ENVIRONMENT
        found: str | None = read_json_object(path).get("launch") if path.is_file() else None
        return found


def shape_of(model: TwoBranch) -> dict[str, Any]:
    """The sizes of a model for `RunFolder.creating`."""
    return {"dims": list(model.dims), "two_level": model.two_level}
