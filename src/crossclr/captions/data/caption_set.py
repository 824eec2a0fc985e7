"""The input of a captioner: videos, the feature rows of their clips, and human sentences."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from crossclr.captions.scoring.predictions import References


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
class Batch:
    """Clips of some videos, time by time, as the captioner takes them."""

    features: Tensor  # (clips, longest, dim) padded with zeros
    rows: Tensor  # (clips,) rows of each
    clips: tuple[int, ...]  # their numbers in the set
    active: tuple[int, ...]  # how many videos have a first, second, ... clip
    videos: tuple[int, ...]  # their numbers in the set, those with more clips first


def make_batcher(data: CaptionSet, max_clips: int | None = None) -> Callable[[Sequence[int]], Batch]:
    """A function that gathers videos (by number) into a batch, with at most ``max_clips`` clips of each."""
    starts = data.starts
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), data.rows.cumsum(0)])

    def gather(videos: Sequence[int]) -> Batch:
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
        return Batch(features, rows, tuple(clips), tuple(active), tuple(ordered))

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
