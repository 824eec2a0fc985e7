"""`crossclr export`: all encoders as ONNX, checked against PyTorch and in a search with onnxruntime."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from crossclr.extras import requires_extra
from crossclr.features import Source, one_of_each
from crossclr.models import JointModel, SearchSpace
from crossclr.search.encoders.feature_rows import encode_rows
from crossclr.search.encoders.minilm_rows import MiniLMRows
from crossclr.search.encoders.onnx_queries import QUERY_ENCODER
from crossclr.search.encoders.onnx_search import EXPORT, OnnxEncoder, best_rows
from crossclr.search.encoders.padded_encoder import PaddedSpace, padded
from crossclr.storage import new_folder, write_json
from crossclr.training import Run

TOLERANCE = 1e-4
CHECKED = 64  # samples to check the exported encoders with
Rows = npt.NDArray[np.float32]


class ExportError(ValueError):
    """An exported encoder differs from the model."""


def export_run(run: Run | str | Path, out: str | Path | None = None) -> dict[str, Any]:
    """Write ``encoder_NAME.onnx`` for each modality and ``export.json``; the folder appears after all checks passed.

    An encoder takes ``rows`` (batch, longest, channels) and ``lengths`` (batch,) with any batch size and any length,
    and returns unit vectors (batch, dim).

    Args:
        run: a trained run, or its folder.
        out: folder to write. Default: ``onnx`` in the run folder.

    Returns:
        the content of ``export.json``: sizes, the largest difference from PyTorch, and how a search with onnxruntime
        compares with a search in PyTorch.

    Raises:
        ExportError: an encoder differs by more than 1e-4, or the searches disagree.
        MissingExtraError: onnx or onnxruntime is not installed.
    """
    with requires_extra("export", "An export"):
        import onnx  # noqa: F401  # the exporter needs it, and reports its absence in several lines
        import onnxruntime  # noqa: F401
    run = run if isinstance(run, Run) else Run.open(run)
    out = Path(out) if out is not None else run.path / "onnx"
    if out.exists() and not (out / EXPORT).is_file():
        raise FileExistsError(f"{out} exists and is not an export; choose another folder with --out")
    model = run.load_space()
    source = run.open_source()
    with new_folder(out, replace=True) as partial:
        report: dict[str, Any] = {"name": run.config.name, "encoders": {}, "items": {}}
        splits = run.config.splits
        rows = _samples(source, splits.test or splits.validate_ or splits.train)
        for name, dim in model.dims.items():
            for as_items in (False, True) if model.hubs is not None else (False,):
                file = f"{'items' if as_items else 'encoder'}_{name}.onnx"
                export_encoder(PaddedSpace(model, name, as_items).eval(), dim, partial / file)
                difference = _difference(model, name, OnnxEncoder(partial / file), rows[name], as_items)
                if difference > TOLERANCE:
                    raise ExportError(f"{file} differs from PyTorch by {difference:.2g}, more than {TOLERANCE:g}")
                about = {"file": file, "channels": dim, "largest_difference": difference}
                report["items" if as_items else "encoders"][name] = about
        report["search"] = _compare_search(model, partial, rows)
        write_json(partial / EXPORT, report)
    return {"folder": str(out), **report}


def export_encoder(encoder: nn.Module, channels: int, path: Path) -> None:
    """Write one encoder as ONNX for any batch size and length."""
    rows, lengths = torch.randn(3, 5, channels), torch.tensor([5, 3, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            encoder,
            (rows, lengths),
            str(path),
            input_names=["rows", "lengths"],
            output_names=["embedding"],
            dynamic_axes={"rows": {0: "batch", 1: "longest"}, "lengths": {0: "batch"}},
            dynamo=False,  # the other exporter takes forty times as long
        )


def write_query_encoder(model: JointModel | SearchSpace, folder: Path, modality: str) -> None:
    """Write the text encoder next to an index, so that `crossclr search` needs no PyTorch.

    Nothing is written if onnxruntime is not installed, typed queries are not possible, or ONNX cannot express the
    model; a search then loads PyTorch.
    """
    if model.dims.get(modality) != MiniLMRows.dim:
        return
    path = folder / QUERY_ENCODER
    try:
        export_encoder(padded(model.cpu(), modality), MiniLMRows.dim, path)
        rng = np.random.default_rng(0)
        rows = [rng.standard_normal((length, MiniLMRows.dim)).astype(np.float32) for length in (1, 4, 30)]
        good = _difference(model, modality, OnnxEncoder(path), rows) <= TOLERANCE
    except (ImportError, TypeError, AttributeError, RuntimeError):
        good = False
    if not good:
        path.unlink(missing_ok=True)


def _samples(source: Source, split: str) -> dict[str, list[Rows]]:
    """By modality, feature rows of some clips, of the first sequence of each."""
    found: dict[str, list[Rows]] = {name: [] for name in source.modalities}
    for key in list(source.keys(split))[:CHECKED]:
        for name, content in one_of_each(source.read(key)).modalities.items():
            found[name] += [np.asarray(rows, dtype=np.float32) for rows in content.clips]
    return {name: rows[:CHECKED] for name, rows in found.items()}


def _difference(
    model: JointModel | SearchSpace, modality: str, encoder: OnnxEncoder, rows: Sequence[Rows], as_items: bool = False
) -> float:
    """The largest difference over batches of several sizes and lengths, including a single short sequence."""
    shortest = min(rows, key=len)
    groups = [rows, rows[:1], [shortest], [shortest[:1], rows[0]]]
    return max(
        float(np.abs(encoder(group) - encode_rows(model, modality, group, as_items=as_items)).max())
        for group in groups
        if group
    )


def _compare_search(model: SearchSpace, folder: Path, rows: dict[str, list[Rows]]) -> dict[str, Any]:
    """Search the first modality by the last with onnxruntime and with PyTorch; the ten best must agree."""
    items, queries = model.modalities[0], model.modalities[-1]
    files = f"{'items' if model.hubs is not None else 'encoder'}_{items}.onnx", f"encoder_{queries}.onnx"
    ours = [OnnxEncoder(folder / file)(rows[name]) for file, name in zip(files, (items, queries), strict=True)]
    theirs = [encode_rows(model, name, rows[name], as_items=name == items) for name in (items, queries)]
    top = min(10, len(rows[items]))
    found, _ = best_rows(ours[1], ours[0], top)
    expected = theirs[1] @ theirs[0].T
    # Ties may be ordered differently, so the scores of the results are compared.
    gap = float(np.abs(np.take_along_axis(expected, found, 1) - -np.sort(-expected, axis=1)[:, :top]).max())
    if gap > 2 * TOLERANCE:
        raise ExportError(f"a search with onnxruntime returns other clips than PyTorch (scores differ by {gap:.2g})")
    return {"queries": len(rows[queries]), "gallery": len(rows[items]), "largest_score_difference": gap}
