"""Caption files: predictions in MART's JSON, references as paragraphs or several captions of a clip.

BLEU, METEOR, ROUGE-L, CIDEr-D and repetition of whole paragraphs, as MART computes them.
"""

import contextlib
import json
import os
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from crossclr.captions.meteor import SECONDS, Meteor, MeteorError
from crossclr.evaluation.result_tables import narrow_table
from crossclr.extras import requires_extra
from crossclr.storage import write_file
from crossclr.storage.reading import read_json_object


@dataclass(frozen=True)
class Caption:
    """One written sentence and the seconds of its clip.

    Args:
        text: the sentence.
        start: first second of the clip.
        stop: last second.
    """

    text: str
    start: float = 0.0
    stop: float = 0.0


Predictions = dict[str, list[Caption]]  # sentences of each video
References = dict[str, list[str]]  # one or more paragraphs (or captions of a clip) of each video


def paragraph(captions: Sequence[Caption]) -> str:
    """The sentences of a video in the order of their start, each closed with a full stop.

    Example:
        >>> paragraph([Caption("stir", 9, 12), Caption("cut the onion", 1, 4)])
        'cut the onion. stir. '
    """
    return "".join(f"{caption.text}. " for caption in sorted(captions, key=lambda caption: caption.start))


def save_predictions(predictions: Mapping[str, Sequence[Caption]], path: str | os.PathLike[str]) -> Path:
    """Write predictions in MART's format; the file appears complete or not at all."""
    results = {
        key: [{"sentence": item.text, "timestamp": [item.start, item.stop]} for item in captions]
        for key, captions in predictions.items()
    }
    content = {"version": "VERSION 1.0", "results": results, "external_data": {"used": "false", "details": ""}}
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, json.dumps(content, indent=1))
    return path


def load_predictions(path: str | os.PathLike[str]) -> Predictions:
    """Read predictions.

    MART's format is ``{"results": {video: [{"sentence": ..., "timestamp": [start, stop]}, ...]}}``. The outer
    ``results`` is optional. A video may also have ``{"sentences": [...], "timestamps": [[start, stop], ...]}``, a list
    of sentences or one sentence.

    Raises:
        ValueError: the file holds something else; the message names the video.
    """
    content = _read_object(path, "predictions")
    if isinstance(content.get("results"), dict):
        content = content["results"]
    return {key: _captions(value, f"{path}: the prediction of {key!r}") for key, value in content.items()}


def load_references(paths: Sequence[str | os.PathLike[str]]) -> References:
    """Read references; a video has those of all files that name it, as ActivityNet's two files do for most videos.

    A video has a paragraph (MART's ``captioning_val_para.json``), a list of alternative captions, or
    ``{"captions": [...]}`` (alternatives) or ``{"sentences": [...]}`` (one paragraph).

    Raises:
        ValueError: a file holds something else, or shares no video with the first.
    """
    if not paths:
        raise ValueError("name at least one file of references")
    joined: References = {}
    for number, path in enumerate(paths):
        content = _read_object(path, "references")
        if number and not set(content) & set(joined):
            raise ValueError(f"{path} and {paths[0]} have no video in common, so they belong to different data")
        for key, value in content.items():
            joined.setdefault(key, []).extend(_references(value, f"{path}: the reference of {key!r}"))
    return joined


def _read_object(path: str | os.PathLike[str], what: str) -> dict[str, Any]:
    content = read_json_object(Path(path))
    if not content:
        raise ValueError(f"{path} has no {what}; an entry for each video is needed")
    return content


def _captions(value: Any, where: str) -> list[Caption]:
    if isinstance(value, str):
        value = [value]
    if isinstance(value, dict) and "sentences" in value:
        texts = value["sentences"]
        times = value.get("timestamps") or [[0.0, 0.0]] * len(texts)
        if len(texts) != len(times):
            raise ValueError(f"{where} has {len(texts)} sentences but {len(times)} timestamps")
        value = [{"sentence": text, "timestamp": time} for text, time in zip(texts, times, strict=True)]
    if isinstance(value, list):
        with contextlib.suppress(TypeError, KeyError, ValueError):
            return [_caption(item) for item in value]
    raise ValueError(
        f'{where} must be a list of {{"sentence": text, "timestamp": [start, stop]}}, or sentences, '
        f"found {json.dumps(value)[:80]}"
    )


