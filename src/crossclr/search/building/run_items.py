"""Items and vectors from a run's data: each split is embedded once, and what people want to see is recorded."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from crossclr.features import Sample, Source, SourceWrapper, Variant, clip_keys
from crossclr.models import Embeddings, SearchSpace, embed_source
from crossclr.models import Vectors as Embedded
from crossclr.search.encoders.feature_rows import encode_rows
from crossclr.search.index.contract import Vectors, unit
from crossclr.search.items.item_table import Item
from crossclr.search.items.media_files import Media, MediaFinder

MODALITIES = ("a", "b")
Progress = Callable[[str, int, int], None]  # the task, the steps done, all steps


@dataclass(frozen=True)
class EmbeddedItems:
    """The items of one modality, without numbers (``id`` is -1)."""

    items: list[Item]
    vectors: Vectors  # (items, dim) unit vectors
    pooled: npt.NDArray[np.float32]  # (items, input channels) mean input rows, for connectivity


class RecordingSource(SourceWrapper):
    """A source that records pooled inputs, media and splits of the samples that are read, and omits keys."""

    def __init__(self, source: Source, finder: MediaFinder, skip: Set[str]) -> None:
        super().__init__(source)
        self.finder, self.skip = finder, skip
        self.pooled: dict[str, list[npt.NDArray[np.float32]]] = {"a": [], "b": []}
        self.media: list[Media | None] = []
        self.own_splits: list[str] = []

    def keys(self, split: str) -> Sequence[str]:
        """Keys of a split without the omitted ones."""
        return [key for key in self.source.keys(split) if key not in self.skip]

    def read(self, key: str, rng: np.random.Generator | None = None) -> Sample:
        """One sample, recorded."""
        sample = self.source.read(key, rng)
        for letter, name in zip(MODALITIES, self.modalities, strict=True):
            clips = sample.modalities[name].clips if name in sample.modalities else ()
            self.pooled[letter] += [np.asarray(rows, dtype=np.float32).mean(0) for rows in clips]
        names = clip_keys(sample.key, sample.clip_count)
        self.own_splits += [sample.split] * len(names)
        self.media += [self.finder.find(sample, number, name) for number, name in enumerate(names)]
        return sample


def embed_items(
    model: SearchSpace,
    source: Source,
    splits: Sequence[str],
    finder: MediaFinder,
    batch_size: int = 64,
    device: str = "cpu",
    progress: Progress | None = None,
) -> dict[str, EmbeddedItems]:
    """Items of both modalities with their media; a sample of several splits belongs to the first."""
    parts: dict[str, list[EmbeddedItems]] = {"a": [], "b": []}
    seen: set[str] = set()
    for split in splits:
        recorded = RecordingSource(source, finder, frozenset(seen))
        if not recorded.keys(split):
            continue

        def report(done: int, total: int, split: str = split) -> None:
            if progress is not None:
                progress(f"embedding {split}", done, total)

        embedded = embed_source(model, recorded, split, batch_size, device, report)
        seen.update(recorded.keys(split))
        clips = _clip_items(embedded, recorded, split)
        first, second = embedded.pair()
        both = (("a", clips, first.gallery), ("b", list(_sentence_items(second, clips)), second.gallery))
        for modality, items, vectors in both:
            found = EmbeddedItems(items, unit(vectors.numpy()), np.stack(recorded.pooled[modality]))
            parts[modality].append(_with_variants(found, source, model, modality, device))
    if not parts["a"]:
        raise ValueError(f"there is nothing to index: the splits {', '.join(splits)} have no samples")
    return {modality: _joined(found) for modality, found in parts.items()}


def _clip_items(embedded: Embeddings, recorded: RecordingSource, split: str) -> list[Item]:
    video_of = np.repeat(np.arange(len(embedded.clip_counts)), embedded.clip_counts.numpy())  # (clips,)
    texts: dict[int, str] = {}
    _, sentences = embedded.pair()
    for clip, text in zip(sentences.clip_of.tolist(), sentences.texts, strict=False):
        texts.setdefault(clip, text)
    items = []
    for clip, key in enumerate(embedded.clip_keys):
        group = embedded.groups[video_of[clip]] if embedded.groups else ""
        item = Item(-1, f"a/{key}", "a", key, texts.get(clip, ""), recorded.own_splits[clip] or split, group)
        media = recorded.media[clip]
        if media is not None:
            item = replace(item, media=media.kind, file=media.file, start=media.start, stop=media.stop)
        items.append(item)
    return items


def _sentence_items(sentences: Embedded, clips: Sequence[Item]) -> Iterator[Item]:
    count: Counter[int] = Counter()
    owners = sentences.clip_of.tolist()
    for owner, text in zip(owners, list(sentences.texts) or [""] * len(owners), strict=True):
        clip = clips[owner]
        count[owner] += 1
        name = f"b/{clip.key}" + (f"#{count[owner]}" if count[owner] > 1 else "")
        yield Item(-1, name, "b", clip.key, text, clip.split, clip.group)


def _with_variants(
    found: EmbeddedItems, source: Source, model: SearchSpace, modality: str, device: str
) -> EmbeddedItems:
    """Every form of each item as an item of its own, such as an emoji as each vendor draws it."""
    name = source.modalities[MODALITIES.index(modality)]
    forms = [source.variants(item.key, name) for item in found.items]
    if not any(forms):
        return found
    items, vectors, pooled = [], [], []
    for number, variants in enumerate(zip(*forms, strict=True)):
        items += [_variant_item(item, variant) for item, variant in zip(found.items, variants, strict=True)]
        rows = [variant.rows for variant in variants]
        pooled.append(np.stack([part.mean(0) for part in rows]))
        vectors.append(
            found.vectors if number == 0 else encode_rows(model.eval().to(device), name, rows, as_items=True)
        )
    return EmbeddedItems(items, np.concatenate(vectors), np.concatenate(pooled))


def _variant_item(item: Item, variant: Variant) -> Item:
    name = f"{item.name}@{variant.name}" if variant.name else item.name
    return replace(item, name=name, variant=variant.name, media="image", file=variant.image)


def _joined(parts: Sequence[EmbeddedItems]) -> EmbeddedItems:
    return EmbeddedItems(
        [item for part in parts for item in part.items],
        np.concatenate([part.vectors for part in parts]),
        np.concatenate([part.pooled for part in parts]),
    )
