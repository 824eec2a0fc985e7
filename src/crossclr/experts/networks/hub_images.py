"""Pictures to features with any transformers image model: a vision transformer, a ConvNeXt, a ResNet, CLIP, DINO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crossclr.experts.contract import ExpertError, FloatRows, FrameExpert, Needs
from crossclr.experts.media.images import as_picture
from crossclr.experts.networks.hub import load_pretrained, picture_processor, version_of


class HubImages(FrameExpert):
    """One row for each picture from a transformers image model.

    Args:
        model: hub name or local folder.
        layer: ``mean`` (of the last hidden state over its positions), ``first`` (its first token, where the model has a
            class token), ``pooled`` (the model's own pooler), or the number of a hidden state, as ``-2``, whose mean is
            taken. A model that embeds pictures beside text (CLIP and its kin) gives its picture embedding for ``mean``.
        rate: frames a second.
        batch_size: pictures encoded at once.
        device: where the network runs.
        revision: of the hub.
    """

    name = "appearance"

    def __init__(
        self,
        model: str,
        layer: str = "mean",
        rate: float = 1.0,
        batch_size: int = 16,
        device: torch.device | str = "cpu",
        revision: str | None = None,
    ) -> None:
        self._prepare = picture_processor(model, revision)
        self._model = load_pretrained("AutoModel", model, revision).float().eval().to(device)
        self.device = torch.device(device)
        self.needs = Needs("frames", rate)
        self.model, self.layer, self.batch_size = model, str(layer), batch_size
        self.version = version_of(self._model, model)
        blank = self.prepare(np.zeros((64, 64, 3), np.uint8))
        self.dim = int(self._rows(torch.stack([blank]).to(self.device)).shape[1])

    def prepare(self, picture: Any) -> Tensor:
        """The model's own preparation."""
        ready: Tensor = self._prepare(as_picture(picture))
        return ready

    def encode(self, prepared: Sequence[Tensor]) -> FloatRows:
        """(pictures, dim)."""
        rows: FloatRows = self._rows(torch.stack(list(prepared)).to(self.device)).float().cpu().numpy()
        return rows

    def _rows(self, pixels: Tensor) -> Tensor:
        with torch.inference_mode():
            if self.layer == "mean" and hasattr(self._model, "get_image_features"):
                found = self._model.get_image_features(pixel_values=pixels)
                return found if isinstance(found, Tensor) else pooled_rows(found, "pooled", self.model)
            numbered = self.layer.lstrip("-").isdigit()
            return pooled_rows(self._model(pixel_values=pixels, output_hidden_states=numbered), self.layer, self.model)


def pooled_rows(outputs: Any, layer: str, model: str) -> Tensor:
    """(samples, dim) of what a transformers vision or sound model gave.

    Args:
        outputs: with ``last_hidden_state`` (samples, tokens, dim) or (samples, dim, height, width).
        layer: ``mean``, ``first``, ``pooled`` or the number of a hidden state.
        model: its name, for the message.

    Raises:
        ExpertError: the model does not give this layer.
    """
    if layer == "pooled":
        pooled = getattr(outputs, "pooler_output", None)
        if pooled is None:
            raise ExpertError(f"{model!r} has no pooler; use layer=mean")
        return torch.as_tensor(pooled).flatten(1)
    states = outputs.last_hidden_state if layer in ("mean", "first") else None
    if states is None:
        try:
            states = outputs.hidden_states[int(layer)]
        except (ValueError, IndexError, TypeError, AttributeError):
            raise ExpertError(
                f"{model!r} has no layer {layer!r}; mean, first, pooled or the number of a hidden state is needed"
            ) from None
    if layer == "first":
        if states.ndim != 3:
            raise ExpertError(f"{model!r} has no tokens, so no first one; use layer=mean")
        return torch.as_tensor(states[:, 0])
    return torch.as_tensor(states.mean(1) if states.ndim == 3 else states.flatten(2).mean(2))
