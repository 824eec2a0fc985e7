"""Sentences and files to query vectors, by the experts and the model of a run."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from crossclr.data import EmojiConfig
from crossclr.data.sample import Rows
from crossclr.data.sequences import join_rows, limit_rows
from crossclr.errors import ReadError
from crossclr.extract import Expert, load
from crossclr.extract.decoding import Bounds, End, decode_bounded
from crossclr.extract.extraction import MANIFEST
from crossclr.extract.media import Frame, Sound
from crossclr.extract.pipeline import Pipeline
from crossclr.extract.recordings import Recording
from crossclr.extract.tokens import TokenEncoder
from crossclr.models import SearchSpace
from crossclr.search.index import Vectors
from crossclr.search.onnx_queries import OnnxQueries, open_onnx_queries
from crossclr.search.query import QueryError
from crossclr.search.run_items import TEXT, EmbeddedItems, encode_rows
from crossclr.storage.reading import read_json, read_json_object
from crossclr.training import Run, RunConfig

CACHED = 1024


@dataclass(frozen=True)
class Recipe:
    """How to build an expert again: its spec and options for `crossclr.extract.load`."""

    spec: str
    options: Mapping[str, Any] = field(default_factory=dict)


class TextQueries:
    """Sentences to unit vectors.

    Args:
        model: the run's model.
        modality: the text modality that encodes sentences unless another is chosen.
        encoder: the text expert. Default: it is loaded at the first sentence.
        recipe: how to build it. Default: MiniLM, with features of 384 channels.

    Raises:
        QueryError: the run was trained on other text features.
    """

    def __init__(
        self,
        model: SearchSpace,
        modality: str = TEXT,
        encoder: Expert | None = None,
        recipe: Recipe | None = None,
    ) -> None:
        dim = model.dims[modality]
        if recipe is None and encoder is None and dim != TokenEncoder.dim:
            raise QueryError(
                f"this run was trained on text features of {dim} channels, but typed queries have the "
                f"{TokenEncoder.dim} channels of MiniLM: search with --like ID, or train on features of "
                "`crossclr extract --text-only`"
            )
        self.model, self.modality = model.eval(), modality
        self._encoder: Any = encoder
        self._recipe = recipe or Recipe("text")
        self._lock = threading.Lock()
        self._vector = lru_cache(CACHED)(lambda text, modality: self._encode([text], modality)[0])

    def warm_up(self) -> None:
        """Load the text expert now instead of at the first query."""
        self.encode(["warm"])

    def encode(self, texts: Sequence[str], modality: str | None = None) -> Vectors:
        """(texts, dim) unit vectors, by the encoder of a text modality."""
        chosen = modality or self.modality
        return self._vector(texts[0], chosen)[None] if len(texts) == 1 else self._encode(texts, chosen)

    def _encode(self, texts: Sequence[str], modality: str) -> Vectors:
        with self._lock:  # one at a time, because the network uses several threads itself
            if self._encoder is None:
                self._encoder = load(self._recipe.spec, **self._recipe.options)
            return encode_rows(self.model, modality, self._encoder(list(texts)))


def text_modalities(found: Mapping[str, EmbeddedItems], dims: Mapping[str, int]) -> list[str]:
    """The modalities that can encode typed queries: sentences as MiniLM embeds them. The first is the default.

    That is the one named ``text``, or the first of the data.

    Args:
        found: the items of each modality.
        dims: channels of the features of each modality.
    """
    names = [name for name in dims if name == TEXT or (name in found and found[name].is_text)]
    fit = [name for name in names if dims[name] == TokenEncoder.dim]
    return sorted(fit or names[:1], key=lambda name: name != TEXT)


def trial_encoder(
    model: SearchSpace, modality: str | None, folder: Path, recipe: Recipe | None = None
) -> OnnxQueries | TextQueries | None:
    """The encoder of sentences, or None where typed queries are not possible.

    The exported encoder in a generation of an index is preferred, because it loads in a fraction of the time.
    """
    try:
        return open_onnx_queries(folder, "") or open_text_queries(model, modality, recipe)
    except QueryError:
        return None


def open_text_queries(model: SearchSpace, modality: str | None, recipe: Recipe | None = None) -> TextQueries:
    """The encoder of typed sentences for a model; ``modality`` is the one that is text.

    ``recipe`` builds its expert; see `text_recipe`.

    Raises:
        QueryError: no modality is text, or it has other text features.
    """
    if modality is None:
        raise QueryError("no modality of this run is text, so typed queries are not possible; use --like ID")
    return TextQueries(model, modality, recipe=recipe)


def text_recipe(config: RunConfig) -> Recipe | None:
    """The expert that made the text features of a run; None for MiniLM, and where it is not known."""
    path = Path(getattr(config.data, "root", "") or ".") / MANIFEST
    if not path.is_file():
        return None
    experts = [one for one in read_json_object(path, "experts")["experts"].values() if one["needs"]["kind"] == "tokens"]
    other = [Recipe(one["spec"], one["options"]) for one in experts if one["spec"] not in ("", "text")]
    return other[0] if other else None


def run_experts(config: RunConfig) -> dict[str, Sequence[Recipe]]:
    """The experts of each modality that a file can be encoded in, in the order in which their channels are joined.

    Raises:
        QueryError: it is not known which experts made the features.

    Example:
        >>> from crossclr.training import load_config
        >>> run_experts(load_config("emoji"))
        {'image': [Recipe(spec='appearance', options={})]}
    """
    data = config.data
    if isinstance(data, EmojiConfig):
        shown = {name: content for name, content in data.modalities.items() if content != "text"}
        return {name: [Recipe("appearance")] * len(content.split("+")) for name, content in shown.items()}
    path = Path(getattr(data, "root", "") or ".") / MANIFEST
    if not path.is_file():
        raise QueryError(
            "files cannot be queries here: it is not known which experts made the features of this run "
            f"(`crossclr extract` writes that to {MANIFEST})"
        )
    try:
        found = _recipes(read_json(path), data.modality_names)
    except (ReadError, OSError, LookupError, TypeError, AttributeError) as error:
        raise QueryError(f"files cannot be queries here: {path} does not name the experts ({error})") from error
    if not found:
        raise QueryError(f"files cannot be queries here: {path} names no expert for images or sound")
    return found


def _recipes(manifest: Any, names: Sequence[str]) -> dict[str, Sequence[Recipe]]:
    found: dict[str, Sequence[Recipe]] = {}
    for name, labels in manifest["modalities"].items():
        experts = [manifest["experts"][label] for label in labels]
        if name in names and all(one["needs"]["kind"] != "tokens" for one in experts):
            if unknown := [one["expert"] for one in experts if not one["spec"]]:
                raise LookupError(f"it does not say how to build {unknown[0]!r}")
            found[name] = [Recipe(one["spec"], one["options"]) for one in experts]
    return found


Events = Iterator[Frame | Sound | End]
Encode = Callable[[str, Sequence[Rows]], Vectors]


@dataclass(frozen=True)
class FileQuery:
    """A file as a query: its vector, the modality that it belongs to, and how many seconds were used."""

    vector: Vectors  # (1, dim)
    modality: str
    seconds: float


class FileQueries:
    """Files to query vectors. The file is decoded in a bounded process, and nothing of it is kept.

    Args:
        recipes: the experts of each modality.
        limits: most rows of a sequence in each modality; None or absent: no limit.
        encode: rows of a modality to unit vectors.
        bounds: what decoding may cost.
    """

    def __init__(
        self,
        recipes: Mapping[str, Sequence[Recipe]],
        limits: Mapping[str, int | None],
        encode: Encode,
        bounds: Bounds | None = None,
    ) -> None:
        self.recipes, self.limits, self.bounds = recipes, limits, bounds or Bounds()
        self._encode_rows = encode
        self._experts: dict[str, Expert] = {}  # by spec; built at the first file
        self._lock = threading.Lock()  # the networks serve one file at a time

    def encode(self, file: BinaryIO) -> FileQuery:
        """The vector of an opened file, by the first modality that the file has something for.

        Raises:
            QueryError: the file is not an image, video or sound that the experts of this run can use.
        """
        with self._lock:
            experts = {recipe.spec: self._expert(recipe) for part in self.recipes.values() for recipe in part}
            named = {expert.name: expert for expert in experts.values()}

            def decoder(path: Path, rates: Sequence[float], sound_rates: Sequence[int], threads: int) -> Events:
                return decode_bounded(file, rates, sound_rates, self.bounds)

            job = (Recording("query", Path("query")), list(named.values()))
            finished = next(iter(Pipeline(decoder=decoder).run([job])))
            if finished.error:
                raise QueryError(f"the file cannot be used: {finished.error}")
            for modality, recipes in self.recipes.items():
                chosen = [experts[recipe.spec] for recipe in recipes]
                parts = [finished.rows.get(expert.name) for expert in chosen]
                if any(part is not None for part in parts):
                    rows = limit_rows(join_rows(parts, [one.dim for one in chosen]), self.limits.get(modality))
                    return FileQuery(self._encode_rows(modality, [rows]), modality, finished.duration)
        needs = " or ".join(sorted({expert.needs.kind for expert in named.values()}))
        raise QueryError(f"the file cannot be used: this run needs {needs}, and the file has none")

    def _expert(self, recipe: Recipe) -> Expert:
        if recipe.spec not in self._experts:
            self._experts[recipe.spec] = load(recipe.spec, **recipe.options)
        return self._experts[recipe.spec]


def open_file_queries(run: Run, model: SearchSpace) -> FileQueries:
    """The encoder of files for a run.

    Raises:
        QueryError: it is not known which experts made its features.
    """
    limits = run.config.data.row_limits()
    return FileQueries(
        run_experts(run.config), limits, lambda modality, rows: encode_rows(model.eval(), modality, rows)
    )
