"""Items and vectors of an index: from the data of a run, each split embedded once, or from shards of embeddings."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from crossclr.data import DataError, Dataset, Inputs, Ragged, Sample
from crossclr.data.emoji_set import is_built_in
from crossclr.data.sequences import Form, Sequences
from crossclr.extract.media import media_kind
from crossclr.models import Embeddings, JointModel, SearchSpace, embed_data
from crossclr.models import Vectors as Embedded
from crossclr.search.filters import clip_fields
from crossclr.search.index import Vectors, unit
from crossclr.search.items import Item
from crossclr.storage.reading import read_json_object

if TYPE_CHECKING:
    from crossclr.data.shards import BlockRows


def encode_rows(
    model: JointModel | SearchSpace,
    modality: str,
    rows: Sequence[npt.NDArray[np.float32]],
    batch_size: int = 256,
    as_items: bool = False,
) -> Vectors:
    """(sequences, dim) unit vectors of sequences (rows, channels), as queries or as search targets, where the model is.

    Example:
        >>> from crossclr.models import ModelConfig, build_model
        >>> model = build_model(ModelConfig(dim=16), dims={"video": 3, "text": 5}, two_level=False).eval()
        >>> encode_rows(model, "text", [np.ones((7, 5), np.float32), np.ones((1, 5), np.float32)]).shape
        (2, 16)
    """
    parts = []
    with torch.inference_mode():
        for start in range(0, len(rows), batch_size):
            block = Ragged.from_list([torch.tensor(part) for part in rows[start : start + batch_size]])
            found = model.encode_modality(modality, Inputs(block).to(model.device))
            parts.append((found.get("items", found["clip"]) if as_items else found["clip"]).float().cpu())
    return unit(torch.cat(parts).numpy())


@dataclass(frozen=True)
class Media:
    """A file, and the seconds of it that show a clip (None: all of it)."""

    kind: str  # image, video or audio
    file: str  # absolute path
    start: float | None = None
    stop: float | None = None
    fields: dict[str, str] = field(default_factory=dict)  # what the captions say about it besides


class MediaFinder:
    """Find the file of a clip: in a folder by name, in a table by key, or where the sample itself names it.

    Args:
        place: a folder whose files are named after the samples (or their groups, which are videos in COOT's layout), or
            a JSON file ``{clip key: file or {"file": ..., "start": ..., "stop": ...}}`` with paths relative to it;
            ``fields`` may have values for filters.
            Default: only what samples name themselves, as ``media`` and ``times``.

    Raises:
        DataError: the place does not exist, or the table has another form.
    """

    def __init__(self, place: str | Path | None = None) -> None:
        self.roots: set[str] = set()
        self._by_stem: dict[str, Path] = {}
        self._table: dict[str, Any] = {}
        self._base = Path.cwd()
        if place is None:
            return
        place = Path(place).resolve()
        if place.is_dir():
            self.roots.add(str(place))
            for path in sorted(place.rglob("*")):
                if media_kind(path) and path.is_file():
                    self._by_stem.setdefault(path.stem, path)
        elif place.is_file():
            self._table, self._base = read_json_object(place, kind=DataError), place.parent
        else:
            raise DataError(f"{place} does not exist; give a folder of media files, or a JSON table of them")

    def find(self, sample: Sample, clip: int, key: str) -> Media | None:
        """The media of a clip, or None."""
        entry = self._table.get(key)
        if entry is None and sample.clip_count == 1:
            entry = self._table.get(sample.key)
        start, stop = sample.times[clip] if clip < len(sample.times) else (None, None)
        if entry is None and sample.media and not is_built_in(sample.media[clip]):
            entry = {"file": sample.media[clip], "start": start, "stop": stop}
        if entry is not None:
            return self._from_entry(entry, key)
        names = (key, sample.key, sample.key.rsplit("/", 1)[0], sample.group)
        path = next((self._by_stem[name] for name in names if name in self._by_stem), None)
        if path is None:
            return None
        return Media(str(media_kind(path)), str(path), start, stop)

    def _from_entry(self, entry: Any, key: str) -> Media:
        values: Any = {"file": entry} if isinstance(entry, str) else entry
        try:
            path = (self._base / values["file"]).resolve()
            start, stop = (None if values.get(n) in (None, "") else float(values[n]) for n in ("start", "stop"))
            fields = {str(name): str(value) for name, value in values.get("fields", {}).items()}
        except (AttributeError, TypeError, KeyError, ValueError) as error:
            raise DataError(f"media of {key!r}: give a file name, or file, start and stop; got {entry!r}") from error
        kind = media_kind(path)
        if kind is None:
            raise DataError(f"media of {key!r}: {path} is not an image, video or sound")
        self.roots.add(str(path.parent))
        return Media(kind, str(path), start, stop, fields)


TEXT = "text"  # a modality of this name holds sentences, even if the data does not have them as text
READ_TOGETHER = 512  # samples in memory at a time
Progress = Callable[[str, int, int], None]  # the task, the steps done, all steps


@dataclass(frozen=True)
class EmbeddedItems:
    """The items of one modality, without numbers (``id`` is -1)."""

    items: list[Item]
    vectors: Vectors  # (items, dim) unit vectors
    is_text: bool = False  # whether they are sentences


def embed_items(
    model: SearchSpace,
    data: Dataset,
    splits: Sequence[str],
    finder: MediaFinder,
    batch_size: int = 64,
    device: str = "cpu",
    progress: Progress | None = None,
) -> dict[str, EmbeddedItems]:
    """Items of each modality that has some; a sample of several splits belongs to the first."""
    parts: dict[str, list[EmbeddedItems]] = {name: [] for name in data.modalities}
    seen: set[str] = set()
    for split in splits:
        samples = data.where(split=split)
        fresh = [place for place, key in enumerate(samples.keys) if key not in seen]
        seen.update(samples.keys)
        for start in range(0, len(fresh), READ_TOGETHER):
            chosen = samples.select(np.array(fresh[start : start + READ_TOGETHER]))
            for name, items in _embed_some(model, chosen, split, finder, batch_size, device).items():
                parts[name].append(items)
            if progress is not None:
                progress(f"embedding {split}", start + len(chosen), len(fresh))
    if not any(parts.values()):
        raise ValueError(f"there is nothing to index: the splits {', '.join(splits)} have no samples")
    return {name: _joined(found) for name, found in parts.items() if found}


def _embed_some(
    model: SearchSpace, data: Dataset, split: str, finder: MediaFinder, batch_size: int, device: str
) -> dict[str, EmbeddedItems]:
    """The items of some samples, which are read once."""
    memory = data.in_memory()
    embedded = embed_data(model, memory, batch_size, device)
    clips = _clips(embedded, memory, split, finder)
    found = {}
    for name, rows in embedded.modalities.items():
        if len(rows.rows):
            is_text = bool(rows.texts) or name == TEXT
            own = EmbeddedItems(list(_items(name, rows, clips, is_text)), unit(rows.gallery.numpy()), is_text)
            found[name] = _with_forms(own, data.clips[name], model, name, device)
    return found


def _clips(embedded: Embeddings, data: Dataset, split: str, finder: MediaFinder) -> list[Item]:
    """What the items of a clip share, for each clip."""
    video_of = np.repeat(np.arange(len(embedded.clip_counts)), embedded.clip_counts.numpy())  # (clips,)
    texts: dict[int, str] = {}
    for rows in embedded.modalities.values():
        for clip, text in zip(rows.clip_of.tolist(), rows.texts, strict=False):
            texts.setdefault(clip, text)
    items = []
    samples = [data[place] for place in range(len(data))]
    for clip, key in enumerate(embedded.clip_keys):
        sample = samples[video_of[clip]]
        item = Item(-1, "", "", key, texts.get(clip, ""), sample.split or split, sample.group)
        media = finder.find(sample, clip - int(data.clip_range(video_of[clip])[0]), key)
        if media is not None:
            known = clip_fields(media.file, media.kind, media.start, media.stop, media.fields)
            item = replace(item, media=media.kind, file=media.file, start=media.start, stop=media.stop, fields=known)
        items.append(item)
    return items


def _items(modality: str, rows: Embedded, clips: Sequence[Item], is_text: bool) -> Iterator[Item]:
    """An item for each row; sentences have their own text, and the other modalities have the media of the clip."""
    count: Counter[int] = Counter()
    for row, owner in enumerate(rows.clip_of.tolist()):
        clip = clips[owner]
        count[owner] += 1
        name = f"{modality}/{clip.key}" + (f"#{count[owner]}" if count[owner] > 1 else "")
        if is_text:
            text = rows.texts[row] if rows.texts else ""
            yield Item(-1, name, modality, clip.key, text, clip.split, clip.group, fields=clip.fields)
        else:
            yield replace(clip, name=name, modality=modality)


def _with_forms(
    found: EmbeddedItems, sequences: Sequences, model: SearchSpace, modality: str, device: str
) -> EmbeddedItems:
    """Every form of each item as an item of its own, such as an emoji as each vendor draws it."""
    if not sequences.forms:
        return found
    items, vectors = [], []
    for place, form in enumerate(sequences.forms):
        numbers = [int(number) for number in sequences.number]
        items += [_item_of(item, form, number) for item, number in zip(found.items, numbers, strict=True)]
        rows = [np.asarray(form.rows.read(number, item.key)) for item, number in zip(found.items, numbers, strict=True)]
        vectors.append(
            found.vectors if place == 0 else encode_rows(model.eval().to(device), modality, rows, as_items=True)
        )
    return EmbeddedItems(items, np.concatenate(vectors), found.is_text)


def _item_of(item: Item, form: Form, number: int) -> Item:
    name = f"{item.name}@{form.name}" if form.name else item.name
    return replace(item, name=name, variant=form.name, media="image", file=form.media[number])


def _joined(parts: Sequence[EmbeddedItems]) -> EmbeddedItems:
    return EmbeddedItems(
        [item for part in parts for item in part.items],
        np.concatenate([part.vectors for part in parts]),
        any(part.is_text for part in parts),
    )


def read_shard_items(
    shards: Sequence[str | Path],
    dim: int,
    weights: str,
    columns: Mapping[str, str],
    progress: Progress | None = None,
) -> dict[str, EmbeddedItems]:
    """Items of each modality that the shards contain; ``columns`` says in which column it is.

    Samples with the same id are one clip, whose items after the first are numbered, as in ``text/id#2``.

    The shards must come from the model with these ``weights`` (a digest).

    Raises:
        DataError: the vectors have another size.
        ValueError: another model made the shards.
    """
    from crossclr.data.shards import find_shards, open_shard  # large, and rarely used
    from crossclr.evaluation.bulk import MARK

    paths = find_shards(shards)
    for folder in {path.parent for path in paths}:
        mark = folder / MARK
        if mark.is_file() and read_json_object(mark, "weights")["weights"] != weights:
            raise ValueError(f"the embeddings in {folder} come from other weights; embed the shards again")
    items: dict[str, list[Item]] = {name: [] for name in columns}
    vectors: dict[str, list[Vectors]] = {name: [] for name in columns}
    seen: dict[str, dict[str, int]] = {name: defaultdict(int) for name in columns}
    for done, path in enumerate(paths):
        shard = open_shard(path, tuple(columns.values()))
        for number in range(len(shard.blocks)):
            block = shard.read(number)
            for modality in (name for name, column in columns.items() if column in block.rows):
                rows = block.rows[columns[modality]]
                places = np.flatnonzero(rows.present)
                if len(places):
                    vectors[modality].append(_shard_vectors(path, rows, len(places), dim))
                words = {name: column.to_pylist() for name, column in block.words.items()}
                for place, key in ((place, words["id"][place]) for place in places):
                    seen[modality][key] += 1
                    times = seen[modality][key]
                    name = f"{modality}/{key}" + (f"#{times}" if times > 1 else "")
                    text, group = (words[label][place] if label in words else "" for label in ("text", "group"))
                    items[modality].append(Item(-1, name, modality, key, text, path.stem, group))
        if progress is not None:
            progress("reading shards", done + 1, len(paths))
    return {name: EmbeddedItems(items[name], np.concatenate(vectors[name])) for name in columns if items[name]}


def _shard_vectors(path: Path, rows: "BlockRows", count: int, dim: int) -> Vectors:
    if rows.values.shape != (count, dim):
        raise DataError(
            f"{path} has {rows.values.shape[0]} vectors of {rows.values.shape[1]} channels for {count} samples, but "
            f"the model makes one of {dim} for each. Embed features first with `crossclr embed --shards`"
        )
    return unit(np.asarray(rows.values, dtype=np.float32))
