"""Writing sentences: greedy or with beam search, with cached keys, paragraph by paragraph."""

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from crossclr.captions.caption_config import DecodingConfig
from crossclr.captions.caption_metrics import Caption, Predictions
from crossclr.captions.caption_set import CaptionSet, make_batcher
from crossclr.captions.captioner import Captioner, Memory
from crossclr.captions.vocabulary import BOS, EOS, PAD, UNK, Vocabulary
from crossclr.progress_bar import Progress

NEVER = -1e10
PLAIN = DecodingConfig()


@dataclass(frozen=True)
class DecodedSentences:
    """Sentences of some clips."""

    words: Tensor  # (count, length) numbers, including [EOS] and everything after it
    memory: Memory | None  # after these sentences; None without recurrence


def greedy(
    model: Captioner, features: Tensor, rows: Tensor, memory: Memory | None = None, config: DecodingConfig = PLAIN
) -> DecodedSentences:
    """Always take the most likely word, up to [EOS].

    Args:
        model: the captioner, in evaluation mode.
        features: (count, longest, dim) rows of each clip.
        rows: (count,) number of rows.
        memory: of the previous sentences; None: there are none.
        config: minimum length and blocked n-grams.
    """
    writing = model.begin(features, rows, memory)
    word = torch.full_like(rows, BOS)
    ended = torch.zeros_like(rows, dtype=torch.bool)
    lengths = torch.zeros_like(rows)
    written: list[Tensor] = []
    for number in range(model.text_length):
        logits = model.write(writing, word)
        lengths += ~ended  # the memory reads [EOS] but nothing after it
        ended = ended | (word == EOS)
        _forbid(logits, written, config.min_words - number, config.block_ngram)
        word = logits.argmax(1).masked_fill(ended, PAD)
        written.append(word)
        if bool(ended.all()) or (not model.recurrent and bool((ended | (word == EOS)).all())):
            break
    return DecodedSentences(torch.stack(written, 1), model.remember(writing, lengths))


def beam_search(
    model: Captioner, features: Tensor, rows: Tensor, memory: Memory | None = None, config: DecodingConfig = PLAIN
) -> DecodedSentences:
    """The most likely sentence among ``config.beam`` hypotheses; the arguments are those of `greedy`."""
    beam, length_penalty = config.beam, config.length_penalty
    count, limit = len(rows), model.text_length
    repeated = torch.arange(count, device=rows.device).repeat_interleave(beam)
    writing = model.begin(features, rows, memory).select(repeated)
    scores = features.new_full((count, beam), -math.inf)
    scores[:, 0] = 0.0  # all hypotheses of a sentence start equal, so start with one
    best = features.new_full((count,), -math.inf)
    best_sentences = rows.new_full((count, limit), EOS)
    word = rows.new_full((count * beam,), BOS)
    written = rows.new_empty(count * beam, 0)
    for number in range(limit):
        logits = model.write(writing, word)
        _forbid(logits, list(written.unbind(1)), config.min_words - number, config.block_ngram)
        following = scores.unsqueeze(2) + logits.log_softmax(1).view(count, beam, -1)
        if number == limit - 1:  # no room for another word, so the sentence ends here
            value, flat = (following.flatten(1) / (number + 1) ** length_penalty).max(1)
            origin, last = flat // logits.shape[1], flat % logits.shape[1]
            _keep(best, best_sentences, value, torch.cat([_of(written, origin, beam), last.unsqueeze(1)], dim=1))
            break
        top, flat = following.flatten(1).topk(2 * beam)  # enough to leave `beam` when some end here
        origin, token = flat // logits.shape[1], flat % logits.shape[1]  # (count, 2 beam)
        ends = token == EOS
        value, which = (top / (number + 1) ** length_penalty).masked_fill(~ends, -math.inf)[:, :beam].max(1)
        _keep(best, best_sentences, value, _of(written, origin.gather(1, which.unsqueeze(1)).squeeze(1), beam))
        scores, survivors = top.masked_fill(ends, -math.inf).topk(beam)
        word = token.gather(1, survivors).flatten()
        source = (torch.arange(count, device=rows.device).unsqueeze(1) * beam + origin.gather(1, survivors)).flatten()
        written = torch.cat([written[source], word.unsqueeze(1)], dim=1)
        # a live hypothesis only gets less likely; the penalty may help it by no more than its full length
        if bool((best >= scores[:, 0] / limit**length_penalty).all()):
            break
        writing = writing.select(source)
    if not model.recurrent:
        return DecodedSentences(best_sentences, None)
    lengths = (best_sentences != EOS).sum(1) + 2  # [BOS] and [EOS]
    inputs = torch.cat([rows.new_full((count, 1), BOS), best_sentences], dim=1)[:, :limit]
    return DecodedSentences(best_sentences, model.after(features, rows, inputs, lengths.clamp(max=limit), memory)[1])


