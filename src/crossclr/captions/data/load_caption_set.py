"""From runs and embedding files to caption sets."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from crossclr.captions.caption_config import CaptionDataConfig
from crossclr.captions.data.caption_set import CaptionSet, replace_texts
from crossclr.evaluation.export.embedding_files import load_embeddings
from crossclr.features import Source
from crossclr.features.reading.sampling import limit_rows
from crossclr.models import Embeddings, JointModel, build_model, embed_source
from crossclr.storage.json_files import read_json_object
from crossclr.training import Run, seed_everything

FILES = (".h5", ".hdf5", ".npz")
Progress = Callable[[int, int], None]


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
    source = run.open_source()
    if data.features == "raw":
        return _with_captions(from_source(source, part, max_rows, progress), data)
    model = untrained_model(run) if data.untrained else run.load_model(data.checkpoint)
    embeddings = embed_source(model, source, part, progress=progress)
    return _with_captions(from_embeddings(embeddings, data.features, str(run.path), source), data)


def untrained_model(run: Run) -> JointModel:
    """The model with the initial weights of the run."""
    shape = run.shape
    state = torch.get_rng_state()
    try:
        seed_everything(run.config.seed)
        return build_model(run.config.model, shape["dims"], shape["two_level"]).eval()
    finally:
        torch.set_rng_state(state)


def from_embeddings(embeddings: Embeddings, mode: str, origin: str, source: Source | None = None) -> CaptionSet:
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
        _times(embeddings.video_keys, counts, source),
    )


def from_source(source: Source, split: str, max_rows: int, progress: Progress | None = None) -> CaptionSet:
    """The feature rows of each clip, in the first modality."""
    keys = tuple(source.keys(split))
    rows: list[np.ndarray] = []
    counts: list[int] = []
    texts: list[list[str]] = []
    for done, key in enumerate(keys, 1):
        sample = source.read(key)
        clips = sample[source.modalities[0]].clips
        rows += [limit_rows(np.asarray(clip, dtype=np.float32), max_rows, None) for clip in clips]
        counts.append(sample.clip_count)
        own: list[list[str]] = [[] for _ in range(sample.clip_count)]
        for clip, text in sample.captions:
            own[clip].append(text)
        texts += own
        if progress is not None:
            progress(done, len(keys))
    lengths = torch.tensor([len(part) for part in rows])
    features = torch.from_numpy(np.concatenate(rows))
    return CaptionSet(keys, tuple(counts), features, lengths, tuple(map(tuple, texts)), _times(keys, counts, source))


def _times(keys: Sequence[str], counts: Sequence[int], source: Source | None) -> tuple[tuple[float, float], ...]:
    """Start and stop of clips in seconds if the data has them; otherwise their positions in the video."""
    found: list[tuple[float, float]] = []
    for key, count in zip(keys, counts, strict=True):
        times = source.clip_times(key) if source is not None and source.two_level else ()
        found += times or [(float(number), float(number + 1)) for number in range(count)]
    return tuple(found)


def _with_captions(found: CaptionSet, data: CaptionDataConfig) -> CaptionSet:
    if not data.captions:
        return found
    joined: dict[str, dict[str, object]] = {}
    for path in data.captions:
        joined.update(read_json_object(Path(path)))
    return replace_texts(found, joined, ", ".join(data.captions))
