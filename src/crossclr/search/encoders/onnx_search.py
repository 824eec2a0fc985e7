"""Encode and search with onnxruntime and numpy only, without PyTorch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from crossclr.extras import requires_extra
from crossclr.storage.checksums import check_sealed
from crossclr.storage.json_files import read_json_object

EXPORT = "export.json"
Rows = npt.NDArray[np.float32]


class OnnxEncoder:
    """An exported encoder.

    Args:
        path: the ``.onnx`` file.
        threads: number of threads; 0: all.

    Raises:
        MissingExtraError: onnxruntime is not installed.
    """

    def __init__(self, path: str | Path, threads: int = 0) -> None:
        with requires_extra("export", "An exported encoder"):
            import onnxruntime
        options: Any = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session: Any = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def __call__(self, sequences: Sequence[Rows]) -> Rows:
        """(sequences, dim) unit vectors of sequences (rows, channels) of any lengths."""
        lengths = np.array([len(rows) for rows in sequences], dtype=np.int64)
        if not len(lengths) or not lengths.min():
            raise ValueError("give at least one sequence, with at least one row each")
        padded = np.zeros((len(sequences), int(lengths.max()), sequences[0].shape[1]), dtype=np.float32)
        for place, rows in enumerate(sequences):
            padded[place, : len(rows)] = rows
        vectors: Rows = self._session.run(["embedding"], {"rows": padded, "lengths": lengths})[0]
        return vectors


class OnnxSearch:
    """Search one modality by another with exported encoders.

    Args:
        folder: the folder that `crossclr export` wrote.
        items: the modality that is searched. Default: the first.
        queries: the modality of the queries. Default: the last.
    """

    def __init__(self, folder: str | Path, items: str | None = None, queries: str | None = None) -> None:
        self.folder = Path(folder)
        check_sealed(self.folder, "export again")
        self.about = read_json_object(self.folder / EXPORT, "encoders")
        encoders = self.about["encoders"]
        self.items, self.queries = (
            OnnxEncoder(self.folder / encoders[name]["file"])
            for name in (items or next(iter(encoders)), queries or list(encoders)[-1])
        )
        self._gallery: Rows | None = None

    def fill(self, clips: Sequence[Rows], batch_size: int = 256) -> None:
        """Embed the feature rows of the clips to search."""
        blocks = [self.items(clips[start : start + batch_size]) for start in range(0, len(clips), batch_size)]
        self._gallery = np.concatenate(blocks)

    def __call__(self, queries: Sequence[Rows], top: int = 10) -> tuple[npt.NDArray[np.int64], Rows]:
        """Positions of the best clips and their cosines, both (queries, top), for the feature rows of sentences."""
        if self._gallery is None:
            raise ValueError("there are no clips to search yet; call fill first")
        return best_rows(self.queries(queries), self._gallery, min(top, len(self._gallery)))


def best_rows(queries: Rows, gallery: Rows, top: int) -> tuple[npt.NDArray[np.int64], Rows]:
    """The best rows of a gallery for each query by inner product, with their scores.

    Example:
        >>> best_rows(np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32), 1)[0].tolist()
        [[0], [1]]
    """
    scores = queries @ gallery.T
    found = np.argsort(-scores, axis=1, kind="stable")[:, :top]
    return found, np.take_along_axis(scores, found, 1)