def write_captions(
    model: Captioner,
    data: CaptionSet,
    vocabulary: Vocabulary,
    config: DecodingConfig | None = None,
    progress: Progress | None = None,
) -> Predictions:
    """Write a sentence for each clip of each video; the memory carries earlier sentences forward.

    Args:
        model: the captioner; its training mode is restored afterwards.
        data: the videos.
        vocabulary: the model's words.
        config: how to write; None: greedily.
        progress: called with the finished videos and all videos.
    """
    config = config or PLAIN
    decode = greedy if config.beam == 1 else beam_search
    gather = make_batcher(data)
    order = sorted(range(len(data.keys)), key=lambda video: -data.counts[video])  # little padding in time
    texts: dict[int, str] = {}
    was_training = model.training
    device = model.embedding.words.weight.device
    model.eval()
    try:
        with torch.inference_mode():
            for start in range(0, len(order), config.batch_size):
                batch = gather(order[start : start + config.batch_size])
                memory: Memory | None = None
                first = 0
                for active in batch.active:
                    span = slice(first, first + active)
                    first += active
                    before = None if memory is None else [cells[:active] for cells in memory]
                    features, rows = batch.features[span].to(device), batch.rows[span].to(device)
                    written = decode(model, features, rows, before, config)
                    memory = written.memory
                    for clip, words in zip(batch.clips[span], written.words.tolist(), strict=True):
                        texts[clip] = vocabulary.decode(words)
                if progress is not None:
                    progress(min(start + config.batch_size, len(order)), len(order))
    finally:
        model.train(was_training)
    return {
        key: [Caption(texts[clip], *data.times[clip]) for clip in range(start, stop)]
        for key, (start, stop) in zip(data.keys, pairwise(data.starts), strict=True)
    }


def _forbid(logits: Tensor, written: list[Tensor], words_missing: int, n: int) -> None:
    """Forbid unknown words, an early end, and repeated n-grams."""
    logits[:, UNK] = NEVER
    if words_missing > 0:
        logits[:, EOS] = NEVER
    if n and len(written) >= n:
        windows = torch.stack(written, 1).unfold(1, n, 1)  # (count, windows, n)
        last = torch.stack(written[len(written) - n + 1 :], 1) if n > 1 else windows[:, 0, :0]
        row, window = (windows[:, :, : n - 1] == last.unsqueeze(1)).all(2).nonzero(as_tuple=True)
        logits[row, windows[row, window, n - 1]] = NEVER


def _of(written: Tensor, which: Tensor, beam: int) -> Tensor:
    """Hypothesis ``which`` (count,) of each sentence: (count, words) of (count * beam, words)."""
    return written[torch.arange(len(which), device=which.device) * beam + which]


def _keep(best: Tensor, best_sentences: Tensor, value: Tensor, sentences: Tensor) -> None:
    """Where ``value`` beats the best sentence so far, take ``sentences`` (count, words)."""
    better = value > best
    best[better] = value[better]
    best_sentences[better] = EOS
    best_sentences[better, : sentences.shape[1]] = sentences[better]
