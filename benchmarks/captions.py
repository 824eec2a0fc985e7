"""Captions: a training step, cached decoding, and writing the validation paragraphs of YouCook2.

- A step of the small preset on 16 videos: all sentences at once, against sentence after sentence with the memory handed
  on, as MART is written (every video padded to the longest, every sentence to 22 positions). Both give the same loss.
- Greedy decoding of 22 words with cached keys, against computing the whole sequence again for each word. Both write
  the same words.
- Paragraphs of 457 videos with the small preset.

Run it with ``python -m benchmarks captions``.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.measure import side_by_side
from crossclr.captions import CaptionSet, DecodingConfig, Vocabulary, load_caption_config, write_captions
from crossclr.captions.caption_set import TrainingBatch
from crossclr.captions.caption_training import BertAdam, parameter_groups, smoothed_loss
from crossclr.captions.captioner import Captioner, Memory
from crossclr.captions.decoding import greedy
from crossclr.captions.vocabulary import BOS, EOS, PAD, SPECIALS, UNK

FEATURES, WORDS, VIDEOS, LENGTH = 384, 992, 16, 22
WRITTEN = 50  # clips that are written at once, as in validation


def _lengths(split: str, seed: int = 0) -> list[list[int]]:
    """Word counts of each sentence of each video: from YouCook2's annotations if present, else drawn like them."""
    root = Path(os.environ.get("CROSSCLR_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    path = root / "youcook2" / "youcookii_annotations_trainval.json"
    if path.is_file():
        videos = json.loads(path.read_text())["database"].values()
        return [
            [min(20, len(clip["sentence"].split())) for clip in video["annotations"]]
            for video in videos
            if video["subset"] == split
        ]
    generator = torch.Generator().manual_seed(seed)

    def draw(median: float, spread: float, low: int, high: int) -> int:
        return min(high, max(low, round(median * float((torch.randn((), generator=generator) * spread).exp()))))

    count = 1333 if split == "training" else 457
    return [[draw(8.0, 0.45, 2, 20) for _ in range(draw(7.4, 0.3, 3, 16))] for _ in range(count)]


def _batch() -> TrainingBatch:
    """16 training videos with up to 12 sentences each, grouped by position."""
    generator = torch.Generator().manual_seed(0)
    every = _lengths("training")
    chosen = [every[int(i)][:12] for i in torch.randperm(len(every), generator=generator)[:VIDEOS]]
    chosen.sort(key=len, reverse=True)
    active = [sum(len(video) > step for video in chosen) for step in range(len(chosen[0]))]
    counts = [video[step] for step in range(len(active)) for video in chosen if len(video) > step]
    words = torch.full((len(counts), max(counts) + 2), PAD)
    for row, count in enumerate(counts):
        words[row, : count + 2] = torch.randint(7, WORDS, (count + 2,), generator=generator)
        words[row, 0], words[row, count + 1] = BOS, EOS
    features = torch.randn(len(counts), 1, FEATURES, generator=generator)
    rows = torch.ones(len(counts), dtype=torch.long)
    return TrainingBatch(features, rows, words, torch.tensor(counts) + 2, tuple(active))


def _all_at_once(model: Captioner, batch: TrainingBatch) -> Tensor:
    hidden = model(batch.features, batch.rows, batch.words, batch.lengths, batch.active)
    taught, targets = batch.targets()
    return smoothed_loss(model.logits(hidden[:, :-1][taught]), targets, 0.1)


def _padded(batch: TrainingBatch) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """All videos at each position, with dummies for those that have ended; every sentence has 22 tokens."""
    steps, first = [], 0
    for active in batch.active:
        span = slice(first, first + active)
        first += active
        features, words = torch.zeros(VIDEOS, 1, FEATURES), torch.full((VIDEOS, LENGTH), PAD)
        lengths = torch.zeros(VIDEOS, dtype=torch.long)
        features[:active], lengths[:active] = batch.features[span], batch.lengths[span]
        words[:active, : batch.words.shape[1]] = batch.words[span]
        steps.append((features, torch.ones(VIDEOS, dtype=torch.long), words, lengths))
    return steps


def _sentence(
    model: Captioner, features: Tensor, rows: Tensor, words: Tensor, lengths: Tensor, memory: Memory | None
) -> tuple[Tensor, Memory]:
    """One padded sentence of each video, as MART does it; returns hidden rows and the memory after it."""
    video, valid = model.embedding.video(features, rows)
    x = torch.cat([video, model.embedding.text(words)], dim=1)
    valid = torch.cat([valid, torch.arange(words.shape[1]) < lengths.unsqueeze(1)], dim=1)
    place, first = torch.arange(x.shape[1]), video.shape[1]
    order = (place < first) | ((place <= place.unsqueeze(1)) & (place.unsqueeze(1) >= first))
    allowed = valid[:, None, None, :] & order
    after = []
    for number, layer in enumerate(model.layers):
        part: Any = layer
        attended, hidden = part._first_half(x, part.attention.mix(*part.attention.all(x), allowed))
        before = part.memory_start(hidden[:, :first].mean(1)) if memory is None else memory[number]
        after.append(part.remember(hidden, valid, before))
        key, value = part.memory_attention.key_value(torch.cat([before, hidden], dim=1))
        seen = functional.pad(allowed, (part.cells, 0), value=True)
        mixed = part.memory_attention.mix(part.memory_attention.query(hidden), key, value, seen)
        x = part._second_half(attended, mixed)
    return x[:, first:], after


def _one_by_one(model: Captioner, steps: Sequence[tuple[Tensor, Tensor, Tensor, Tensor]]) -> Tensor:
    memory: Memory | None = None
    total = torch.zeros(())
    for features, rows, words, lengths in steps:
        hidden, memory = _sentence(model, features, rows, words, lengths, memory)
        following = words[:, 1:]
        taught = following != PAD
        total = total + smoothed_loss(model.logits(hidden[:, :-1])[taught], following[taught], 0.1)
    return total


def _training(results: dict[str, float], rounds: int) -> None:
    torch.manual_seed(0)
    config = load_caption_config("small")
    model = Captioner(config.model, FEATURES, WORDS)
    batch = _batch()
    steps = _padded(batch)
    model.eval()
    with torch.no_grad():
        ours, theirs = float(_all_at_once(model, batch)), float(_one_by_one(model, steps))
    if abs(ours - theirs) > 1e-4 * abs(theirs):
        raise RuntimeError(f"the two ways differ: {ours} and {theirs}")
    model.train()
    optimiser = BertAdam(parameter_groups(model, 0.01))

    def step(loss: Tensor) -> None:
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()

    seconds = side_by_side(
        {
            "at_once": lambda: step(_all_at_once(model, batch)),
            "one_by_one": lambda: step(_one_by_one(model, steps)),
        },
        rounds,
    )
    results["step_seconds_one_by_one"] = seconds["one_by_one"]
    results["step_seconds_at_once"] = seconds["at_once"]
    results["step_ratio"] = seconds["one_by_one"] / seconds["at_once"]
    results["step_sentences"] = len(batch.rows)
    results["step_sentences_padded"] = VIDEOS * len(steps)


def _recomputed(model: Captioner, features: Tensor, rows: Tensor) -> Tensor:
    words = torch.full((len(rows), LENGTH + 1), PAD)
    words[:, 0] = BOS
    for number in range(LENGTH):
        lengths = torch.full_like(rows, number + 1)
        hidden, _ = _sentence(model, features, rows, words[:, :LENGTH], lengths, None)
        logits = model.logits(hidden[:, number])
        logits[:, UNK] = -1e10
        words[:, number + 1] = logits.argmax(1)
    return words[:, 1:]


def _decoding(results: dict[str, float], rounds: int) -> None:
    for preset in ("small", "paper"):
        torch.manual_seed(0)
        model = Captioner(load_caption_config(preset).model, FEATURES, WORDS).eval()
        model.to_words.bias.data[EOS] = -1e9  # no sentence ends: all 22 words are written
        features, rows = torch.randn(WRITTEN, 1, FEATURES), torch.ones(WRITTEN, dtype=torch.long)
        with torch.no_grad():
            if not torch.equal(greedy(model, features, rows).words, _recomputed(model, features, rows)):
                raise RuntimeError("cached keys and recomputation write different words")

            def cached(model: Captioner = model, features: Tensor = features, rows: Tensor = rows) -> object:
                return greedy(model, features, rows)

            def recomputed(model: Captioner = model, features: Tensor = features, rows: Tensor = rows) -> object:
                return _recomputed(model, features, rows)

            seconds = side_by_side({"cached": cached, "recomputed": recomputed}, rounds, warm_up=1)
        results[f"decoding_{preset}_seconds_recomputed"] = seconds["recomputed"]
        results[f"decoding_{preset}_seconds_cached"] = seconds["cached"]
        results[f"decoding_{preset}_ratio"] = seconds["recomputed"] / seconds["cached"]


def _writing(results: dict[str, float]) -> None:
    """No sentence ends early, so a real model is never slower than this one."""
    torch.manual_seed(0)
    counts = tuple(len(video) for video in _lengths("validation"))
    clips = sum(counts)
    data = CaptionSet(
        tuple(f"v{number}" for number in range(len(counts))),
        counts,
        torch.randn(clips, FEATURES),
        torch.ones(clips, dtype=torch.long),
        ((),) * clips,
        ((0.0, 0.0),) * clips,
    )
    model = Captioner(load_caption_config("small").model, FEATURES, WORDS).eval()
    model.to_words.bias.data[EOS] = -1e9
    vocabulary = Vocabulary([*SPECIALS, *(f"w{number}" for number in range(WORDS - len(SPECIALS)))])
    start = time.perf_counter()
    written = write_captions(model, data, vocabulary, DecodingConfig())
    results["writing_seconds"] = time.perf_counter() - start
    results["writing_videos"] = len(written)
    results["writing_sentences"] = clips


def run(rounds: int = 5) -> dict[str, float]:
    """All results; ``*_ratio`` is how many times faster this package is.

    Raises:
        RuntimeError: two ways do not compute the same thing.
    """
    results: dict[str, float] = {}
    _training(results, rounds)
    _decoding(results, rounds)
    _writing(results)
    results["threads"] = torch.get_num_threads()
    return results


if __name__ == "__main__":
    for name, value in run().items():
        print(f"{name:40s}{value:12.3f}")