def _caption(item: Any) -> Caption:
    if isinstance(item, str):
        return Caption(item)
    text, (start, stop) = item["sentence"], item.get("timestamp") or (0.0, 0.0)
    if not isinstance(text, str):
        raise TypeError
    return Caption(text, float(start), float(stop))


def _references(value: Any, where: str) -> list[str]:
    if isinstance(value, dict) and "captions" in value:
        value = value["captions"]
    elif isinstance(value, dict) and "sentences" in value:
        value = [" ".join(value["sentences"])] if all(isinstance(s, str) for s in value["sentences"]) else None
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return value
    raise ValueError(f"{where} must be a paragraph or a list of captions, found {json.dumps(value)[:80]}")


LANGUAGE = ("Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "METEOR", "ROUGE_L", "CIDEr")
REPETITION = ("RE@1", "RE@2", "RE@3", "RE@4")
METRICS = (*LANGUAGE, *REPETITION)


@dataclass(frozen=True)
class Scores:
    """What `score_captions` measured.

    Args:
        metrics: by name, in percent; CIDEr of a paragraph that equals its reference is 1000. None: not computed.
        videos: number of videos in the references.
        predicted: how many of them have a prediction.
        notes: reasons for missing metrics, and other remarks.
        each: CIDEr-D and ROUGE-L of each video.
    """

    metrics: dict[str, float | None]
    videos: int
    predicted: int
    notes: tuple[str, ...] = ()
    each: dict[str, dict[str, float]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON types, without the single videos."""
        return {name: value for name, value in asdict(self).items() if name != "each"}

    def table(self, title: str = "Captions") -> Table:
        """A table for the terminal."""
        table = narrow_table(f"{title}: {self.videos:,} videos")
        for name in self.metrics:
            table.add_column(shown_name(name), justify="right", no_wrap=True)
        table.add_row(*("—" if value is None else f"{value:.2f}" for value in self.metrics.values()))
        return table


def shown_name(metric: str) -> str:
    """The name of a metric in papers.

    Example:
        >>> shown_name("Bleu_4"), shown_name("CIDEr"), shown_name("RE@4")
        ('B@4', 'CIDEr-D', 'RE@4')
    """
    return {"ROUGE_L": "ROUGE-L", "CIDEr": "CIDEr-D"}.get(metric, metric.replace("Bleu_", "B@"))


def clean(text: str) -> str:
    """Lower-case words, separated by everything that is not an ASCII letter.

    Example:
        >>> clean("Heat to 365°, don't stir.")
        'heat to don t stir'
    """
    return " ".join(re.sub("[^a-zA-Z]", " ", text).lower().split())


def score_captions(
    predictions: Mapping[str, Sequence[Caption]],
    references: Mapping[str, Sequence[str]],
    *,
    meteor: Meteor | bool = True,
    meteor_seconds: float = SECONDS,
    java: str = "java",
) -> Scores:
    """Score each video's paragraph against its references.

    The videos of ``references`` form the corpus; one without a prediction is scored as an empty text (but omitted
    from RE, which uses predictions alone). Sentences are sorted by their start.

    Args:
        predictions: sentences of each video.
        references: one or more paragraphs (or captions) of each video.
        meteor: include METEOR, which needs Java and some seconds to start; or a METEOR process that is running.
        meteor_seconds: stop METEOR after this many seconds without an answer.
        java: the program that starts METEOR.

    Raises:
        ValueError: there are no references, or one of them has no word.

    Example:
        >>> found = score_captions({"v": [Caption("a cat sleeps")]}, {"v": ["a cat sleeps"]}, meteor=False)
        >>> round(found.metrics["Bleu_3"]), found.metrics["METEOR"], found.metrics["RE@1"]
        (100, None, 0.0)
    """
    bleu, cider, rouge = _scorers()
    expected = {key: [clean(text) for text in several] for key, several in references.items()}
    if not expected:
        raise ValueError("there are no references to score against")
    for key, several in expected.items():
        if not any(several):
            raise ValueError(f"the references of {key!r} have no word")
    written = {key: [clean(paragraph(predictions.get(key, ())))] for key in expected}
    metrics: dict[str, float | None] = dict.fromkeys(LANGUAGE)
    values, _ = bleu.compute_score(expected, written, verbose=0)
    metrics.update({f"Bleu_{n}": 100.0 * float(value) for n, value in enumerate(values, 1)})
    notes = []
    if meteor is not False:
        try:
            texts = [written[key][0] for key in expected]
            with Meteor(java, meteor_seconds) if meteor is True else nullcontext(meteor) as running:
                metrics["METEOR"] = 100.0 * running.score(texts, list(expected.values()))[0]
        except MeteorError as error:
            notes.append(f"no METEOR: {error}")
    single_rouge, single_cider = (scorer.compute_score(expected, written)[1].tolist() for scorer in (rouge, cider))
    metrics["ROUGE_L"] = 100.0 * sum(single_rouge) / len(single_rouge)
    metrics["CIDEr"] = 100.0 * sum(single_cider) / len(single_cider)
    sentences = [[caption.text for caption in captions] for captions in predictions.values()]
    metrics.update({name: mean_repetition(sentences, n) for n, name in enumerate(REPETITION, 1)})
    predicted = sum(key in predictions for key in expected)
    if predicted < len(expected):
        notes.append(f"{len(expected) - predicted} videos of the references have no prediction and count as empty")
    if extra := sum(key not in expected for key in predictions):
        notes.append(f"{extra} predicted videos have no reference; they count only for RE")
    each = {
        key: {"CIDEr": 100.0 * c, "ROUGE_L": 100.0 * r}
        for key, c, r in zip(expected, single_cider, single_rouge, strict=True)
    }
    return Scores(metrics, len(expected), predicted, tuple(notes), each)


def human_ceiling(
    references: Mapping[str, Sequence[str]], seed: int = 0, *, meteor: Meteor | bool = True
) -> Scores | None:
    """Score human captions leave-one-out: a random one of each video against the others.

    Args:
        references: the captions of each video.
        seed: selects the captions.
        meteor: as for `score_captions`.

    Returns:
        The scores, or None if any video has a single reference.

    Example:
        >>> human_ceiling({"v": ["a cat sleeps"]}) is None
        True
    """
    if any(len(several) < 2 for several in references.values()):
        return None
    draw = random.Random(seed)
    held_out = {key: draw.randrange(len(several)) for key, several in references.items()}
    written = {key: [Caption(several[held_out[key]])] for key, several in references.items()}
    others = {
        key: [text for number, text in enumerate(several) if number != held_out[key]]
        for key, several in references.items()
    }
    return score_captions(written, others, meteor=meteor)


def repetition(sentences: Sequence[str], n: int) -> float:
    """RE@n: the share of a paragraph's n-grams that occurred before, in percent.

    This is Σ (count − 1) / Σ count over all n-grams, times 100, or 0 if there are none. n-grams do not cross
    sentences; their counts are pooled over the paragraph. Case and punctuation matter, except for commas and one final
    full stop.

    Example:
        >>> repetition(["cut the onion", "cut the leek."], 2)  # "cut the" occurs twice among four bigrams
        25.0
    """
    counts: Counter[tuple[str, ...]] = Counter()
    for sentence in sentences:
        words = re.sub(" +", " ", sentence.removesuffix(".").rstrip().replace(",", " ")).split(" ")
        counts.update(tuple(words[start : start + n]) for start in range(len(words) - n + 1))
    total = counts.total()
    return 100.0 * (total - len(counts)) / total if total else 0.0


def mean_repetition(paragraphs: Sequence[Sequence[str]], n: int) -> float:
    """The mean over videos; 0 where there are none."""
    return sum(repetition(sentences, n) for sentences in paragraphs) / len(paragraphs) if paragraphs else 0.0


def _scorers() -> tuple[Any, Any, Any]:
    with requires_extra("captions", "Scoring captions"):
        from pycocoevalcap.bleu.bleu import Bleu
        from pycocoevalcap.cider.cider import Cider
        from pycocoevalcap.rouge.rouge import Rouge
    return Bleu(4), Cider(), Rouge()
