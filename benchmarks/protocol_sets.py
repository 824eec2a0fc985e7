"""The data sets of docs/protocol.md as `.npz` files, for benchmarks.protocol.

    python -m benchmarks.protocol_sets DATA sets
    python -m benchmarks.protocol sets --out studies/default

DATA holds the folders `msvd`, `exercises`, `vrd`, `breakfast`, `photos` and `youcook2-spoken`; the emoji are built in.
Sequences are averaged, and a text is the average of its MiniLM tokens (several captions: the average over the
captions).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from crossclr.data import EmojiConfig, open_data
from crossclr.extract.token_features import write_token_features_captions

Rows = npt.NDArray[np.float32]


def text_rows(captions: dict[str, list[str]], folder: Path | None = None) -> Rows:
    """One row for each key, in the order of the keys; FOLDER may hold what `crossclr extract --text-only` wrote."""
    with tempfile.TemporaryDirectory() as name:
        if folder is None or not folder.exists():
            file, folder = Path(name) / "captions.json", Path(name) / "text"
            file.write_text(json.dumps({key: {"captions": texts} for key, texts in captions.items()}))
            write_token_features_captions(file, folder)
        values, lengths = np.load(folder / "values.npy", mmap_mode="r"), np.load(folder / "lengths.npy")
        owners = json.loads((folder / "owners.json").read_text())
        means = segment_means(values, lengths)
    place = {key: number for number, key in enumerate(captions)}
    rows, counts = np.zeros((len(captions), means.shape[1]), np.float32), np.zeros(len(captions))
    at = [place[owner] for owner in owners]
    np.add.at(rows, at, means)
    np.add.at(counts, at, 1)
    return np.asarray(rows / counts[:, None], np.float32)


def segment_means(values: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> Rows:
    """The mean of each run of rows."""
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    return np.stack(
        [np.asarray(values[start : start + n], np.float32).mean(0) for start, n in zip(starts, lengths, strict=True)]
    )


def emoji(_: Path) -> dict[str, Any]:
    """Drawings of two vendors side by side, names with tags; the man, the woman and so on of an emoji stay together."""
    data = open_data(EmojiConfig())
    parts = [data.where(split=split) for split in data.splits]
    samples = [part[place] for part in parts for place in range(len(part))]
    return {
        "video": np.concatenate([sample["image"].clips[0] for sample in samples]),
        "text": np.concatenate([sample["text"].clips[0].mean(0, keepdims=True) for sample in samples]),
        "sizes": [len(part) for part in parts],
        "groups": [label for part in parts for label in part.families().to_pylist()],
    }


def msvd(data: Path) -> dict[str, Any]:
    """Clips and the mean of all their captions."""
    with np.load(data / "msvd" / "msvd_vgg16_fc2_20x512.npz") as file:
        keys, video = [str(key) for key in file["ids"]], file["feat"].astype(np.float32).mean(1)
    entries = json.loads((data / "msvd" / "captions.json").read_text())
    return {
        "video": video,
        "text": text_rows({key: entries[key]["captions"] for key in keys}, data / "msvd" / "text_minilm"),
        "sizes": [1200, 100, 670],
        "groups": [entries[key]["youtube"] for key in keys],
    }


def exercises(data: Path) -> dict[str, Any]:
    """Animations and English instructions."""
    folder = data / "exercises"
    keys = json.loads((folder / "keys.json").read_text())
    with np.load(folder / "video.npz") as file:
        video = segment_means(file["values"], file["lengths"])
    english = json.loads((folder / "english.json").read_text())
    return {
        "video": video,
        "text": text_rows({key: english[key]["captions"] for key in keys}),
        "sizes": [930, 130, 264],
    }


def vrd(data: Path) -> dict[str, Any]:
    """Two experts of unit length side by side; samples with the same sentence show the same thing."""
    folder = data / "vrd"
    keys = json.loads((folder / "keys.json").read_text())
    captions = json.loads((folder / "captions.json").read_text())
    experts = [np.load(folder / "resnet152.npy").astype(np.float32).mean(1), np.load(folder / "c3d.npy")]
    parts = [
        rows.astype(np.float32) / np.linalg.norm(rows.astype(np.float32), axis=1, keepdims=True) for rows in experts
    ]
    return {
        "video": np.concatenate(parts, axis=1),
        "text": text_rows({key: captions[key] for key in keys}),
        "sizes": [300, 50, 97],
        "concepts": [captions[key][0] for key in keys],
    }


def breakfast(data: Path) -> dict[str, Any]:
    """Segments of cooking videos and the names of their actions; mAP by action."""
    with np.load(data / "breakfast" / "breakfast_segments.npz", allow_pickle=False) as file:
        video, names, label = (
            file["feat_mean"].astype(np.float32),
            [str(name) for name in file["labels"]],
            file["label"],
        )
        films = file["video"]
    phrases = text_rows({name: [name.replace("_", " ")] for name in names})
    count = len(video)
    return {
        "video": video,
        "text": phrases[label],
        "sizes": [round(0.65 * count), round(0.1 * count), count - round(0.65 * count) - round(0.1 * count)],
        "concepts": label,
        "groups": films,
        "metric": "map",
    }


def youcook2_spoken(data: Path) -> dict[str, Any]:
    """Spoken instructions and their sentences; a tenth of the training videos is for validation."""
    import h5py

    folder = data / "youcook2-spoken"
    meta = json.loads((folder / "meta_all.json").read_text())
    audio, captions, films = [], {}, []
    with h5py.File(folder / "audio_feat_speech96.h5") as file:
        for key, entry in meta.items():
            rows = file[key][:].astype(np.float32)
            for number, segment in enumerate(entry["segments"]):
                times = (segment["start_sec"], segment["stop_sec"])
                start, stop = (round(time / entry["duration_sec"] * len(rows)) for time in times)
                audio.append(rows[start : max(stop, start + 1)].mean(0))
                captions[f"{key}/{number}"] = [segment["text"]]
                films.append(key)
    return {
        "video": np.stack(audio),
        "text": text_rows(captions),
        "sizes": [9303, 1034, len(films) - 10337],
        "groups": films,
    }


def breakfast_2000(data: Path) -> dict[str, Any]:
    """2,000 random segments for training and 2,000 for testing, a little noise on the texts, and no groups."""
    rng = np.random.default_rng(0)
    whole = breakfast(data)
    some = rng.permutation(len(whole["video"]))[:4000]
    text = whole["text"][some]
    noise = 0.3 * float((text - text.mean(0)).std()) * rng.normal(size=text.shape)
    return {
        "video": whole["video"][some],
        "text": (text + noise).astype(np.float32),
        "sizes": [1800, 200, 2000],
        "concepts": whole["concepts"][some],
        "metric": "map",
    }


def emoji_concepts(data: Path) -> dict[str, Any]:
    """The emoji with Unicode's subgroups as concepts; the groups of `emoji` only split."""
    whole = emoji(data)
    units, emojis = whole.pop("groups"), open_data(EmojiConfig())
    parts = [emojis.where(split=split) for split in emojis.splits]
    concepts = [label for part in parts for label in part.info["subgroup"].to_pylist()]
    return {**whole, "units": units, "concepts": concepts, "metric": "map"}


