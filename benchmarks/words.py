"""Words next to vectors in a search: quoted words that find their item, and what they do to sentences.

    python -m benchmarks.words DATA/photos

DATA/photos holds `photos.npz` (`appearance`, `keys`), `captions.json` (five sentences of each key) and `splits.json`.
The default is fitted on the training photos and the means of their sentences. An index holds the test photos. Sentences
as queries are measured three times: without words, with another sentence of each photo as its caption, and with a
caption for all photos except the one that the query describes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.protocol_sets import text_rows
from crossclr import JointEmbedding
from crossclr.evaluation.words import WORD, content_words
from crossclr.search.faiss_index import FaissIndex
from crossclr.search.index import FORMAT, ITEMS, new_generation, unit, write_index
from crossclr.search.items import Item, Items
from crossclr.search.searcher import Searcher

TRIALS = 200


class StoredQueries:
    """Vectors of sentences that are known before."""

    def __init__(self, vectors: dict[str, npt.NDArray[np.float32]]) -> None:
        self.vectors = vectors

    def warm_up(self) -> None:
        """Nothing to load."""

    def encode(self, texts: Sequence[str], modality: str | None = None) -> npt.NDArray[np.float32]:
        """(texts, dim) unit vectors."""
        return np.stack([self.vectors[text] for text in texts])


def make_searcher(
    folder: Path, keys: Sequence[str], vectors: npt.NDArray[np.float32], captions: Sequence[str], queries: StoredQueries
) -> Searcher:
    """An index of photos with captions and file names."""
    index = FaissIndex(vectors.shape[1])
    index.add(np.arange(len(keys)), vectors)
    meta: dict[str, Any] = {
        "format": FORMAT, "name": "photos", "about": "", "weights": "", "dim": vectors.shape[1], "backend": "faiss",
        "text_modality": "text", "text_modalities": ["text"], "validation": None, "media_roots": ["/photos"],
        "hub_channels": False, "modalities": {"image": {"label": "images", "text": False}},
    }  # fmt: skip
    with new_generation(folder) as generation:
        items = Items(generation / ITEMS, writable=True)
        items.put(
            Item(n, f"image/{key}", "image", key, caption, "test", media="image", file=f"/photos/DSC{key}.jpg")
            for n, (key, caption) in enumerate(zip(keys, captions, strict=True))
        )
        write_index(generation, items, {"image": index}, meta)
    return Searcher(folder / generation.name if generation.exists() else next(folder.glob("generation-*")), queries)


def quoted_words(searcher: Searcher, captions: Sequence[str], keys: Sequence[str], quotes: str) -> dict[str, float]:
    """The share of trials in which a word of a caption, or a file name, puts its item (or one with the word) first."""
    rng = np.random.default_rng(0)
    counts = Counter(word for caption in captions for word in content_words(caption))
    first = own = names = unique = 0
    for _ in range(TRIALS):
        place = int(rng.integers(len(keys)))
        word = str(rng.choice(sorted(content_words(captions[place]))))
        hits = searcher.search(text=f"{quotes}{word}{quotes}", find="image", top=10)
        first += word in WORD.findall(hits[0].item.text.lower())
        if counts[word] == 1:
            unique += 1
            own += hits[0].item.key == keys[place]
        names += searcher.search(text=f"DSC{keys[place]}.jpg", find="image", top=10)[0].item.key == keys[place]
    return {
        "word: an item that has it is first": first / TRIALS,
        f"word of one caption alone ({unique} trials): that item is first": own / max(1, unique),
        "file name: that item is first": names / TRIALS,
    }


def recall(searcher: Searcher, sentences: Sequence[str], keys: Sequence[str]) -> float:
    """R@10 of sentences as queries, in percent."""
    ranked = (searcher.search(text=text, find="image", top=10) for text in sentences)
    hits = [key in {hit.item.key for hit in found} for key, found in zip(keys, ranked, strict=True)]
    return 100 * float(np.mean(hits))


def run(data: Path) -> dict[str, Any]:
    """All measurements."""
    stored, splits = np.load(data / "photos.npz"), json.loads((data / "splits.json").read_text())
    captions = json.loads((data / "captions.json").read_text())
    place = {str(key): number for number, key in enumerate(stored["keys"])}
    rows = stored["appearance"].astype(np.float32)
    train, test = splits["train"], splits["test"]
    about = text_rows({key: captions[key] for key in train})
    space = JointEmbedding().fit({"image": rows[[place[key] for key in train]], "text": about}).space_
    photos = unit(np.asarray(space.encode_items("image", torch.from_numpy(rows[[place[key] for key in test]]))))
    queries = [captions[key][1] for key in test]
    words = sorted({f"{q}{word}{q}" for key in test for word in content_words(captions[key][0]) for q in ("", '"')})
    texts = list(dict.fromkeys([*queries, *words, *(f"DSC{key}.jpg" for key in test)]))
    sentence_rows = text_rows({str(number): [text] for number, text in enumerate(texts)})
    vectors = unit(np.asarray(space.encode_queries("text", torch.from_numpy(sentence_rows))))
    known = StoredQueries(dict(zip(texts, vectors, strict=True)))
    first = [captions[key][0] for key in test]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        without = make_searcher(folder / "without", test, photos, [""] * len(test), known)
        searcher = make_searcher(folder / "with", test, photos, first, known)
        results: dict[str, Any] = {"sentences, without words: R@10": recall(without, queries, test)}
        results["sentences, each photo has another caption: R@10"] = recall(searcher, queries, test)
        half = len(test) // 2
        parts = []
        for number, own in enumerate((slice(0, half), slice(half, None))):
            others = [
                caption if not own.start <= n < (own.stop or len(test)) else "" for n, caption in enumerate(first)
            ]
            other = make_searcher(folder / f"half{number}", test, photos, others, known)
            parts.append((recall(other, queries[own], test[own]), recall(without, queries[own], test[own])))
        results["sentences, only other photos have captions: R@10"] = float(np.mean([pair[0] for pair in parts]))
        for quotes in ("", '"'):
            kind = "in quotation marks" if quotes else "as typed"
            results[kind] = quoted_words(searcher, first, test, quotes)
    return results


def main() -> None:
    """Print the results as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    print(json.dumps(run(parser.parse_args().data), indent=2))


if __name__ == "__main__":
    main()
