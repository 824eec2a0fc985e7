"""Embeddings that other tools wrote, as a `Dataset`: clip-retrieval, `datasets`, FiftyOne, JSON lines of embeddings."""

import base64
import io
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from crossclr.data.dataset import Dataset
from crossclr.errors import DataError
from crossclr.storage.reading import parse_json, read_json_object, reading

MAX_ARRAY = 64 << 20  # bytes of one compressed vector of FiftyOne


def from_clip_retrieval(folder: str | Path, text: str = "caption", **options: Any) -> Dataset:
    """A folder of LAION's clip-retrieval: ``img_emb/img_emb_0.npy``, ``text_emb/...`` and ``metadata/...parquet``.

    Args:
        folder: the output folder of ``clip-retrieval inference``.
        text: column of the metadata with the sentences.
        options: of `crossclr.data.arrays.from_arrays`, such as ``splits``.
    """
    folder = Path(folder)
    arrays: dict[str, Any] = {}
    for name, stem in (("image", "img_emb"), ("text", "text_emb")):
        paths = sorted((folder / stem).glob(f"{stem}_*.npy"), key=_number)
        if not paths:
            raise DataError(f"{folder} has no {stem}/{stem}_0.npy; run clip-retrieval inference with images and texts")
        arrays[name] = np.concatenate([_load(path) for path in paths])
    tables = [pq.read_table(path) for path in sorted((folder / "metadata").glob("metadata_*.parquet"), key=_number)]
    columns = pa.concat_tables(tables, promote_options="default") if tables else pa.table({})
    texts = {"text": columns[text].to_pylist()} if text in columns.column_names else None
    keys = columns["key"].to_pylist() if "key" in columns.column_names else None
    return Dataset.from_arrays(
        arrays, texts=texts, ids=None if keys is None else {"image": keys, "text": keys}, **options
    )


def from_hugging_face(
    data: Any, modalities: Mapping[str, str], *, texts: str | None = None, key: str | None = None, **options: Any
) -> Dataset:
    """A data set of the library `datasets` with columns of embeddings.

    Args:
        data: a ``datasets.Dataset``, or a mapping from splits to such, as ``load_dataset`` returns it.
        modalities: the column of each modality, such as ``{"image": "clip_embedding", "text": "text_embedding"}``.
        texts: column with the sentences of the modality ``text``.
        key: column with the keys; default: split and row number.
        options: of `crossclr.data.arrays.from_arrays`.
    """
    parts = dict(data) if isinstance(data, Mapping) else {str(getattr(data, "split", None) or "train"): data}
    for name, part in parts.items():
        if missing := {*modalities.values(), *filter(None, (texts, key))} - set(part.column_names):
            raise DataError(f"split {name!r} has no column {min(missing)!r}; it has {', '.join(part.column_names)}")
    keys = {
        split: [str(value) for value in part[key]] if key else [f"{split}/{row}" for row in range(len(part))]
        for split, part in parts.items()
    }
    ids = [value for values in keys.values() for value in values]
    rows = {
        name: np.concatenate([np.asarray(part.with_format("numpy")[column][:], np.float32) for part in parts.values()])
        for name, column in modalities.items()
    }
    sentences = None if texts is None else {"text": [value for part in parts.values() for value in part[texts]]}
    return Dataset.from_arrays(rows, ids=dict.fromkeys(rows, ids), splits=keys, texts=sentences, **options)


def from_fiftyone(folder: str | Path, modalities: Mapping[str, str], **options: Any) -> Dataset:
    """An export of FiftyOne (``FiftyOneDataset``); its tags ``train``, ``val`` and ``test`` are splits.

    Args:
        folder: the folder of the export, with ``samples.json``.
        modalities: the field with the embedding of each modality; samples may lack them.
        options: of `crossclr.data.arrays.from_arrays`.
    """
    path = Path(folder) / "samples.json"
    samples = read_json_object(path, "samples")["samples"]
    keys = [Path(sample["filepath"]).stem for sample in samples]
    if len(set(keys)) < len(keys):  # equal names in several folders
        keys = [sample["filepath"] for sample in samples]
    rows = {name: [_vector(sample.get(field), path) for sample in samples] for name, field in modalities.items()}
    splits: dict[str, list[str]] = {}
    for key, sample in zip(keys, samples, strict=True):
        split = next((tag for tag in sample.get("tags", ()) if tag in ("train", "val", "test")), "train")
        splits.setdefault(split, []).append(key)
    return Dataset.from_arrays(rows, ids=dict.fromkeys(rows, keys), splits=splits, **{"unpaired": "keep", **options})


def from_json_lines(files: Mapping[str, str | Path], **options: Any) -> Dataset:
    """Embeddings as JSON lines, a file for each modality, as batches of OpenAI's API return them.

    A line has the embedding under ``embedding`` or where the API puts it (``response.body.data``), its key under
    ``custom_id``, ``id`` or ``key``, and perhaps a sentence under ``text`` or ``input``.

    Args:
        files: the file of each modality.
        options: of `crossclr.data.arrays.from_arrays`.
    """
    rows: dict[str, Any] = {}
    ids: dict[str, Sequence[str]] = {}
    texts: dict[str, list[str]] = {}
    for name, place in files.items():
        lines = Path(place).read_text(encoding="utf-8").splitlines()
        entries = [_entry(line, f"{place} line {number}") for number, line in enumerate(lines, 1) if line.strip()]
        ids[name], vectors = [entry[0] for entry in entries], [entry[1] for entry in entries]
        if len({len(vector) for vector in vectors}) > 1:
            raise DataError(f"{place}: the embeddings have different lengths; embed all with one model")
        rows[name] = np.array(vectors, dtype=np.float32)
        if all(entry[2] for entry in entries):
            texts[name] = [str(entry[2]) for entry in entries]
    return Dataset.from_arrays(rows, ids=ids, texts=texts or None, **options)


def _entry(line: str, origin: str) -> tuple[str, list[float], str | None]:
    """Key, embedding and sentence of a line."""
    found = parse_json(line, origin, DataError)
    with reading(origin, "line with an embedding", advice="give custom_id and embedding", kind=DataError):
        body = found.get("response", {}).get("body", {}) if "response" in found else {}
        vector = found["embedding"] if "embedding" in found else body["data"][0]["embedding"]
        key = next(str(found[name]) for name in ("custom_id", "id", "key") if name in found)
        return key, [float(value) for value in vector], found.get("text", found.get("input"))


def _vector(value: Any, path: Path) -> npt.NDArray[np.float32] | None:
    """A vector of FiftyOne: a list, or a compressed array in base64."""
    if value is None or isinstance(value, list):
        return None if value is None else np.asarray(value, dtype=np.float32)
    with reading(path, "vector of FiftyOne", kind=DataError):
        inner = value["$binary"] if isinstance(value, dict) else value
        text = inner["base64"] if isinstance(inner, dict) else inner
        content = zlib.decompressobj().decompress(base64.b64decode(text), MAX_ARRAY)
        return np.asarray(np.load(io.BytesIO(content), allow_pickle=False), dtype=np.float32)


def _load(path: Path) -> npt.NDArray[Any]:
    with reading(path, "array", kind=DataError):
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


def _number(path: Path) -> int:
    return int(digits) if (digits := path.stem.rpartition("_")[2]).isdigit() else 0
