"""Hub correction: items that are near to many queries (hubs) get a lower score.

The training samples of the other modalities are example queries, so how near an item is to queries in general is known
before any query comes. The correction is one more channel of the item, which every query multiplies by the same value.

A trained model as a part of a search space.

The object that turns samples into item vectors and query vectors: fitted once, stored, used everywhere.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from crossclr.data.batch import Inputs, Ragged
from crossclr.models.closed_form import ClosedForm
from crossclr.models.cross_fit import Measure
from crossclr.models.joint_model import JointModel
from crossclr.models.pair_moments import evenly_spaced

MOST = 5000  # training samples that are kept; larger sets are subsampled evenly
SHARPNESS = 20.0  # how much the nearest queries count
ITEM_BLOCK = 1024  # items compared with all queries at once


class HubCorrection(nn.Module):
    """Lowers the scores of items that are near to many training queries.

    For an item v and n training queries q the correction is -w log(mean of exp(β cos(v, q))) / β, with β = 20.

    Args:
        vectors: (samples, width) unit vectors of the training samples of each modality; absent ones are zero.
        weight: w, at most 1.
    """

    def __init__(self, vectors: Mapping[str, Tensor], weight: float) -> None:
        super().__init__()
        self.modalities, self.weight = tuple(vectors), float(weight)
        for number, name in enumerate(vectors):  # a modality's name may hold what a buffer's name may not
            rows = vectors[name]
            self.register_buffer(f"vectors_{number}", rows[evenly_spaced(len(rows), MOST)])

    def tensors(self) -> dict[str, Tensor]:
        """The vectors of each modality."""
        return {name: getattr(self, f"vectors_{number}") for number, name in enumerate(self.modalities)}

    def queries(self, vectors: Tensor) -> Tensor:
        """(queries, width + 2) unit vectors; an inner product with an item is half of cosine plus correction."""
        ones = torch.ones_like(vectors[:, :1])
        return torch.cat([vectors, ones, torch.zeros_like(ones)], dim=1) / math.sqrt(2)

    def items(self, modality: str, vectors: Tensor) -> Tensor:
        """(items, width + 2) unit vectors of items of a modality, from their plain unit vectors."""
        return torch.cat([self.corrected(modality, block) for block in torch.split(vectors, ITEM_BLOCK)])

    def corrected(self, modality: str, vectors: Tensor) -> Tensor:
        """`items` all at once."""
        bias = self._bias(modality, vectors).unsqueeze(1)
        rest = (1 - bias.square()).clamp_min(0).sqrt()  # makes all items equally long
        return torch.cat([vectors, bias, rest], dim=1) / math.sqrt(2)

    def _bias(self, modality: str, vectors: Tensor) -> Tensor:
        others = torch.cat([rows for name, rows in self.tensors().items() if name != modality])
        there = others.square().sum(dim=1) > 0
        cosines = (vectors @ others.T).masked_fill(~there, -torch.inf)
        summed = torch.logsumexp(SHARPNESS * cosines, dim=1) - torch.log(there.sum())
        return -self.weight / SHARPNESS * summed


SEQUENCE_BLOCK = 512  # sequences that are encoded at once


class TrainedEncoder(nn.Module):
    """Embeds sequences of one modality with a trained model."""

    def __init__(self, model: JointModel) -> None:
        super().__init__()
        self.model = model.eval()

    @torch.no_grad()
    def clip_vectors(self, modality: str, rows: Ragged) -> Tensor:
        """(sequences, width) embeddings."""
        if len(rows) <= SEQUENCE_BLOCK:
            return self.model.encode_modality(modality, Inputs(rows))["clip"]
        sequences = rows.split()
        starts = range(0, len(sequences), SEQUENCE_BLOCK)
        parts = [Ragged.from_list(sequences[start : start + SEQUENCE_BLOCK]) for start in starts]
        return torch.cat([self.model.encode_modality(modality, Inputs(part))["clip"] for part in parts])


Samples = Ragged | Tensor | Sequence[Any]
MEASURE_NAMES: dict[Measure, str] = {"recall": "mean of R@1, R@5 and R@10", "map": "mAP"}


@dataclass(frozen=True)
class Part:
    """A part of a search space, or something that was tried and is not used."""

    name: str
    share: float  # its share of the similarity; 0 if it is not used
    score: float | None = None  # cross-fitted score of this part alone, in percent; None if it was not measured
    gain: float | None = None  # what it adds to the parts before it, in points; None for the first
    error: float | None = None  # standard error of the gain, or of the score of the first part

    @property
    def use(self) -> str:
        """How it is used, in words."""
        if not self.share:
            return "not used"
        return f"weight {self.share:g}" if self.name == "hub correction" else f"share {self.share:g}"


@dataclass(frozen=True)
class Estimate:
    """What to expect on new samples, by cross-fitting."""

    score: float  # the measure in all directions, in percent
    error: float
    gallery: int  # number of items that were searched
    samples: int  # number of samples that were held out once
    measure: Measure  # mean of R@1, R@5 and R@10, or mAP

    def __str__(self) -> str:
        return (
            f"{MEASURE_NAMES[self.measure]} of {self.score:.1f} ± {self.error:.1f} among {self.gallery:,} new items, "
            f"by cross-fitting on {self.samples:,} samples"
        )


@dataclass(frozen=True)
class Facts:
    """What is known about how a space was chosen."""

    parts: tuple[Part, ...] = ()  # what it consists of, and what was tried
    estimate: Estimate | None = None  # what to expect; None if there were too few samples to tell
    settings: str = ""  # of the closed form, for people

    def rows(self) -> list[tuple[str, str, str, str]]:
        """A table for people: each part, how it is used, its score and its gain."""
        return [
            (
                part.name,
                part.use,
                "" if part.score is None else f"{part.score:.1f}",
                "" if part.gain is None else f"{part.gain:+.1f} ± {part.error:.1f}",
            )
            for part in self.parts
        ]

    def sentence(self) -> str:
        """What the space consists of, and what to expect."""
        used = ", ".join(f"{part.name} ({part.use})" for part in self.parts)
        expected = (
            "nothing was held out, so no score is expected" if self.estimate is None else f"expect {self.estimate}"
        )
        return f"the search space has {used}; {expected}"

    def to_dict(self) -> dict[str, Any]:
        """In types that JSON has."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Facts":
        """Restore them."""
        estimate = values["estimate"]
        return cls(
            tuple(Part(**part) for part in values["parts"]),
            None if estimate is None else Estimate(**estimate),
            values["settings"],
        )


