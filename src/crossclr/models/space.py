"""The search space: turns samples into item vectors and query vectors; fitted once, stored, and used everywhere."""

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
from crossclr.models.hubs import HubCorrection
from crossclr.models.joint_model import JointModel
from crossclr.models.zero_shot import ZeroShot

ROWS = 4096  # mean rows that are encoded at once
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


class Zeros(nn.Module):
    """Stands for a part that does not know a modality."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("zeros", torch.zeros(1, width), persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        """(rows, channels) to (rows, width) zeros."""
        return torch.zeros_like(rows[:, :1]) @ self.get_buffer("zeros").to(rows)


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
    """Closed form, zero-shot space and trained encoders side by side, each with unit length and a share.

    Args:
        dims: channels of an input row of each modality.
        closed_form: fitted; None without pairs, or if encoders stand alone.
        encoders: trained; each has an equal part of their share.
        share: of all encoders together, from 0 to 1.
        hubs: lowers the scores of hubs; None: items and queries have equal vectors.
        facts: how it was chosen.
        zero_shot: a space that some modalities share without pairs.
        zero_shot_share: its share of what the encoders leave, from 0 to 1.

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
        zero_shot: ZeroShot | None = None,
        zero_shot_share: float = 0.0,
    ) -> None:
        super().__init__()
        self.dims = dict(dims)
        self.closed_form = closed_form
        self.zero_shot = zero_shot
        self.zero_shot_share = zero_shot_share if closed_form is not None else float(zero_shot is not None)
        self.encoders = nn.ModuleList(encoders)
        self.share = share if closed_form is not None or zero_shot is not None else 1.0
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
    def experts(self) -> tuple[str, ...]:
        """Names of the experts whose weighted vectors lie side by side, if a single encoder has some."""
        return self.trained[0].model.experts if self._single else ()

    @property
    def two_level(self) -> bool:
        """Whether whole videos are embedded too, by the first encoder."""
        return bool(self.trained) and self.trained[0].model.two_level

    @property
    def embedding_dim(self) -> int:
        """Channels of a vector."""
        closed = 0 if self.closed_form is None or self.share >= 1 else self.closed_form.width
        shared = 0 if self.zero_shot is None or self.share >= 1 else self.zero_shot.width
        trained = sum(encoder.model.embedding_dim for encoder in self.trained)
        return closed + shared + trained + (0 if self.hubs is None else 2)

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
        fitted = self.closed_form is not None or self.zero_shot is not None or self.hubs is not None
        return not fitted and len(self.encoders) == 1

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
        encoded = [encoder.clip_vectors(modality, rows) for encoder in self.trained] if self.share > 0 else []
        return self.joined(modality, mean_rows(rows, self.dims[modality]), encoded)

    def joined(self, modality: str, means: Tensor, encoded: Sequence[Tensor] = ()) -> Tensor:
        """`plain` of mean rows, and of what the encoders made of the samples.

        Args:
            modality: its name.
            means: (samples, channels) the mean row of each sample.
            encoded: (samples, width) what each encoder makes of the samples.
        """
        parts = self.parts_of(modality)
        vectors = [torch.cat([part(block) for block in torch.split(means, ROWS)]) for part in parts]
        return side_by_side([*vectors, *encoded], self.shares_of(modality))

    def parts_of(self, modality: str) -> list[nn.Module]:
        """The modules that map mean rows to vectors: closed form and zero-shot space, `Zeros` where one lacks it."""
        if self.share >= 1:
            return []
        parts = [part for part in (self.closed_form, self.zero_shot) if part is not None]
        return [part.branch(modality) if modality in part.modalities else Zeros(part.width) for part in parts]

    def shares_of(self, modality: str) -> list[float]:
        """The share of each part in the modality's vectors: those of `parts_of`, then the encoders."""
        shares = []
        if self.closed_form is not None and self.share < 1:
            shares.append((1 - self.share) * (1 - self.zero_shot_share) * (modality in self.closed_form.modalities))
        if self.zero_shot is not None and self.share < 1:
            shares.append((1 - self.share) * self.zero_shot_share * (modality in self.zero_shot.modalities))
        if len(self.encoders) and self.share > 0:
            shares += [self.share / len(self.encoders)] * len(self.encoders)
        if not sum(shares):
            raise ValueError(f"nothing in the search space knows modality {modality!r}; add pairs that have it")
        return [share / sum(shares) for share in shares]

    def tensors(self) -> dict[str, Tensor]:
        """All that encoding needs but the encoders, for safetensors."""
        found: dict[str, Tensor] = {}
        if self.closed_form is not None:
            found |= {f"closed_form/{key}": value for key, value in self.closed_form.tensors().items()}
        if self.hubs is not None:
            found |= {f"hubs/{key}": value.float() for key, value in self.hubs.tensors().items()}
        if self.zero_shot is not None:
            found |= {f"zero_shot/{key}": value for key, value in self.zero_shot.tensors().items()}
        return {key: value.contiguous() for key, value in found.items()}

    def description(self) -> dict[str, Any]:
        """What `restore` needs besides the tensors, as JSON."""
        weight = None if self.hubs is None else self.hubs.weight
        used = {"dims": self.dims, "share": self.share, "encoders": len(self.encoders), "hub_weight": weight}
        about = None if self.zero_shot is None else self.zero_shot.about
        return {**used, "zero_shot": about, "zero_shot_share": self.zero_shot_share, **self.facts.to_dict()}

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
            ZeroShot.from_tensors(parts["zero_shot"], description["zero_shot"]) if "zero_shot" in parts else None,
            description["zero_shot_share"],
        )


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
