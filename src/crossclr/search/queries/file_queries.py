"""A file of one's own as a query: the experts of the run and its model turn it into a vector."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from crossclr.experts import Expert, load
from crossclr.experts.extraction.pipeline import Pipeline
from crossclr.experts.extraction.recordings import Recording
from crossclr.experts.media.bounded_decoding import Bounds, decode_bounded
from crossclr.experts.media.decoding import End
from crossclr.experts.media.grids import Frame, Sound
from crossclr.features.reading.row_files import join_rows
from crossclr.features.reading.sampling import limit_rows
from crossclr.features.sample import Rows
from crossclr.models import SearchSpace
from crossclr.search.encoders.feature_rows import encode_rows
from crossclr.search.index.contract import Vectors
from crossclr.search.queries.run_experts import Recipe, run_experts
from crossclr.search.query_error import QueryError
from crossclr.training import Run

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
