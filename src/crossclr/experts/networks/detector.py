"""Pictures to object features with any transformers detector of the DETR family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crossclr.experts.contract import ExpertError, FloatRows, FrameExpert, Needs
from crossclr.experts.media.images import as_picture
from crossclr.experts.networks.hub import load_pretrained, picture_processor, version_of


@dataclass(frozen=True)
class Box:
    """One thing that was found in a picture.

    Args:
        label: its class.
        score: how sure the detector is, 0 to 1.
        place: left, top, right, bottom, as shares of the picture's width and height.
    """

    label: str
    score: float
    place: tuple[float, float, float, float]


class Objects(FrameExpert):
    """One row for each picture: the features of its boxes, weighted by the probability of their class.

    Boxes count above the threshold (0.7 in the paper). A picture without any has a row of zeros.

    Args:
        model: hub name or local folder of a detector.
        threshold: the least score of a box.
        rate: frames a second.
        batch_size: pictures encoded at once.
        device: where the network runs.
        revision: of the hub.
    """

    name = "object"
    layer = "last decoder state, weighted by class probability"

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
        self._prepare = picture_processor(model, revision)
        self._model = load_pretrained("AutoModelForObjectDetection", model, revision).float().eval().to(device)
        self.device = torch.device(device)
        self.needs = Needs("boxes", rate)
        self.model, self.threshold, self.batch_size = model, threshold, batch_size
        self.layer = f"{type(self).layer}, boxes above {threshold:g}"
        self.version = version_of(self._model, model)
        self.dim = int(self._run([self.prepare(np.zeros((64, 64, 3), np.uint8))])[2].shape[2])

    def prepare(self, picture: Any) -> Tensor:
        """The detector's own preparation: the whole picture, not cut."""
        ready: Tensor = self._prepare(as_picture(picture))
        return ready

    def encode(self, prepared: Sequence[Tensor]) -> FloatRows:
        """(pictures, dim)."""
        rows = np.zeros((len(prepared), self.dim), dtype=np.float32)
        for chosen in _by_shape(prepared):
            probabilities, _, states = self._run([prepared[index] for index in chosen])
            rows[chosen] = class_weighted(probabilities.amax(2), states, self.threshold).cpu().numpy()
        return rows

    def detect(self, picture: Any) -> list[Box]:
        """The boxes of one picture that count, the surest first."""
        probabilities, boxes, _ = self._run([self.prepare(picture)])
        scores, labels = probabilities[0].max(1)
        names = self._model.config.id2label
        found = []
        for query in torch.argsort(scores, descending=True).tolist():
            if scores[query] > self.threshold:
                x, y, width, height = boxes[0, query].tolist()
                place = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
                found.append(Box(str(names[int(labels[query])]), float(scores[query]), place))
        return found

    def _run(self, pictures: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Class probabilities (pictures, queries, classes), boxes (.., .., 4) and states (.., .., dim)."""
        with torch.inference_mode():
            outputs = self._model(pixel_values=torch.stack(list(pictures)).to(self.device))
        logits = outputs.logits.float()
        # DETR has a further class "nothing here"; its later kin ask of each class by itself.
        further = logits.shape[2] == self._model.config.num_labels + 1
        probabilities = logits.softmax(2)[..., :-1] if further else logits.sigmoid()
        return probabilities, outputs.pred_boxes.float(), outputs.last_hidden_state.float()


def class_weighted(scores: Tensor, states: Tensor, threshold: float) -> Tensor:
    """Mean of the states of boxes above the threshold, weighted by their scores; zeros where there is none.

    Args:
        scores: (pictures, queries) probability of the likeliest class.
        states: (pictures, queries, dim).
        threshold: the least score.

    Example:
        >>> class_weighted(torch.tensor([[0.9, 0.8, 0.1]]), torch.tensor([[[1.0], [3.0], [9.0]]]), 0.7).item()
        1.9411765336990356
    """
    weights = torch.where(scores > threshold, scores, 0.0)  # (pictures, queries)
    total = weights.sum(1, keepdim=True)
    return (weights.unsqueeze(2) * states).sum(1) / torch.where(total > 0, total, 1.0)


def _by_shape(prepared: Sequence[Tensor]) -> list[list[int]]:
    """Indices of pictures of the same size: those can be stacked without padding."""
    groups: dict[torch.Size, list[int]] = {}
    for index, picture in enumerate(prepared):
        groups.setdefault(picture.shape, []).append(index)
    return list(groups.values())
