"""Spaces that modalities share before any of your pairs is seen: towers of one model such as CLIP, or names of classes.

A classifier leads to texts too: the probabilities of its classes weight the text vectors of their names (ConSE, Norouzi
et al. 2014), so an image and a text meet without a single caption.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional


class SharedTower(nn.Module):
    """Rows of one modality as unit vectors of a shared space.

    Without ``weight``, rows already are vectors of the space. With it, they are features of a classifier, and
    ``softmax((rows W' + b) / temperature)`` weights the vectors of the class names.

    Args:
        centre: (width,) is subtracted before vectors get unit length; zeros keep a joint model's own cosines.
        weight: (classes, channels) of the classifier.
        bias: (classes,) of the classifier.
        class_vectors: (classes, width) text vectors of the class names.
        temperature: of the softmax.
        span: first channel, and the one after the last, in which rows without a classifier lie; default: all. Rows in
            channels of their own are only similar to rows of their kind.
    """

    centre: Tensor
    weight: Tensor | None
    bias: Tensor | None
    class_vectors: Tensor | None
    temperature: Tensor
    span: Tensor

    def __init__(
        self,
        centre: Tensor,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        class_vectors: Tensor | None = None,
        temperature: float | Tensor = 1.0,
        span: tuple[int, int] | Tensor | None = None,
    ) -> None:
        super().__init__()
        if weight is not None:
            if class_vectors is None or len(class_vectors) != len(weight) or class_vectors.shape[1:] != centre.shape:
                raise ValueError("class_vectors must have one row for each class, as wide as the centre")
            bias = torch.zeros(len(weight)) if bias is None else bias
        if float(temperature) <= 0:
            raise ValueError(f"temperature must be positive, got {float(temperature)}")
        values = {"centre": centre, "weight": weight, "bias": bias, "class_vectors": class_vectors}
        for name, value in {**values, "temperature": torch.as_tensor(temperature)}.items():
            self.register_buffer(name, None if value is None else value.detach().float().clone())
        self.register_buffer("span", torch.as_tensor((0, len(centre)) if span is None else span))

    @property
    def dim(self) -> int:
        """Channels of an input row."""
        return int(self.span[1] - self.span[0]) if self.weight is None else self.weight.shape[1]

    def widened(self, width: int) -> "SharedTower":
        """The same tower in a space with more channels, which are 0."""
        more = width - len(self.centre)
        classes = None if self.class_vectors is None else functional.pad(self.class_vectors, (0, more))
        return SharedTower(
            functional.pad(self.centre, (0, more)), self.weight, self.bias, classes, self.temperature, self.span
        )

    def forward(self, rows: Tensor) -> Tensor:
        """(rows, channels) to (rows, width)."""
        vectors = rows.float()
        if self.weight is not None and self.bias is not None and self.class_vectors is not None:
            logits = torch.addmm(self.bias, vectors, self.weight.T) / self.temperature
            vectors = logits.softmax(dim=1) @ self.class_vectors
        elif self.dim < len(self.centre):
            vectors = functional.pad(vectors, (int(self.span[0]), len(self.centre) - int(self.span[1])))
        return functional.normalize(vectors - self.centre, dim=1)


class ZeroShot(nn.Module):
    """A shared space of some modalities, as a part of a `SearchSpace`; it needs no pairs.

    Args:
        towers: by modality.
        about: what the space is, for people.

    Example:
        >>> classifier = torch.tensor([[9.0, 0.0], [0.0, 9.0]]), torch.zeros(2)
        >>> space = ZeroShot.from_class_names({"image": classifier}, ["text"], torch.eye(2), about="cat or dog")
        >>> space.branch("image")(torch.tensor([[1.0, 0.0]])) @ space.branch("text")(torch.eye(2)).T > 0
        tensor([[ True, False]])
    """

    def __init__(self, towers: Mapping[str, SharedTower], about: str = "a joint space") -> None:
        super().__init__()
        widths = {name: len(tower.centre) for name, tower in towers.items()}
        if len(set(widths.values())) != 1:
            raise ValueError(f"the modalities of a shared space need one width, got {widths}")
        self.modalities, self.about, self.width = tuple(towers), about, next(iter(widths.values()))
        self.towers = nn.ModuleList(towers.values())  # a modality's name may hold what a module's name may not

    @classmethod
    def from_joint_model(cls, modalities: Sequence[str], width: int, about: str = "a joint space") -> "ZeroShot":
        """Modalities whose rows are vectors of one joint model, such as CLIP; cosines stay as they are."""
        return cls({name: SharedTower(torch.zeros(width)) for name in modalities}, about)

    @classmethod
    def from_class_names(
        cls,
        classifiers: Mapping[str, tuple[Tensor, Tensor]],
        texts: Sequence[str],
        class_vectors: Tensor,
        temperature: float = 1.0,
        about: str = "names of classes",
    ) -> "ZeroShot":
        """Modalities with a classifier, and modalities whose rows are text vectors.

        Args:
            classifiers: weight (classes, channels) and bias (classes,) of each modality.
            texts: the other modalities.
            class_vectors: (classes, width) text vectors of the class names; their mean is everyone's centre.
            temperature: of the softmax over the classes.
            about: what the space is, for people.
        """
        centre = class_vectors.mean(dim=0)
        towers = {
            name: SharedTower(centre, weight, bias, class_vectors, temperature)
            for name, (weight, bias) in classifiers.items()
        }
        return cls({**towers, **{name: SharedTower(centre) for name in texts}}, about)

    def branch(self, modality: str) -> SharedTower:
        """One modality's tower by itself, for export."""
        if modality not in self.modalities:
            raise ValueError(f"{self.about} has no modality {modality!r}; it has {', '.join(self.modalities)}")
        return cast(SharedTower, self.towers[self.modalities.index(modality)])

    def check_channels(self, dims: Mapping[str, int]) -> None:
        """Refuse rows with another number of channels, and rows of which it knows no modality.

        Raises:
            ValueError: says which modality.
        """
        if not set(dims) & set(self.modalities):
            raise ValueError(f"{self.about} has {', '.join(self.modalities)}, but the data has {', '.join(dims)}")
        for name in set(dims) & set(self.modalities):
            if dims[name] != self.branch(name).dim:
                wanted = self.branch(name).dim
                raise ValueError(f"rows of {name!r} have {dims[name]} channels, but {self.about} takes {wanted}")

    def beside(self, dims: Mapping[str, int]) -> "ZeroShot":
        """With more modalities, each in channels of its own: their rows find similar rows of the same modality.

        Args:
            dims: channels of a row of each.
        """
        width, more = self.width + sum(dims.values()), {}
        stops = accumulate(dims.values(), initial=self.width)
        for (name, dim), first in zip(dims.items(), stops, strict=False):
            more[name] = SharedTower(torch.zeros(width), span=(first, first + dim))
        return ZeroShot({**{name: self.branch(name).widened(width) for name in self.modalities}, **more}, self.about)

    def tensors(self) -> dict[str, Tensor]:
        """All that encoding needs, named ``modality/part``, for safetensors."""
        return {
            f"{name}/{key}": value for name in self.modalities for key, value in self.branch(name).state_dict().items()
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], about: str = "a joint space") -> "ZeroShot":
        """From what `tensors` returned."""
        towers: dict[str, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            name, _, part = key.rpartition("/")
            towers.setdefault(name, {})[part] = value
        return cls({name: SharedTower(**values) for name, values in towers.items()}, about)
