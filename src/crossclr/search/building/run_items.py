"""From a run's data to items and vectors: every split is embedded once, and what people want to see is noted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from crossclr.features import Ragged, Sample, Side, Source, SourceWrapper, Variant, clip_keys
from crossclr.models import TwoBranch, embed_source
from crossclr.search.index.contract import Vectors
from crossclr.search.items.item_table import Item
from crossclr.search.items.media_files import Media, MediaFinder

MODALITIES = ("a", "b")
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Gathered:
    """Items of one modality.

    Args:
        items: without numbers yet (``id`` is -1).
        vectors: (items, dim) unit vectors.
        pooled: (items, input dim) mean input row of each, for connectivity.
    """

    items: list[Item]
    vectors: Vectors
    pooled: npt.NDArray[np.float32]


class Watched(SourceWrapper):
    """A source that notes what passes through it: pooled inputs, media and the splits that samples name."""

    def __init__(self, source: Source, finder: MediaFinder) -> None:
        super().__init__(source)
        self.finder = finder
        self.pooled: dict[str, list[npt.NDArray[np.float32]]] = {"a": [], "b": []}
        self.media: list[Media | None] = []
        self.own_splits: list[str] = []

    def read(self, key: str, rng: np.random.Generator | None = None) -> Sample:
        """One sample, noted."""
        sample = self.source.read(key, rng)
        self.pooled["a"] += [np.asarray(rows, dtype=np.float32).mean(0) for rows in sample.clips]
        self.pooled["b"] += [np.asarray(rows, dtype=np.float32).mean(0) for rows in sample.sentences]
        names = clip_keys(sample.key, len(sample.clips))
        self.own_splits += [sample.split] * len(names)
        self.media += [self.finder.find(sample, number, name) for number, name in enumerate(names)]
        return sample


def gather(
    model: TwoBranch,
    source: Source,
    splits: Sequence[str],
    finder: MediaFinder,
    batch_size: int = 64,
    device: str = "cpu",
    progress: Progress | None = None,
) -> dict[str, Gathered]:
    """Items of both modalities in the splits named; a sample that two splits share belongs to the first.

    Args:
        model: the encoders.
        source: the data.
        splits: which samples.
        finder: finds pictures, videos and sounds.
        batch_size: samples embedded at once.
        device: where to embed.
        progress: called with what is being done, how much is done and how much there is.
    """
    parts: dict[str, list[Gathered]] = {"a": [], "b": []}
    seen: set[str] = set()
    for split in splits:
        watched = _WithoutSeen(source, finder, seen)
        if not watched.keys(split):
            continue

        def report(done: int, total: int, split: str = split) -> None:
            if progress is not None:
                progress(f"embedding {split}", done, total)

        embedded = embed_source(model, watched, split, batch_size, device, report)
        seen.update(watched.keys(split))
        video_of = np.repeat(np.arange(len(embedded.clip_counts)), embedded.clip_counts.numpy())  # (clips,)
        groups = [embedded.groups[video] if embedded.groups else "" for video in video_of]
        owners = embedded.clip_of.tolist()
        texts = list(embedded.texts) or [""] * len(owners)
        first_text: dict[int, str] = {}
        for owner, text in zip(owners, texts, strict=True):
            first_text.setdefault(owner, text)
        a = [
            _item("a", key, first_text.get(row, ""), watched.own_splits[row] or split, groups[row], watched.media[row])
            for row, key in enumerate(embedded.clip_keys)
        ]
        number: dict[int, int] = {}
        b = []
        for owner, text in zip(owners, texts, strict=True):
            number[owner] = number.get(owner, 0) + 1
            sentence = _item("b", a[owner].key, text, a[owner].split, groups[owner], None)
            b.append(replace(sentence, name=f"{sentence.name}#{number[owner]}") if number[owner] > 1 else sentence)
        for modality, items, vectors in (("a", a, embedded.gallery_a), ("b", b, embedded.clip_b)):
            found = Gathered(items, unit(vectors.numpy()), np.stack(watched.pooled[modality]))
            parts[modality].append(_with_variants(found, source, model, modality, batch_size, device))
    if not parts["a"]:
        raise ValueError(f"the splits {', '.join(splits)} have no samples to index")
    return {modality: _joined(found) for modality, found in parts.items()}


class _WithoutSeen(Watched):
    def __init__(self, source: Source, finder: MediaFinder, seen: set[str]) -> None:
        super().__init__(source, finder)
        self._seen = frozenset(seen)

    def keys(self, split: str) -> Sequence[str]:
        return [key for key in self.source.keys(split) if key not in self._seen]


def unit(vectors: npt.NDArray[np.float32]) -> Vectors:
    """Rows of length one; a row of zeros stays.

    Example:
        >>> unit(np.array([[0.0, 4.0], [0.0, 0.0]], dtype=np.float32)).tolist()
        [[0.0, 1.0], [0.0, 0.0]]
    """
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.ascontiguousarray(vectors / np.maximum(length, 1e-12), dtype=np.float32)


def _item(modality: str, key: str, text: str, split: str, group: str, media: Media | None) -> Item:
    item = Item(-1, f"{modality}/{key}", modality, key, text, split, group)
    if media is None:
        return item
    return replace(item, media=media.kind, file=media.file, start=media.start, stop=media.stop)


def _with_variants(
    found: Gathered, source: Source, model: TwoBranch, modality: str, batch_size: int, device: str
) -> Gathered:
    """Every form of each item as an item of its own, such as an emoji as each vendor draws it."""
    forms = [source.variants(item.key, MODALITIES.index(modality)) for item in found.items]
    if not any(forms):
        return found
    items, vectors, pooled = [], [], []
    for number, variants in enumerate(zip(*forms, strict=True)):
        items += [_shown(item, variant) for item, variant in zip(found.items, variants, strict=True)]
        rows = [variant.rows for variant in variants]
        pooled.append(np.stack([part.mean(0) for part in rows]))
        vectors.append(found.vectors if number == 0 else _encode(model, modality, rows, batch_size, device))
    return Gathered(items, np.concatenate(vectors), np.concatenate(pooled))


def _shown(item: Item, variant: Variant) -> Item:
    name = f"{item.name}@{variant.name}" if variant.name else item.name
    return replace(item, name=name, variant=variant.name, media="image", file=variant.image)


def _encode(
    model: TwoBranch, modality: str, rows: Sequence[npt.NDArray[np.float32]], batch_size: int, device: str
) -> Vectors:
    """Embed single feature rows with one branch."""
    encode, name = (model.encode_a, "clip_emb") if modality == "a" else (model.encode_b, "sent_emb")
    model.eval().to(device)
    parts = []
    with torch.inference_mode():
        for start in range(0, len(rows), batch_size):
            block = [torch.tensor(part) for part in rows[start : start + batch_size]]
            parts.append(encode(Side(Ragged.from_list(block)).to(torch.device(device)))[name].float().cpu())
        found = torch.cat(parts)
        if modality == "a" and model.anchors is not None:
            found = model.anchors.cpu()(found)
    return unit(found.numpy())


def _joined(parts: Sequence[Gathered]) -> Gathered:
    return Gathered(
        [item for part in parts for item in part.items],
        np.concatenate([part.vectors for part in parts]),
        np.concatenate([part.pooled for part in parts]),
    )