def photos(data: Path) -> dict[str, Any]:
    """Photos and the mean of their five captions."""
    folder = data / "photos"
    with np.load(folder / "photos.npz") as file:
        keys, video = [str(key) for key in file["keys"]], file["appearance"].astype(np.float32)
    captions = json.loads((folder / "captions.json").read_text())
    text = text_rows({key: captions[key] for key in keys})
    return {"video": video, "text": text, "sizes": [1800, 300, 900]}


def photos_captions(data: Path) -> dict[str, Any]:
    """800 photos, each with five captions as five samples of one concept; samples of a photo are in one split."""
    folder = data / "photos"
    with np.load(folder / "photos.npz") as file:
        keys, video = [str(key) for key in file["keys"]][:800], file["appearance"][:800].astype(np.float32)
    captions = json.loads((folder / "captions.json").read_text())
    text = text_rows({f"{key}/{number}": [text] for key in keys for number, text in enumerate(captions[key])})
    photo = np.repeat(np.arange(800), [len(captions[key]) for key in keys])
    return {
        "video": video[photo],
        "text": text,
        "sizes": [1800, 200, 2000],
        "concepts": photo,
        "units": photo,
        "metric": "map",
    }


BUILDERS = (
    *(vrd, exercises, emoji, msvd, breakfast, youcook2_spoken, photos),
    *(breakfast_2000, emoji_concepts, photos_captions),
)
SETS = {one.__name__.replace("_", "-"): one for one in BUILDERS}


def main() -> None:
    """Write the sets that are not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sets", default=",".join(SETS))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.sets.split(","):
        path = options.out / f"{name}.npz"
        if not path.exists():
            found: dict[str, Any] = {key: np.asarray(value) for key, value in SETS[name](options.data).items()}
            np.savez(path, **found)
            print(path, {key: value.shape for key, value in found.items()}, flush=True)


if __name__ == "__main__":
    main()
