"""The encoders on padded input, the form that ONNX can express. The weights are shared with the model.

`crossclr export`: all encoders as ONNX, checked against PyTorch and in a search with onnxruntime.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from crossclr.data import Dataset
from crossclr.errors import CrossCLRError
from crossclr.extras import requires_extra
from crossclr.models import JointModel, SearchSpace
from crossclr.models.encoders import MLPEncoder, TransformerEncoder
from crossclr.models.layers import AttentionPool, MaxPool, TransformerLayer
from crossclr.models.norm import CootNorm
from crossclr.search.onnx_queries import QUERY_ENCODER, MiniLMRows, OnnxEncoder
from crossclr.search.run_items import encode_rows
from crossclr.storage import new_folder, write_json
from crossclr.training import Run


class PaddedEncoder(nn.Module):
    """One encoder of a model, from padded rows to unit vectors.

    Example:
        >>> from crossclr.models import ModelConfig, build_model
        >>> model = build_model(ModelConfig(dim=16), dims={"video": 3, "text": 5}, two_level=False).eval()
        >>> PaddedEncoder(model, "text")(torch.ones(2, 7, 5), torch.tensor([7, 1])).shape
        torch.Size([2, 16])
    """

    def __init__(self, model: JointModel, modality: str) -> None:
        super().__init__()
        branch = model.encoders[modality]
        self.local, self.head = branch.get_submodule("local"), branch.get_submodule("clip_head")

    def forward(self, rows: Tensor, lengths: Tensor) -> Tensor:
        """(batch, dim) unit vectors from ``rows`` (batch, longest, channels) and ``lengths`` (batch,)."""
        inside = torch.arange(rows.shape[1], device=rows.device) < lengths.unsqueeze(1)  # (batch, longest)
        rows = torch.where(inside.unsqueeze(2), rows, 0.0)  # the values of the padding must not matter
        if isinstance(self.local, TransformerEncoder):
            pooled = _transformer(self.local, rows, inside)
        elif isinstance(self.local, MLPEncoder):
            pooled = _mlp(self.local, rows, inside)
        else:
            raise TypeError(f"cannot export an encoder of type {type(self.local).__name__}")
        embedded: Tensor = self.head(pooled)
        return embedded / embedded.square().sum(1, keepdim=True).sqrt().clamp_min(1e-12)


class PaddedSpace(nn.Module):
    """A search space for one modality, from padded rows to unit vectors.

    Args:
        space: the search space.
        modality: its name.
        as_items: whether the vectors are search targets instead of queries.

    Example:
        >>> from crossclr.models.closed_form import ClosedForm
        >>> rows = torch.randn(50, 5, generator=torch.Generator().manual_seed(0))
        >>> space = SearchSpace({"video": 5, "text": 4}, ClosedForm().fit({"video": rows, "text": rows[:, :4]}))
        >>> found = PaddedSpace(space, "video")(rows.unsqueeze(1), torch.ones(50, dtype=torch.int64))
        >>> bool((found - space.encode_queries("video", rows)).abs().max() < 1e-6)
        True
    """

    def __init__(self, space: SearchSpace, modality: str, as_items: bool = False) -> None:
        super().__init__()
        self.modality, self.as_items, self.hubs = modality, as_items, space.hubs
        self.parts, self.shares = nn.ModuleList(space.parts_of(modality)), space.shares_of(modality)
        self.encoders = nn.ModuleList(PaddedEncoder(encoder.model, modality) for encoder in space.trained)

    def forward(self, rows: Tensor, lengths: Tensor) -> Tensor:
        """(batch, dim) unit vectors from ``rows`` (batch, longest, channels) and ``lengths`` (batch,)."""
        inside = torch.arange(rows.shape[1], device=rows.device) < lengths.unsqueeze(1)
        mean = _mean(torch.where(inside.unsqueeze(2), rows, 0.0), inside)
        vectors = [part(mean) for part in self.parts] + [encoder(rows, lengths) for encoder in self.encoders]
        plain = torch.cat([share**0.5 * part for share, part in zip(self.shares, vectors, strict=True)], dim=1)
        if self.hubs is None:
            return plain
        return self.hubs.corrected(self.modality, plain) if self.as_items else self.hubs.queries(plain)


def padded(model: JointModel | SearchSpace, modality: str) -> nn.Module:
    """The encoder of queries on padded input."""
    wanted = PaddedSpace(model, modality) if isinstance(model, SearchSpace) else PaddedEncoder(model, modality)
    return wanted.eval()


def _transformer(encoder: TransformerEncoder, rows: Tensor, inside: Tensor) -> Tensor:
    x = functional.gelu(encoder.projection(_norm(encoder.input_norm, rows)))  # (batch, longest, dim)
    x = x + _positions(x.shape[1], x.shape[2], x)
    hidden = torch.where(inside, 0.0, -torch.inf)[:, None, None, :]  # is added to the attention scores
    for layer in encoder.layers:
        x = _layer(layer, x, hidden)  # type: ignore[arg-type]
    outside = ~inside.unsqueeze(2)
    if isinstance(encoder.pooler, AttentionPool):
        weights = _scores(encoder.pooler, x).masked_fill(outside, -torch.inf).softmax(1)
        return (weights * x).sum(1)
    if isinstance(encoder.pooler, MaxPool):
        return _max(x, inside)
    return _mean(x, inside)


def _mlp(encoder: MLPEncoder, rows: Tensor, inside: Tensor) -> Tensor:
    parts = []
    if encoder.sequence_pooling in ("mean", "mean_max"):
        parts.append(_mean(rows, inside))
    if encoder.sequence_pooling in ("max", "mean_max"):
        parts.append(_max(rows, inside))
    x = encoder.projection(_norm(encoder.input_norm, torch.cat(parts, dim=1)))
    for block in encoder.blocks:
        x = x + block.contract(functional.gelu(block.expand(block.norm(x))))  # type: ignore[operator]
    out: Tensor = x
    return out


def _layer(layer: TransformerLayer, x: Tensor, hidden: Tensor) -> Tensor:
    attention = layer.attention
    batch, longest, dim = x.shape
    heads = attention.heads
    query, key, value = (
        part.reshape(batch, longest, heads, dim // heads).transpose(1, 2)
        for part in attention.projection(x).chunk(3, dim=2)
    )  # (batch, heads, longest, dim / heads)
    scores = query @ key.transpose(2, 3) / (dim // heads) ** 0.5 + hidden
    mixed = (scores.softmax(3) @ value).transpose(1, 2).reshape(batch, longest, dim)
    y = _norm(layer.attention_norm, x + attention.output(mixed))
    return _norm(layer.output_norm, y + layer.contract(functional.gelu(layer.expand(y))))


def _norm(norm: nn.Module, x: Tensor) -> Tensor:
    if not isinstance(norm, CootNorm):
        out: Tensor = norm(x)
        return out
    centred = x - x.mean(-1, keepdim=True)
    deviation = (centred.square().sum(-1, keepdim=True) / (x.shape[-1] - 1)).sqrt()
    return centred / (deviation + norm.eps) * norm.gain + norm.bias


def _positions(length: int, dim: int, like: Tensor) -> Tensor:
    """(length, dim) the numbers of the model's table, for any length."""
    channel = torch.arange(dim, device=like.device)
    place = torch.arange(length, device=like.device, dtype=like.dtype).unsqueeze(1)
    angle = place / 10000 ** (2 * channel.to(like.dtype) / dim)
    return torch.where(channel % 2 == 0, angle.sin(), angle.cos())


def _scores(pooler: AttentionPool, x: Tensor) -> Tensor:
    """(batch, longest, dim) a score for each channel of each row."""
    parts = []
    for head in range(pooler.expand_weight.shape[0]):
        hidden = functional.gelu(functional.linear(x, pooler.expand_weight[head], pooler.expand_bias[head]))
        parts.append(functional.linear(hidden, pooler.score_weight[head], pooler.score_bias[head]))
    return torch.cat(parts, dim=2)


def _mean(x: Tensor, inside: Tensor) -> Tensor:
    weights = inside.unsqueeze(2).to(x.dtype)
    return (x * weights).sum(1) / weights.sum(1)


def _max(x: Tensor, inside: Tensor) -> Tensor:
    return x.masked_fill(~inside.unsqueeze(2), -torch.inf).amax(1)


EXPORT = "export.json"
TOLERANCE = 1e-4
CHECKED = 64  # samples to check the exported encoders with
Rows = npt.NDArray[np.float32]


class ExportError(CrossCLRError, ValueError):
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
    if model.experts:
        raise ExportError(f"{run.path}: encoders whose experts have weights cannot be exported; search with PyTorch")
    data = run.open_data()
    with new_folder(out, replace=True) as partial:
        report: dict[str, Any] = {"name": run.config.name, "encoders": {}, "items": {}}
        splits = run.config.splits
        rows = _samples(data.where(split=splits.test or splits.validate_ or splits.train))
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


def _samples(data: Dataset) -> dict[str, list[Rows]]:
    """By modality, feature rows of some clips, of the first sequence of each."""
    found: dict[str, list[Rows]] = {name: [] for name in data.modalities}
    for place in range(min(CHECKED, len(data))):
        for name, content in data[place].modalities.items():
            found[name] += [
                np.asarray(content.clips[content.clip_of.index(clip)]) for clip in sorted(set(content.clip_of))
            ]
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
    found = np.argsort(-(ours[1] @ ours[0].T), axis=1, kind="stable")[:, :top]
    expected = theirs[1] @ theirs[0].T
    # Ties may be ordered differently, so the scores of the results are compared.
    gap = float(np.abs(np.take_along_axis(expected, found, 1) - -np.sort(-expected, axis=1)[:, :top]).max())
    if gap > 2 * TOLERANCE:
        raise ExportError(f"a search with onnxruntime returns other clips than PyTorch (scores differ by {gap:.2g})")
    return {"queries": len(rows[queries]), "gallery": len(rows[items]), "largest_score_difference": gap}