class SearchSpace(nn.Module):
    """Closed form and trained encoders side by side. Each part has unit length, and its share of every similarity.

    Args:
        dims: channels of an input row of each modality.
        closed_form: fitted; None if encoders stand alone.
        encoders: trained; they divide what the closed form leaves equally.
        share: of all encoders together, from 0 to 1.
        hubs: lowers the scores of hubs; None: items and queries have equal vectors.
        facts: how it was chosen.

    Example:
        >>> rows = torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
        >>> closed = ClosedForm().fit({"video": rows, "text": torch.tanh(rows[:, :4])})
        >>> space = SearchSpace({"video": 5, "text": 4}, closed)
        >>> scores = space.encode_queries("text", torch.tanh(rows[:, :4])) @ space.encode_items("video", rows).T
        >>> bool((scores.argmax(1) == torch.arange(200)).float().mean() > 0.5)
        True
    """

    def __init__(
        self,
        dims: Mapping[str, int],
        closed_form: ClosedForm | None,
        encoders: Sequence[nn.Module] = (),
        share: float = 0.0,
        hubs: HubCorrection | None = None,
        facts: Facts | None = None,
    ) -> None:
        super().__init__()
        self.dims = dict(dims)
        self.closed_form = closed_form
        self.encoders = nn.ModuleList(encoders)
        self.share = share if closed_form is not None else 1.0
        self.hubs = hubs
        self.facts = facts or Facts()
        self.eval()

    @property
    def modalities(self) -> tuple[str, ...]:
        """Names of the modalities."""
        return tuple(self.dims)

    @property
    def parts(self) -> tuple[Part, ...]:
        """What the space consists of and what each part gains; parts with share 0 were tried and are not used."""
        return self.facts.parts

    @property
    def trained(self) -> list[TrainedEncoder]:
        """The encoders, with their type."""
        return [cast(TrainedEncoder, encoder) for encoder in self.encoders]

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return next(chain(self.parameters(), self.buffers())).device

    @property
    def two_level(self) -> bool:
        """Whether whole videos are embedded too, by the first encoder."""
        return bool(self.trained) and self.trained[0].model.two_level

    @property
    def embedding_dim(self) -> int:
        """Channels of a vector."""
        closed = 0 if self.closed_form is None or self.share >= 1 else len(self.closed_form.correlations)
        trained = sum(encoder.model.embedding_dim for encoder in self.trained)
        return closed + trained + (0 if self.hubs is None else 2)

    def encode_modality(self, modality: str, inputs: Inputs, clip_counts: Tensor | None = None) -> dict[str, Tensor]:
        """Vectors of clips as queries (``clip``) and as search targets (``items``, where they differ).

        With two levels also ``video`` and ``context``; see `JointModel.encode_modality`.
        """
        whole: dict[str, Tensor] = {}
        if len(self.encoders) and (self.two_level or self._single):
            whole = self.trained[0].model.encode_modality(modality, inputs, clip_counts)
            if self._single:
                return whole
        plain = self._plain(modality, inputs.clips)
        if self.hubs is None:
            return {**whole, "clip": plain}
        return {**whole, "clip": self.hubs.queries(plain), "items": self.hubs.items(modality, plain)}

    @property
    def _single(self) -> bool:
        """Whether one encoder is all there is; its vectors then stay as they are."""
        return self.closed_form is None and self.hubs is None and len(self.encoders) == 1

    def encode_items(self, modality: str, samples: Samples) -> Tensor:
        """(samples, width) unit vectors of samples as search targets.

        Args:
            modality: its name.
            samples: (samples, channels) one row each, or a sequence of rows for each sample.
        """
        plain = self.plain(modality, samples)
        return plain if self.hubs is None else self.hubs.items(modality, plain)

    def encode_queries(self, modality: str, samples: Samples) -> Tensor:
        """(samples, width) unit vectors of samples as queries; see `encode_items`."""
        plain = self.plain(modality, samples)
        return plain if self.hubs is None else self.hubs.queries(plain)

    def plain(self, modality: str, samples: Samples) -> Tensor:
        """(samples, width) unit vectors of the parts side by side, before hubs are corrected."""
        if modality not in self.dims:
            raise ValueError(f"there is no modality {modality!r}; the search space has {', '.join(self.dims)}")
        rows = as_ragged(samples)
        if rows.dim != self.dims[modality]:
            raise ValueError(
                f"rows of {modality!r} have {rows.dim} channels, but the search space takes {self.dims[modality]}"
            )
        return self._plain(modality, rows)

    @torch.no_grad()
    def _plain(self, modality: str, rows: Ragged) -> Tensor:
        """`plain` of rows that may be those of `Dataset.pooled`, with means and maxima side by side."""
        parts = []
        if self.closed_form is not None and self.share < 1:
            parts.append(self.closed_form.encode(modality, mean_rows(rows, self.dims[modality])))
        if self.share > 0:
            parts += [encoder.clip_vectors(modality, rows) for encoder in self.trained]
        return side_by_side(parts, shares(self.share, len(parts), self.closed_form is not None))

    def tensors(self) -> dict[str, Tensor]:
        """All that encoding needs but the encoders, for safetensors."""
        found: dict[str, Tensor] = {}
        if self.closed_form is not None:
            found |= {f"closed_form/{key}": value for key, value in self.closed_form.tensors().items()}
        if self.hubs is not None:
            found |= {f"hubs/{key}": value.float() for key, value in self.hubs.tensors().items()}
        return {key: value.contiguous() for key, value in found.items()}

    def description(self) -> dict[str, Any]:
        """What `restore` needs besides the tensors, as JSON."""
        weight = None if self.hubs is None else self.hubs.weight
        used = {"dims": self.dims, "share": self.share, "encoders": len(self.encoders), "hub_weight": weight}
        return {**used, **self.facts.to_dict()}

    @classmethod
    def restore(
        cls, tensors: Mapping[str, Tensor], description: Mapping[str, Any], encoders: Sequence[nn.Module] = ()
    ) -> "SearchSpace":
        """From what `tensors` and `description` returned, and the encoders."""
        parts: dict[str, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            part, _, name = key.partition("/")
            parts.setdefault(part, {})[name] = value
        return cls(
            description["dims"],
            ClosedForm.from_tensors(parts["closed_form"]) if "closed_form" in parts else None,
            encoders,
            description["share"],
            HubCorrection(parts["hubs"], description["hub_weight"]) if "hubs" in parts else None,
            Facts.from_dict(description),
        )


def shares(share: float, parts: int, closed_form: bool) -> list[float]:
    """The share of each part: the closed form first, then the encoders."""
    if parts == 1 or not closed_form or share >= 1:
        return [1 / parts] * parts
    return [1 - share, *([share / (parts - 1)] * (parts - 1))]


def side_by_side(parts: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """(samples, sum of widths) unit vectors whose inner product is the weighted mean of the parts' cosines.

    Example:
        >>> joined = side_by_side([torch.tensor([[2.0]]), torch.tensor([[3.0, 4.0]])], [0.75, 0.25])
        >>> joined.double().numpy().round(3).tolist()
        [[0.866, 0.3, 0.4]]
    """
    scaled = [weight**0.5 * functional.normalize(part, dim=1) for part, weight in zip(parts, weights, strict=True)]
    return torch.cat(scaled, dim=1)


def mean_rows(rows: Ragged, channels: int) -> Tensor:
    """(sequences, channels) the mean of each sequence, also if `Dataset.pooled` has joined their means and maxima.

    Example:
        >>> mean_rows(Ragged.from_list([torch.tensor([[1.0], [3.0]]), torch.tensor([[5.0]])]), 1).tolist()
        [[2.0], [5.0]]
    """
    if rows.dim == 2 * channels and len(rows) == len(rows.values):
        return rows.values[:, :channels]
    return rows.mean()


def as_ragged(samples: Samples) -> Ragged:
    """Samples as sequences of rows."""
    if isinstance(samples, Tensor) and samples.dim() == 2:
        return Ragged(samples.float(), torch.ones(len(samples), dtype=torch.int64))
    if isinstance(samples, Ragged):
        return samples
    return Ragged.from_list([torch.as_tensor(rows, dtype=torch.float32) for rows in samples])
