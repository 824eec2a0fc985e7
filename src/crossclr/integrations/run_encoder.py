"""Sentences, images, frames, files and feature rows to the vectors of a run, whatever a library calls them."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import pad

from crossclr.data.batch import Ragged
from crossclr.data.sequences import join_rows, limit_rows
from crossclr.errors import DataError
from crossclr.extract import Expert, load
from crossclr.extract.decoding import End, decode
from crossclr.extract.media import Frame, Sound, as_rgb, media_kind
from crossclr.extract.pipeline import Pipeline
from crossclr.extract.recordings import Recording
from crossclr.extract.tokens import TokenEncoder
from crossclr.models import SearchSpace
from crossclr.search.query import QueryError
from crossclr.search.query_encoders import run_experts
from crossclr.training import Run

Task = Literal["query", "document"] | None
Rows = npt.NDArray[np.float32]


@dataclass(frozen=True)
class AcceptedInputs:
    """What a run accepts besides feature rows.

    Args:
        text: the modality that encodes sentences; None: there is none.
        experts: spec and options of each expert of a modality that encodes media.
        limits: most rows of a sequence in each modality; absent or None: no limit.
    """

    text: str | None
    experts: Mapping[str, Sequence[tuple[str, Mapping[str, Any]]]]
    limits: Mapping[str, int | None]

    @classmethod
    def of_run(cls, run: Run) -> "AcceptedInputs":
        """Those of a run, as far as its config, data and experts say."""
        dims = run.load_space().dims
        with_text = ["text"]
        with suppress(DataError):  # the data is on another machine; then the name has to do
            with_text += [name for name, clips in run.open_data(check=False).clips.items() if clips.texts is not None]
        text = next((name for name in with_text if dims.get(name) == TokenEncoder.dim), None)
        try:
            experts = {
                name: [(recipe.spec, dict(recipe.options)) for recipe in recipes]
                for name, recipes in run_experts(run.config).items()
                if name in dims
            }
        except QueryError:
            experts = {}
        return cls(text, experts, run.config.data.row_limits())


class RunEncoder:
    """Encodes inputs of any kind; the experts are loaded when the first input needs them.

    Args:
        space: the search space of a run.
        inputs: what it accepts.
    """

    def __init__(self, space: SearchSpace, inputs: AcceptedInputs) -> None:
        if space.experts:
            raise ValueError(
                f"this run compares the experts {', '.join(space.experts)} with weights that depend on both sides, and "
                "other tools compare vectors by one inner product; use crossclr search, or train with another encoder"
            )
        self.space, self.inputs = space.eval(), inputs
        self._texts: TokenEncoder | None = None
        self._experts: dict[str, Expert] = {}  # by spec
        self._lock = threading.Lock()  # the networks serve one input at a time

    @property
    def dim(self) -> int:
        """Channels of a vector."""
        return self.space.embedding_dim

    def rows(self, samples: Sequence[Any]) -> list[tuple[str, Rows]]:
        """The modality and the feature rows of each input.

        Args:
            samples: sentences, PIL images, (height, width, 3) uint8 arrays, lists of frames, paths of media files, or
                ``{modality: one of these}``; ``{modality: (rows, channels) float array}`` gives feature rows.
        """
        found: list[tuple[str, Rows] | None] = [None] * len(samples)
        sentences: dict[int, tuple[str, str]] = {}
        for place, sample in enumerate(samples):
            name, value = next(iter(sample.items())) if isinstance(sample, Mapping) else (None, sample)
            if isinstance(value, str) and not (media_kind(Path(value)) and Path(value).is_file()):
                sentences[place] = self._text_modality(name), value
            elif name in self.space.dims and _is_rows(value):
                rows = np.asarray(value, dtype=np.float32)
                found[place] = str(name), rows[None] if rows.ndim == 1 else rows
            else:
                found[place] = self._media(name if name in self.inputs.experts else None, value)
        for place, rows in zip(sentences, self._sentences([text for _, text in sentences.values()]), strict=True):
            found[place] = sentences[place][0], rows
        return [one for one in found if one is not None]

    def encode(self, samples: Sequence[Any], task: Task = None) -> Tensor:
        """(inputs, dim) unit vectors of inputs of any modalities; see `rows` and `encode_rows`."""
        return self.encode_rows(self.rows(samples), task)

    def encode_rows(self, rows: Sequence[tuple[str, Rows]], task: Task = None) -> Tensor:
        """(inputs, dim) unit vectors: as queries, as documents (what is searched), or for any other comparison."""
        vectors = torch.empty(len(rows), self.dim)
        for modality in {name for name, _ in rows}:
            places = [place for place, (name, _) in enumerate(rows) if name == modality]
            batch = Ragged.from_list([torch.tensor(rows[place][1]) for place in places]).to(self.space.device)
            if task is None:
                plain = self.space.plain(modality, batch)
                encoded = pad(plain, (0, self.dim - plain.shape[1]))  # without the channels that correct hubs
            else:
                encoded = (self.space.encode_queries if task == "query" else self.space.encode_items)(modality, batch)
            vectors[places] = encoded.float().cpu()
        return vectors

    def _text_modality(self, name: str | None) -> str:
        if name in self.space.dims and self.space.dims[str(name)] == TokenEncoder.dim:
            return str(name)
        if self.inputs.text is None:
            raise ValueError(
                "this run has no encoder of sentences: no modality was trained on the text features of `crossclr "
                "extract --text-only`; give feature rows, {modality: array}"
            )
        return self.inputs.text

    def _sentences(self, texts: list[str]) -> list[Rows]:
        if not texts:
            return []
        with self._lock:
            self._texts = self._texts or TokenEncoder()
            return [np.asarray(rows, dtype=np.float32) for rows in self._texts(texts)]

    def _media(self, modality: str | None, media: Any) -> tuple[str, Rows]:
        """Modality and rows of an image, of frames, or of a file."""
        chosen = {modality: self.inputs.experts[modality]} if modality else self.inputs.experts
        if not chosen:
            raise ValueError("this run does not say which experts made its features; give rows, {modality: array}")
        with self._lock:
            built = {spec: self._expert(spec, options) for parts in chosen.values() for spec, options in parts}
            file = Path(media) if isinstance(media, str | Path) else None
            frames = [] if file else [np.asarray(as_rgb(frame)) for frame in _frames(media)]

            def decoder(path: Path, rates: Sequence[float], sounds: Sequence[int], threads: int) -> Any:
                return decode(file, rates, sounds, threads) if file else _shown(frames, rates)

            job = (Recording("input", Path("input")), list({one.name: one for one in built.values()}.values()))
            encoded = next(iter(Pipeline(decoder=decoder).run([job])))
        if encoded.error:
            raise ValueError(f"the input cannot be used: {encoded.error}")
        for name, parts in chosen.items():
            experts = [built[spec] for spec, _ in parts]
            rows = [encoded.rows.get(expert.name) for expert in experts]
            if any(part is not None for part in rows):
                return name, limit_rows(join_rows(rows, [one.dim for one in experts]), self.inputs.limits.get(name))
        raise ValueError(f"the input has nothing for the experts of {', '.join(chosen)}")

    def _expert(self, spec: str, options: Mapping[str, Any]) -> Expert:
        if spec not in self._experts:
            self._experts[spec] = load(spec, **options)
        return self._experts[spec]


def _is_rows(value: Any) -> bool:
    """Whether a value is feature rows and not an image: floats in at most two dimensions."""
    kind = getattr(value, "dtype", None)
    return kind is not None and getattr(value, "ndim", 3) <= 2 and "float" in str(kind)


def _frames(media: Any) -> list[Any]:
    """The frames of a video in memory, or the image."""
    if isinstance(media, list | tuple):
        return list(media)
    if hasattr(media, "get_frames_at") or getattr(media, "ndim", 0) == 4:  # a decoder of torchcodec, or an array
        values = np.asarray(media if hasattr(media, "ndim") else torch.stack(list(media)))
        channels_last = values.shape[-1] == 3
        return list(values if channels_last else np.moveaxis(values, 1, -1))
    return [media]


def _shown(frames: Sequence[Any], rates: Sequence[float]) -> Iterator[Frame | Sound | End]:
    """Frames as decoded images of every rate."""
    for grid in range(len(rates)):
        yield from (Frame(grid, number, frame) for number, frame in enumerate(frames))
    yield End(float(len(frames)))
