"""Images to features with a transformers image model: CLIP, SigLIP, DINO, ViT, ConvNeXt, ResNet."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crossclr.experts.contract import FloatRows, FrameExpert, Needs
from crossclr.experts.media.images import as_rgb
from crossclr.experts.networks.hub import (
    count_channels,
    image_processor,
    load_network,
    pooler_output,
    run_layer,
    version_of,
)


class HubFrames(FrameExpert):
    """What experts with a transformers vision model share: loading, preparing and encoding."""

    def _load(self, model: str, layer: str, revision: str | None, device: torch.device | str) -> None:
        self._prepare = image_processor(model, revision)
        self._network = load_network(model, revision, device)
        self.device = torch.device(device)
        self.model, self.layer, self.version = model, str(layer), version_of(self._network, model)

    def prepare(self, image: Any) -> Tensor:
        """The model's own preparation."""
        return self._prepare(as_rgb(image))

    def encode(self, prepared: Sequence[Tensor]) -> FloatRows:
        """(images or windows, dim)."""
        rows: FloatRows = self._rows(prepared).float().cpu().numpy()
        return rows

    def _blank(self) -> Tensor:
        return self.prepare(np.zeros((64, 64, 3), np.uint8))

    @abstractmethod
    def _rows(self, prepared: Sequence[Tensor]) -> Tensor: ...


class HubImages(HubFrames):
    """One row for each image from a transformers image model.

    Args:
        model: hub name or local folder.
        layer: ``mean`` (of the last hidden state over its positions), ``first`` (its first token, for models with a
            class token), ``pooled`` (the model's own pooler), or the number of a hidden state, such as ``-2``, which is
            averaged. For ``mean``, a model that embeds images and texts (CLIP, SigLIP) returns its image embedding.
        rate: frames per second.
        batch_size: images encoded at once.
        device: where the network runs.
        revision: revision of the hub.
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
        self._load(model, layer, revision, device)
        self.needs, self.batch_size = Needs("frames", rate), batch_size
        self.dim = count_channels(lambda: self._rows([self._blank()]), model, "use a CLIP, SigLIP, DINO, ViT or ResNet")

    def _rows(self, prepared: Sequence[Tensor]) -> Tensor:
        pixels = torch.stack(list(prepared)).to(self.device)
        if self.layer == "mean" and hasattr(self._network, "get_image_features"):
            with torch.inference_mode():
                return pooler_output(self._network.get_image_features(pixel_values=pixels), self.model)
        return run_layer(self._network, self.layer, self.model, pixel_values=pixels)
