"""Token features of a whole caption file, in COOT's layout or as arrays."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from crossclr.experts.networks.tokens import TokenEncoder
from crossclr.storage import new_file, new_folder, write_json

_VIDEOS_AT_ONCE = 256  # bounds the memory of write_token_features_coot; a repeated sentence is encoded once within it


def write_token_features_coot(
    meta_json: Path | str, out_h5: Path | str, encoder: TokenEncoder | None = None, *, show_progress: bool = True
) -> None:
    """Write text features of a COOT meta file in COOT's layout.

    Each sentence is encoded on its own and the tokens are joined in order: `out_h5` holds key -> (tokens, 384) float16,
    and `<stem>_sentence_splits.json` beside it holds key -> the number of tokens of each sentence.

    Args:
        meta_json: key -> {segments: [{text, ...}, ...], ...}.
        out_h5: the HDF5 file to write; it appears only when it is complete.
        encoder: the network; a `TokenEncoder` with its defaults if None.
        show_progress: draw a progress bar.

    Raises:
        ValueError: the meta file has not this form; the message names the key.
    """
    sentences = _coot_sentences(Path(meta_json))
    out_h5 = Path(out_h5)
    encoder = encoder or TokenEncoder()
    splits: dict[str, list[int]] = {}
    keys = list(sentences)
    out_h5.parent.mkdir(parents=True, exist_ok=True)
    with new_file(out_h5) as temporary:
        with (
            h5py.File(temporary, "w") as file,
            _progress("encoding paragraphs", len(keys), show_progress) as advance,
        ):
            for start in range(0, len(keys), _VIDEOS_AT_ONCE):
                block = keys[start : start + _VIDEOS_AT_ONCE]
                distinct = list(dict.fromkeys(text for key in block for text in sentences[key]))
                rows = {
                    text: features.astype(np.float16)
                    for text, features in zip(distinct, encoder(distinct), strict=True)
                }
                for key in block:
                    parts = [rows[text] for text in sentences[key]]
                    file.create_dataset(key, data=np.concatenate(parts))
                    splits[key] = [len(part) for part in parts]
                advance(len(block))
        write_json(out_h5.with_name(out_h5.stem + "_sentence_splits.json"), splits)


def write_token_features_captions(
    captions_json: Path | str, out_dir: Path | str, encoder: TokenEncoder | None = None, *, show_progress: bool = True
) -> None:
    """Write token features of a set with many captions for each clip, end to end in one flat array.

    The folder gets `values.npy` (total tokens, 384) float16, `lengths.npy` (captions,) int64, `owners.json` (the clip
    id of each caption) and `texts.json` (the captions), all in the order of the file. A caption that occurs many times
    is encoded once.

    Args:
        captions_json: clip id -> {captions: [...], ...}.
        out_dir: the folder to make; it appears only when it is complete.
        encoder: the network; a `TokenEncoder` with its defaults if None.
        show_progress: draw a progress bar.

    Raises:
        FileExistsError: `out_dir` is there already.
        ValueError: the captions file has not this form; the message names the clip.
    """
    out_dir = Path(out_dir)
    if out_dir.exists():
        raise FileExistsError(f"{out_dir} exists already; remove it or choose another folder")
    owners, texts = _captions(Path(captions_json))
    encoder = encoder or TokenEncoder()
    distinct = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    of_caption = np.array([distinct[text] for text in texts])  # (captions,) number of its distinct text
    token_ids = encoder.tokenise(list(distinct))
    lengths = np.array([len(ids) for ids in token_ids], dtype=np.int64)[of_caption]  # (captions,)
    starts = np.cumsum(lengths) - lengths
    by_text = np.argsort(of_caption, kind="stable")  # captions, those of the same text together
    bounds = np.searchsorted(of_caption[by_text], np.arange(len(distinct) + 1))
    with new_folder(out_dir) as folder, _progress("encoding captions", len(distinct), show_progress) as advance:
        values = np.lib.format.open_memmap(
            folder / "values.npy", mode="w+", dtype=np.float16, shape=(int(lengths.sum()), encoder.dim)
        )
        for indices, rows in encoder.encode_batches(token_ids):
            for index, features in zip(indices, rows.astype(np.float16), strict=True):
                for caption in by_text[bounds[index] : bounds[index + 1]]:
                    values[starts[caption] : starts[caption] + len(features)] = features
            advance(len(indices))
        values.flush()
        np.save(folder / "lengths.npy", lengths)
        (folder / "owners.json").write_text(json.dumps(owners), encoding="utf-8")
        (folder / "texts.json").write_text(json.dumps(texts, ensure_ascii=False), encoding="utf-8")


def _read_object(path: Path) -> Mapping[str, Any]:
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or not content:
        raise ValueError(f"{path} must hold a JSON object with at least one entry, found {type(content).__name__}")
    return content


def _coot_sentences(path: Path) -> dict[str, list[str]]:
    sentences = {}
    for key, entry in _read_object(path).items():
        try:
            texts = [segment["text"] for segment in entry["segments"]]
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path}: entry {key!r} must have 'segments', a list of objects with 'text'") from error
        if not texts or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{path}: entry {key!r} needs at least one segment, and each 'text' must be a string")
        sentences[key] = texts
    return sentences


def _captions(path: Path) -> tuple[list[str], list[str]]:
    owners: list[str] = []
    texts: list[str] = []
    for clip, entry in _read_object(path).items():
        captions = entry.get("captions") if isinstance(entry, dict) else None
        if not isinstance(captions, list) or not captions or not all(isinstance(text, str) for text in captions):
            raise ValueError(f"{path}: clip {clip!r} must have 'captions', a list of at least one string")
        owners += [clip] * len(captions)
        texts += captions
    return owners, texts


@contextmanager
def _progress(what: str, total: int, show: bool) -> Iterator[Any]:
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, disable=not show) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)
