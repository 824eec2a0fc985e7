"""Token features of a whole caption file, in COOT's layout or as arrays."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from crossclr.experts.contract import LongTexts
from crossclr.experts.networks.tokens import TokenEncoder
from crossclr.storage import new_file, new_folder, write_json
from crossclr.storage.json_yaml import read_json_object
from crossclr.storage.read_error import ReadError

VIDEOS_AT_ONCE = 256  # bounds the memory; a sentence that repeats within a block is encoded once
TEXTS_AT_ONCE = 4096


def write_token_features_coot(
    meta_json: Path | str, out_h5: Path | str, encoder: TokenEncoder | None = None, *, show_progress: bool = True
) -> LongTexts:
    """Write the text features of a COOT meta file in COOT's layout.

    Each sentence is encoded on its own, and the tokens are joined in order: `out_h5` maps a key to (tokens, 384)
    float16, and `<stem>_sentence_splits.json` next to it maps a key to the number of tokens of each sentence.

    Args:
        meta_json: key -> {segments: [{text, ...}, ...], ...}.
        out_h5: the HDF5 file to write; it appears when it is complete.
        encoder: the network; default: `TokenEncoder()`.
        show_progress: show a progress bar.

    Returns:
        how many sentences were longer than the encoder's limit.

    Raises:
        ValueError: the meta file does not have this form; the message names the key.
    """
    sentences = _coot_sentences(Path(meta_json))
    out_h5 = Path(out_h5)
    encoder = encoder or TokenEncoder()
    splits: dict[str, list[int]] = {}
    keys = list(sentences)
    out_h5.parent.mkdir(parents=True, exist_ok=True)
    with new_file(out_h5) as temporary:
        with h5py.File(temporary, "w") as file, _progress("encoding paragraphs", len(keys), show_progress) as advance:
            for start in range(0, len(keys), VIDEOS_AT_ONCE):
                block = keys[start : start + VIDEOS_AT_ONCE]
                for key, found in zip(block, encoder.paragraphs([sentences[key] for key in block]), strict=True):
                    file.create_dataset(key, data=found.rows.astype(np.float16))
                    splits[key] = found.counts
                advance(len(block))
        write_json(out_h5.with_name(out_h5.stem + "_sentence_splits.json"), splits)
    return encoder.long_texts(list(sentences.values()))


def write_token_features_captions(
    captions_json: Path | str, out_dir: Path | str, encoder: TokenEncoder | None = None, *, show_progress: bool = True
) -> LongTexts:
    """Write the token features of a set with many captions for each clip, joined in one array.

    The folder gets `values.npy` (total tokens, 384) float16, `lengths.npy` (captions,) int64, `owners.json` (the clip
    of each caption) and `texts.json` (the captions), all in the order of the file. A caption that occurs many times is
    encoded once.

    Args:
        captions_json: clip id -> {captions: [...], ...}.
        out_dir: the folder to create; it appears when it is complete.
        encoder: the network; default: `TokenEncoder()`.
        show_progress: show a progress bar.

    Returns:
        how many captions were longer than the encoder's limit.

    Raises:
        FileExistsError: `out_dir` already exists.
        ValueError: the captions file does not have this form; the message names the clip.
    """
    out_dir = Path(out_dir)
    if out_dir.exists():
        raise FileExistsError(f"{out_dir} already exists; remove it or choose another folder")
    captions = _read_captions(Path(captions_json))
    encoder = encoder or TokenEncoder()
    places: dict[str, list[int]] = {}  # distinct text -> numbers of the captions that have it
    for number, text in enumerate(captions.texts):
        places.setdefault(text, []).append(number)
    distinct = list(places)
    counts = dict(zip(distinct, encoder.row_counts(distinct), strict=True))
    lengths = np.array([counts[text] for text in captions.texts], dtype=np.int64)  # (captions,)
    starts = np.cumsum(lengths) - lengths
    with new_folder(out_dir) as folder, _progress("encoding captions", len(distinct), show_progress) as advance:
        values = np.lib.format.open_memmap(
            folder / "values.npy", mode="w+", dtype=np.float16, shape=(int(lengths.sum()), encoder.dim)
        )
        for start in range(0, len(distinct), TEXTS_AT_ONCE):
            block = distinct[start : start + TEXTS_AT_ONCE]
            for text, rows in zip(block, encoder(block), strict=True):
                for caption in places[text]:
                    values[starts[caption] : starts[caption] + len(rows)] = rows
            advance(len(block))
        values.flush()
        np.save(folder / "lengths.npy", lengths)
        write_json(folder / "owners.json", captions.owners)
        write_json(folder / "texts.json", captions.texts)
    return encoder.long_texts([captions.texts])


@dataclass(frozen=True)
class _Captions:
    owners: list[str]
    texts: list[str]


def _read_object(path: Path) -> Mapping[str, Any]:
    content = read_json_object(path)
    if not content:
        raise ReadError(f"{path} must hold a JSON object with at least one entry, found none")
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


def _read_captions(path: Path) -> _Captions:
    found = _Captions([], [])
    for clip, entry in _read_object(path).items():
        captions = entry.get("captions") if isinstance(entry, dict) else None
        if not isinstance(captions, list) or not captions or not all(isinstance(text, str) for text in captions):
            raise ValueError(f"{path}: clip {clip!r} must have 'captions', a list of at least one string")
        found.owners.extend([clip] * len(captions))
        found.texts.extend(captions)
    return found


@contextmanager
def _progress(what: str, total: int, show: bool) -> Iterator[Callable[[int], None]]:
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, disable=not show) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)
