"""Images to object features with a transformers detector of the DETR family."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crossclr.experts.contract import ExpertError, FloatRows, FrameExpert, Needs
from crossclr.experts.media.images import as_rgb
from crossclr.experts.networks.hub import image_processor, load_network, version_of


class Detector(FrameExpert):
    """One row for each image: the mean of the features of its boxes, weighted by the probability of their class.

    Only boxes above the threshold count (0.7 in the paper). An image without such boxes has a row of zeros.

    Args:
        model: hub name or local folder of a detector.
        threshold: the lowest score of a box that counts.
        rate: frames per second.
        batch_size: images encoded at once.
        device: where the network runs.
        revision: revision of the hub.
    """

    name = "object"

    def __init__(
        self,
        model: str,
        threshold: float = 0.7,
        rate: float = 1.0,
        batch_size: int = 4,
        device: torch.device | str = "cpu",
        revision: str | None = None,
    ) -> None:
        if not 0 <= threshold < 1:
            raise ExpertError(f"threshold must lie in [0, 1), got {threshold}")
        self._prepare = image_processor(model, revision)
        self._network = load_network(model, revision, device, "AutoModelForObjectDetection")
        self.device = torch.device(device)
        self.needs = Needs("boxes", rate)
        self.model, self.threshold, self.batch_size = model, threshold, batch_size
        self.layer = f"last decoder state, weighted by class probability, boxes above {threshold:g}"
        self.version = version_of(self._network, model)
        self.dim = int(self._detect([self.prepare(np.zeros((64, 64, 3), np.uint8))])[1].shape[2])

    def prepare(self, image: Any) -> Tensor:
        """The detector's own preparation of the whole, uncropped image."""
        return self._prepare(as_rgb(image))

    def encode(self, prepared: Sequence[Tensor]) -> FloatRows:
        """(images, dim); only images of equal size share a batch, so none is padded."""
        by_shape: dict[torch.Size, list[int]] = {}
        for index, image in enumerate(prepared):
            by_shape.setdefault(image.shape, []).append(index)
        rows = np.zeros((len(prepared), self.dim), dtype=np.float32)
        for chosen in by_shape.values():
            probabilities, states = self._detect([prepared[index] for index in chosen])
            rows[chosen] = class_weighted(probabilities.amax(2), states, self.threshold).cpu().numpy()
        return rows

    def _detect(self, images: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """(images, queries, classes) probabilities and (images, queries, dim) states."""
        with torch.inference_mode():
            outputs = self._network(pixel_values=torch.stack(list(images)).to(self.device))
        logits = outputs.logits.float()
        # DETR has one more class for "no object"; later models of its family score each class separately.
        has_empty_class = logits.shape[2] == self._network.config.num_labels + 1
        probabilities = logits.softmax(2)[..., :-1] if has_empty_class else logits.sigmoid()
        return probabilities, outputs.last_hidden_state.float()


def class_weighted(scores: Tensor, states: Tensor, threshold: float) -> Tensor:
    """(images, dim): the mean of the states of boxes above the threshold, weighted by score; zeros without boxes.

    Example:
        >>> class_weighted(torch.tensor([[0.9, 0.8, 0.1]]), torch.tensor([[[1.0], [3.0], [9.0]]]), 0.7).item()
        1.9411765336990356
    """
    weights = torch.where(scores > threshold, scores, 0.0)  # (images, queries)
    total = weights.sum(1, keepdim=True)
    return (weights.unsqueeze(2) * states).sum(1) / torch.where(total > 0, total, 1.0)
