"""The input of a captioner: videos, the feature rows of their clips, and human sentences.

Training sentences as numbers; if a clip has many captions, each epoch samples different ones.

From runs and embedding files to caption sets.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from crossclr.captions.caption_config import CaptionDataConfig
from crossclr.captions.caption_metrics import References
from crossclr.captions.vocabulary import BOS, EOS, PAD, Vocabulary, tokenise
from crossclr.data import Dataset
from crossclr.data.sequences import limit_rows
from crossclr.evaluation.embedding_files import load_embeddings
from crossclr.models import Embeddings, JointModel, SearchSpace, build_model, embed_data
from crossclr.progress_bar import Progress
from crossclr.storage.reading import read_json_object
from crossclr.training import Run
from crossclr.training.checkpoint import seed_everything
from crossclr.training.run_folder import Which


@dataclass(frozen=True)
class CaptionSet:
    """Videos with their clips.

    Args:
        keys: (videos) names.
        counts: (videos) clips of each.
        features: (rows, dim) rows of all clips, flat.
        rows: (clips,) int64 rows of each clip.
        texts: (clips) sentences of each clip, one or more; empty where there are none.
        times: (clips) first and last second of each.
    """

    keys: tuple[str, ...]
    counts: tuple[int, ...]
    features: Tensor
    rows: Tensor
    texts: tuple[tuple[str, ...], ...]
    times: tuple[tuple[float, float], ...]

    @property
    def starts(self) -> list[int]:
        """The first clip of each video, and the number of clips at the end."""
        starts = [0]
        for count in self.counts:
            starts.append(starts[-1] + count)
        return starts

    def references(self) -> References:
        """The references of each video: paragraphs, or all captions of a single clip.

        If all clips of a video have several captions, the first paragraph joins their first captions, the second
        paragraph their second captions, and so on. Videos without sentences are omitted.
        """
        found: References = {}
        for key, (start, stop) in zip(self.keys, pairwise(self.starts), strict=True):
            several = min((len(texts) for texts in self.texts[start:stop]), default=0)
            if several:
                found[key] = [" ".join(texts[n] for texts in self.texts[start:stop]) for n in range(several)]
        return found


@dataclass(frozen=True)
class CaptionBatch:
    """Clips of some videos, time by time, as the captioner takes them."""

    features: Tensor  # (clips, longest, dim) padded with zeros
    rows: Tensor  # (clips,) rows of each
    clips: tuple[int, ...]  # their numbers in the set
    active: tuple[int, ...]  # how many videos have a first, second, ... clip
    videos: tuple[int, ...]  # their numbers in the set, those with more clips first


def make_batcher(data: CaptionSet, max_clips: int | None = None) -> Callable[[Sequence[int]], CaptionBatch]:
    """A function that gathers videos (by number) into a batch, with at most ``max_clips`` clips of each."""
    starts = data.starts
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), data.rows.cumsum(0)])

    def gather(videos: Sequence[int]) -> CaptionBatch:
        def length(video: int) -> int:
            return min(data.counts[video], max_clips or data.counts[video])

        ordered = sorted(videos, key=length, reverse=True)  # stable: one order for one list
        active = [sum(length(video) > time for video in ordered) for time in range(length(ordered[0]))]
        clips = [starts[video] + time for time, count in enumerate(active) for video in ordered[:count]]
        chosen = torch.tensor(clips)
        rows = data.rows[chosen]
        place = torch.arange(int(rows.max()))
        inside = place < rows.unsqueeze(1)  # (clips, longest)
        index = (offsets[chosen].unsqueeze(1) + place).where(inside, torch.zeros((), dtype=torch.int64))
        features = data.features[index] * inside.unsqueeze(2)
        return CaptionBatch(features, rows, tuple(clips), tuple(active), tuple(ordered))

    return gather


def replace_texts(data: CaptionSet, captions: Mapping[str, Mapping[str, object]], origin: str) -> CaptionSet:
    """Sentences and times of each video from MART's ``captioning_*.json``, which must have a sentence for each clip."""
    texts: list[tuple[str, ...]] = []
    times: list[tuple[float, float]] = []
    for key, count in zip(data.keys, data.counts, strict=True):
        entry = captions.get(key)
        if entry is None:
            raise ValueError(f"{origin} has no sentences for {key!r}")
        sentences = list(entry["sentences"])  # type: ignore[call-overload]
        if len(sentences) != count:
            raise ValueError(f"{origin}: {key!r} has {len(sentences)} sentences but {count} clips")
        stamps = list(entry.get("timestamps") or [(n, n + 1) for n in range(count)])  # type: ignore[call-overload]
        texts += [(str(sentence),) for sentence in sentences]
        times += [(float(start), float(stop)) for start, stop in stamps]
    return CaptionSet(data.keys, data.counts, data.features, data.rows, tuple(texts), tuple(times))


