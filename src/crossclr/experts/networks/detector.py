"""Images to object features with a transformers detector of the DETR family."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crossclr.experts.contract import ExpertError, FloatRows, FrameExpert, Needs
from crossclr.experts.media.images import as_rgb
from crossclr.experts.networks.hub import image_processor, load_network, version_of


@dataclass(frozen=True)
class Box:
    """An object that was detected in an image."""

    label: str  # its class
    score: float  # the detector's confidence, 0 to 1
    place: tuple[float, float, float, float]  # left, top, right, bottom, as fractions of the image's width and height


@dataclass(frozen=True)
class _Detections:
    """The detector's output."""

    probabilities: Tensor  # (images, queries, classes)
    boxes: Tensor  # (images, queries, 4): centre, width and height
    states: Tensor  # (images, queries, dim)


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
        self.dim = int(self._detect([self.prepare(np.zeros((64, 64, 3), np.uint8))]).states.shape[2])

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
            found = self._detect([prepared[index] for index in chosen])
            rows[chosen] = class_weighted(found.probabilities.amax(2), found.states, self.threshold).cpu().numpy()
        return rows

    def detect(self, image: Any) -> list[Box]:
        """The boxes of one image above the threshold, highest score first."""
        detections = self._detect([self.prepare(image)])
        scores, labels = detections.probabilities[0].max(1)
        names = self._network.config.id2label
        found = []
        for query in torch.argsort(scores, descending=True).tolist():
            if scores[query] > self.threshold:
                x, y, width, height = detections.boxes[0, query].tolist()
                place = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
                found.append(Box(str(names[int(labels[query])]), float(scores[query]), place))
        return found

    def _detect(self, images: Sequence[Tensor]) -> _Detections:
        with torch.inference_mode():
            outputs = self._network(pixel_values=torch.stack(list(images)).to(self.device))
        logits = outputs.logits.float()
        # DETR has one more class for "no object"; later models of its family score each class separately.
        has_empty_class = logits.shape[2] == self._network.config.num_labels + 1
        probabilities = logits.softmax(2)[..., :-1] if has_empty_class else logits.sigmoid()
        return _Detections(probabilities, outputs.pred_boxes.float(), outputs.last_hidden_state.float())


def class_weighted(scores: Tensor, states: Tensor, threshold: float) -> Tensor:
    """(images, dim): the mean of the states of boxes above the threshold, weighted by score; zeros without boxes.

    Example:
        >>> class_weighted(torch.tensor([[0.9, 0.8, 0.1]]), torch.tensor([[[1.0], [3.0], [9.0]]]), 0.7).item()
        1.9411765336990356
    """
    weights = torch.where(scores > threshold, scores, 0.0)  # (images, queries)
    total = weights.sum(1, keepdim=True)
    return (weights.unsqueeze(2) * states).sum(1) / torch.where(total > 0, total, 1.0)
