"""Token features of a whole caption file, in COOT's layout or as arrays."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from crossclr.errors import ReadError
from crossclr.extract.caption_files import read_captions
from crossclr.extract.contract import LongTexts, TokenExpert
from crossclr.extract.tokens import TokenEncoder
from crossclr.extras import OptionalModule
from crossclr.progress_bar import show_progress as progress_of
from crossclr.storage import new_file, new_folder, write_json

if TYPE_CHECKING:
    import h5py
else:
    h5py = OptionalModule("h5py", "experts", "HDF5")

VIDEOS_AT_ONCE = 256  # bounds the memory; a sentence that repeats within a block is encoded once
TEXTS_AT_ONCE = 4096


def write_token_features_coot(
    meta_json: Path | str,
    out_h5: Path | str,
    encoder: TokenExpert | None = None,
    *,
    show_progress: bool = True,
) -> LongTexts | None:
    """Write the text features of a COOT meta file in COOT's layout.

    Each sentence is encoded on its own, and the tokens are joined in order: `out_h5` maps a key to (tokens, 384)
    float16, and `<stem>_sentence_splits.json` next to it maps a key to the number of tokens of each sentence.

    Args:
        meta_json: key -> {segments: [{text, ...}, ...], ...}.
        out_h5: the HDF5 file to write; it appears when it is complete.
        encoder: the network; default: `TokenEncoder()`. A `ParagraphEncoder` encodes each paragraph as a whole.
        show_progress: show a progress bar.

    Returns:
        how many sentences were longer than the encoder's limit; None if it has none.

    Raises:
        FileExistsError: `out_h5` already exists.
        ValueError: the meta file does not have this form; the message names the key.
    """
    out_h5 = Path(out_h5)
    if out_h5.exists():
        raise FileExistsError(f"{out_h5} already exists; remove it or choose another file")
    sentences = _sentences(Path(meta_json))
    encoder = encoder or TokenEncoder()
    splits: dict[str, list[int]] = {}
    keys = list(sentences)
    out_h5.parent.mkdir(parents=True, exist_ok=True)
    with new_file(out_h5) as temporary:
        with h5py.File(temporary, "w") as file, progress_of("encoding paragraphs", show_progress) as report:
            for start in range(0, len(keys), VIDEOS_AT_ONCE):
                block = keys[start : start + VIDEOS_AT_ONCE]
                for key, paragraph in zip(block, encoder.paragraphs([sentences[key] for key in block]), strict=True):
                    file.create_dataset(key, data=paragraph.rows.astype(np.float16))
                    splits[key] = paragraph.counts
                report(start + len(block), len(keys))
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
    captions = _sentences(Path(captions_json))
    owners = [clip for clip, sentences in captions.items() for _ in sentences]
    texts = [text for sentences in captions.values() for text in sentences]
    encoder = encoder or TokenEncoder()
    places: dict[str, list[int]] = {}  # distinct text -> numbers of the captions that have it
    for number, text in enumerate(texts):
        places.setdefault(text, []).append(number)
    distinct = list(places)
    counts = dict(zip(distinct, encoder.row_counts(distinct), strict=True))
    lengths = np.array([counts[text] for text in texts], dtype=np.int64)  # (captions,)
    starts = np.cumsum(lengths) - lengths
    with new_folder(out_dir) as folder, progress_of("encoding captions", show_progress) as report:
        values = np.lib.format.open_memmap(
            folder / "values.npy", mode="w+", dtype=np.float16, shape=(int(lengths.sum()), encoder.dim)
        )
        for start in range(0, len(distinct), TEXTS_AT_ONCE):
            block = distinct[start : start + TEXTS_AT_ONCE]
            for text, rows in zip(block, encoder(block), strict=True):
                for caption in places[text]:
                    values[starts[caption] : starts[caption] + len(rows)] = rows
            report(start + len(block), len(distinct))
        values.flush()
        np.save(folder / "lengths.npy", lengths)
        write_json(folder / "owners.json", owners)
        write_json(folder / "texts.json", texts)
    return encoder.long_texts([texts])


def _sentences(path: Path) -> dict[str, list[str]]:
    """The sentences of each entry of a meta file or a captions file."""
    sentences = {entry.key: [segment.text for segment in entry.segments] for entry in read_captions(path)}
    if not sentences:
        raise ReadError(f"{path} must hold a JSON object with at least one entry, found none")
    empty = next((key for key, texts in sentences.items() if not texts), None)
    if empty is not None:
        raise ReadError(f"{path}: entry {empty!r} needs at least one segment with a text, or at least one caption")
    return sentences