@dataclass(frozen=True)
class TrainingBatch:
    """Clips of some videos, time by time, with a sentence each."""

    features: Tensor  # (sentences, longest, dim) padded with zeros
    rows: Tensor  # (sentences,) rows of each
    words: Tensor  # (sentences, length) [BOS] words [EOS], padded; no longer than the longest sentence here
    lengths: Tensor  # (sentences,) positions that count
    active: tuple[int, ...]  # how many videos have a first, second, ... sentence

    def targets(self) -> tuple[Tensor, Tensor]:
        """The positions with a next word to predict (sentences, length - 1), and these words, flat."""
        following = self.words[:, 1:]
        has_target = following != PAD
        return has_target, following[has_target]


class TrainingSentences:
    """The training videos with their sentences; each clip has at least one.

    An epoch contains a video whose clips have several captions ``captions_per_clip`` times, each time with different
    captions as long as there are enough.
    """

    def __init__(
        self, data: CaptionSet, vocabulary: Vocabulary, max_words: int, max_clips: int, captions_per_clip: int = 1
    ) -> None:
        missing = next((clip for clip, texts in enumerate(data.texts) if not texts), None)
        if missing is not None:
            video = next(key for key, stop in zip(data.keys, data.starts[1:], strict=True) if missing < stop)
            raise ValueError(
                f"a clip of {video!r} has no sentence to train on; name files with sentences in data.captions"
            )
        self.data = data
        self._gather = make_batcher(data, max_clips)
        self._encoded = [
            [[BOS, *vocabulary.encode(tokenise(text)[:max_words]), EOS] for text in texts] for texts in data.texts
        ]
        several = any(len(texts) > 1 for texts in data.texts)
        self.draws = captions_per_clip if several else 1

    def batches_per_epoch(self, batch_size: int) -> int:
        """Steps of an epoch."""
        return -(-len(self.data.keys) * self.draws // batch_size)

    def batches(self, seed: int, epoch: int, batch_size: int, start: int = 0) -> Iterator[TrainingBatch]:
        """The batches of an epoch from ``start`` on; they depend on (seed, epoch) alone."""
        rng = np.random.default_rng([seed, epoch])
        order = rng.permutation(len(self.data.keys) * self.draws)
        shuffled = [rng.permutation(len(texts)).tolist() if len(texts) > 1 else [0] for texts in self._encoded]
        for first in range(start * batch_size, len(order), batch_size):
            chosen = order[first : first + batch_size]
            # a video may occur twice in a batch with different captions, so identify it by its position in the batch
            yield self._batch([int(item) for item in chosen], shuffled)

    def _batch(self, items: Sequence[int], shuffled: Sequence[Sequence[int]]) -> TrainingBatch:
        ordered = sorted(items, key=lambda item: -self.data.counts[item // self.draws])
        batch = self._gather([item // self.draws for item in ordered])
        sentences = []
        position = 0
        for active in batch.active:
            for item, clip in zip(ordered, batch.clips[position : position + active], strict=False):
                picks = shuffled[clip]
                sentences.append(self._encoded[clip][picks[(item % self.draws) % len(picks)]])
            position += active
        lengths = torch.tensor([len(sentence) for sentence in sentences])
        words = torch.full((len(sentences), int(lengths.max())), PAD)
        inside = torch.arange(words.shape[1]) < lengths.unsqueeze(1)
        words[inside] = torch.tensor([word for sentence in sentences for word in sentence])
        return TrainingBatch(batch.features, batch.rows, words, lengths, batch.active)


FILES = (".h5", ".hdf5", ".npz")


def load_caption_set(
    data: CaptionDataConfig, part: str, *, max_rows: int = 1, progress: Progress | None = None
) -> CaptionSet:
    """The videos of a split (of a run) or of an embedding file.

    Args:
        data: the section ``data`` of the config.
        part: name of a split, or an ``.h5`` or ``.npz`` file.
        max_rows: raw features: more rows of a clip are sampled down to this.
        progress: called with the numbers of finished samples and of all samples.

    Raises:
        ValueError: there are no such embeddings, or required sentences are missing.
    """
    if Path(part).suffix in FILES:
        return _with_captions(from_embeddings(load_embeddings(part), data.features, part), data)
    if data.run is None:
        raise ValueError(
            f"{part!r} is not an embedding file ({', '.join(FILES)}), and data.run does not name a run folder"
        )
    run = Run.open(data.run)
    samples = run.open_data().where(split=part)
    if data.features == "raw":
        return _with_captions(from_data(samples, max_rows, progress), data)
    model = untrained_model(run) if data.untrained else uncorrected_space(run, data.checkpoint)
    embeddings = embed_data(model, samples, progress=progress)
    return _with_captions(from_embeddings(embeddings, data.features, str(run.path), samples), data)


def uncorrected_space(run: Run, which: Which = "best") -> SearchSpace:
    """The search space of a run without its correction of hubs, which ranks items and says nothing about them."""
    space = run.load_space(which)
    space.hubs = None
    return space


def untrained_model(run: Run) -> JointModel:
    """The model with the initial weights of the run."""
    shape = run.shape
    state = torch.get_rng_state()
    try:
        seed_everything(run.config.seed)
        return build_model(run.config.model, shape["dims"], shape["two_level"]).eval()
    finally:
        torch.set_rng_state(state)


def from_embeddings(embeddings: Embeddings, mode: str, origin: str, samples: Dataset | None = None) -> CaptionSet:
    """One row of unit parts for each clip: its own embedding, its video's, or both."""
    owner = torch.repeat_interleave(torch.arange(len(embeddings.clip_counts)), embeddings.clip_counts)
    parts: list[Tensor] = []
    clips, _ = embeddings.pair()
    for name, rows in (("vid", clips.videos), ("clip", clips.rows), ("ctx", clips.context)):
        if name not in mode:
            continue
        if rows is None:
            raise ValueError(
                f"data.features={mode} needs embeddings of whole videos, but {origin} has none (its data has one "
                "level, or only clips were trained); use data.features=clip"
            )
        parts.append(normalize(rows, dim=1) if name == "clip" else normalize(rows, dim=1)[owner])
    features = torch.cat(parts, dim=1)  # (clips, channels)
    texts: list[list[str]] = [[] for _ in range(len(features))]
    if embeddings.text_name is not None:
        sentences = embeddings[embeddings.text_name]
        for clip, text in zip(sentences.clip_of.tolist(), sentences.texts, strict=True):
            texts[clip].append(text)
    counts = tuple(embeddings.clip_counts.tolist())
    return CaptionSet(
        embeddings.video_keys,
        counts,
        features,
        torch.ones(len(features), dtype=torch.int64),
        tuple(map(tuple, texts)),
        _times(counts, samples),
    )


def from_data(samples: Dataset, max_rows: int, progress: Progress | None = None) -> CaptionSet:
    """The feature rows of each clip, in the first modality."""
    keys = tuple(samples.keys)
    rows: list[np.ndarray] = []
    counts: list[int] = []
    texts: list[list[str]] = []
    for place in range(len(samples)):
        sample = samples[place]
        clips = sample[samples.modalities[0]].clips
        rows += [limit_rows(np.asarray(clip, dtype=np.float32), max_rows, None) for clip in clips]
        counts.append(sample.clip_count)
        own: list[list[str]] = [[] for _ in range(sample.clip_count)]
        for clip, text in sample.captions:
            own[clip].append(text)
        texts += own
        if progress is not None:
            progress(place + 1, len(keys))
    lengths = torch.tensor([len(part) for part in rows])
    features = torch.from_numpy(np.concatenate(rows))
    return CaptionSet(keys, tuple(counts), features, lengths, tuple(map(tuple, texts)), _times(counts, samples))


def _times(counts: Sequence[int], samples: Dataset | None) -> tuple[tuple[float, float], ...]:
    """Start and stop of clips in seconds if the data has them; otherwise their positions in the video."""
    found: list[tuple[float, float]] = []
    for place, count in enumerate(counts):
        times = samples.clip_times(place) if samples is not None and samples.two_level else ()
        found += times or [(float(number), float(number + 1)) for number in range(count)]
    return tuple(found)


def _with_captions(found: CaptionSet, data: CaptionDataConfig) -> CaptionSet:
    if not data.captions:
        return found
    joined: dict[str, dict[str, object]] = {}
    for path in data.captions:
        joined.update(read_json_object(Path(path)))
    return replace_texts(found, joined, ", ".join(data.captions))
