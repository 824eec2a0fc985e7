"""Features of made-up cooking videos and their sentences, with the near-copies that real sentences have."""

import json
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

STEPS = ("add", "pour", "chop", "fry", "boil", "mix", "slice", "grill", "season", "whisk", "bake", "drain")
STAPLES = ("onion", "garlic", "salt", "tomato", "carrot", "beef", "rice", "pasta", "egg", "flour", "butter", "milk")
FRESH = ("lemon", "cheese", "basil", "oil", "sugar", "bacon", "shrimp", "tofu", "potato", "celery", "pepper", "lemon")
FOODS = (*STAPLES, *FRESH)
PLACES = ("pan", "pot", "bowl", "oven", "board", "plate", "mixer", "tray")
WIDTH = 96


@dataclass(frozen=True)
class Cooking:
    """Row i of each belongs to clip i: a video row, a sentence row and the sentence."""

    video: np.ndarray  # (clips, 96)
    text: np.ndarray  # (clips, 96)
    sentences: list[str]


def cooking_clips(clips: int, noise: float = 2.0, seed: int = 0) -> Cooking:
    """Make clips; frequent words make many sentences nearly equal, as in YouCook2.

    Args:
        clips: how many.
        noise: length of what a clip shows besides its sentence, against a sentence of length 1.
        seed: of everything.
    """
    rng = np.random.default_rng(seed)
    words = {word: rng.standard_normal(WIDTH) for word in (*STEPS, *FOODS, *PLACES, "the", "to", "and")}
    sentences = []
    for _ in range(clips):
        step, place = _draw(rng, STEPS), _draw(rng, PLACES)
        foods = [_draw(rng, FOODS) for _ in range(int(rng.integers(1, 4)))]
        sentences.append(f"{step} the {' and '.join(foods)} to the {place}")
    text = np.stack([np.mean([words[word] for word in sentence.split()], axis=0) for sentence in sentences])
    shown = _unit(text - text.mean(axis=0)) + noise * _unit(rng.standard_normal(text.shape))
    # a rectified network, so that all cosines of video rows are high, as with real features
    hidden, out = (rng.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5 for _ in range(2))
    video = np.maximum(np.tanh(2 * shown @ hidden) @ out + 0.4, 0)
    return Cooking(video.astype(np.float32), text.astype(np.float32), sentences)


def write_cooking(folder: Path, videos: int, held_out: int, clips: int = 8) -> Path:
    """Write them in COOT's layout under the names of YouCook2's files: three rows a clip, four tokens a sentence.

    Args:
        folder: where to.
        videos: how many, each with ``clips`` clips.
        held_out: how many of them are the split ``val``.
    """
    data, rng = cooking_clips(videos * clips), np.random.default_rng(0)
    rows = np.repeat(data.video, 3, axis=0)
    tokens = np.repeat(data.text, 4, axis=0)
    rows += 0.05 * rng.standard_normal(rows.shape, dtype=np.float32)
    tokens += 0.3 * rng.standard_normal(tokens.shape, dtype=np.float32)
    folder.mkdir(parents=True)
    meta, lengths = {}, {}
    with h5py.File(folder / "video_feat_100m.h5", "w") as video, h5py.File(folder / "text_feat_words.h5", "w") as text:
        for number in range(videos):
            key = f"video{number:03}"
            video[key] = rows[number * clips * 3 : (number + 1) * clips * 3]
            text[key] = tokens[number * clips * 4 : (number + 1) * clips * 4]
            lengths[key] = [4] * clips
            sentences = data.sentences[number * clips : (number + 1) * clips]
            segments = [
                {"text": sentence, "start_sec": 3.0 * clip, "stop_sec": 3.0 * (clip + 1)}
                for clip, sentence in enumerate(sentences)
            ]
            split = "val" if number < held_out else "train"
            meta[key] = {"data_key": key, "duration_sec": 3.0 * clips, "split": split, "segments": segments}
    (folder / "meta_all.json").write_text(json.dumps(meta))
    (folder / "text_feat_words_sentence_splits.json").write_text(json.dumps(lengths))
    return folder


def _draw(rng: np.random.Generator, words: tuple[str, ...]) -> str:
    odds = 1 / np.arange(1, len(words) + 1) ** 1.5  # a few words are in most sentences
    return str(rng.choice(words, p=odds / odds.sum()))


def _unit(rows: np.ndarray) -> np.ndarray:
    unit: np.ndarray = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit
