"""Search with no, few and many captions: kernel CCA, names of classes alone, and both as `crossclr start` joins them.

    CROSSCLR_DATA=DATA python -m benchmarks zero_shot

DATA holds the folders `photos` and `exercises`. Five draws of 25 to all pairs of train and validation, a caption each,
are measured on the test split: the mean of R@1, R@5 and R@10 in both directions. Nothing is chosen on the test split.
"""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.learning_curves import draw_figure
from benchmarks.protocol_sets import segment_means, text_rows
from crossclr.extract import load
from crossclr.extract.training_set import choose_modalities, shared_space
from crossclr.models.choice import SpaceData, choose_space
from crossclr.models.cross_fit import query_recalls
from crossclr.models.space import SearchSpace
from crossclr.models.zero_shot import ZeroShot
from crossclr.notices import CrossCLRWarning

PAIRS, DRAWS = (25, 50, 100, 200, 400), 5
FIGURE = Path(__file__).parents[1] / "docs" / "images" / "zero-shot.svg"
COLOURS = {"both": "#0f766e", "kernel CCA": "#b45309", "names of classes": "#64748b"}
Set = tuple[dict[str, Tensor], dict[str, list[int]]]  # rows of both modalities, and places of the splits


def photos(data: Path) -> Set:
    """Photos with the first of their captions."""
    folder = data / "photos"
    with np.load(folder / "photos.npz") as file:
        video, keys = file["appearance"].astype(np.float32), [str(key) for key in file["keys"]]
    captions = json.loads((folder / "captions.json").read_text())
    return _named(video, text_rows({key: captions[key][:1] for key in keys}), keys, folder)


def exercises(data: Path) -> Set:
    """Animations of exercises with English instructions."""
    folder = data / "exercises"
    keys = json.loads((folder / "keys.json").read_text())
    with np.load(folder / "video.npz") as file:
        video = segment_means(file["values"], file["lengths"])
    english = json.loads((folder / "english.json").read_text())
    return _named(video, text_rows({key: english[key]["captions"] for key in keys}), keys, folder)


def _named(video: Any, text: Any, keys: list[str], folder: Path) -> Set:
    splits = json.loads((folder / "splits.json").read_text())
    place = {key: number for number, key in enumerate(keys)}
    rows = {"video": torch.from_numpy(video), "text": torch.from_numpy(text)}
    return rows, {name: [place[str(key)] for key in members] for name, members in splits.items()}


def recall(space: SearchSpace, rows: dict[str, Tensor], test: list[int]) -> float:
    """The mean of R@1, R@5 and R@10 in both directions, in percent."""
    found = []
    for query, item in (("text", "video"), ("video", "text")):
        queries = space.encode_queries(query, rows[query][test])
        found.append(query_recalls(queries @ space.encode_items(item, rows[item][test]).T))
    return 100 * float(torch.cat(found).mean())


def curves(
    rows: dict[str, Tensor], splits: dict[str, list[int]], shared: ZeroShot
) -> dict[int, list[dict[str, float]]]:
    """For each number of pairs, what each method finds in each draw."""
    dims = {name: values.shape[1] for name, values in rows.items()}
    pool, test = torch.tensor(splits["train"] + splits["val"]), splits["test"]
    alone = recall(SearchSpace(dims, None, zero_shot=shared), rows, test)
    chance = 100 * (1 + 5 + 10) / 3 / len(test)
    results = {0: [{"both": alone, "kernel CCA": chance, "names of classes": alone}] * DRAWS}
    for pairs in (*PAIRS, len(pool)):
        for draw in range(DRAWS):
            order = torch.randperm(len(pool), generator=torch.Generator().manual_seed(draw))
            some = pool[order[:pairs]]
            everywhere = {name: torch.ones(len(some), dtype=torch.bool) for name in rows}
            data = SpaceData({name: values[some] for name, values in rows.items()}, everywhere)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CrossCLRWarning)
                found = {
                    "both": recall(choose_space(data, seed=draw, zero_shot=shared), rows, test),
                    "kernel CCA": recall(choose_space(data, seed=draw), rows, test),
                    "names of classes": alone,
                }
            results.setdefault(pairs, []).append(found)
        print(
            f"    {pairs}: { {name: round(mean(one[name] for one in results[pairs]), 2) for name in COLOURS} }",
            flush=True,
        )
    return results


def run() -> dict[str, float]:
    """Measure both sets, draw the figure and return means and standard errors."""
    data = Path(os.environ.get("CROSSCLR_DATA", "../shared/data"))
    experts = [load("appearance"), load("text")]
    shared = shared_space(experts, choose_modalities(experts))
    assert shared is not None
    results, table = {}, {}
    for name, read in (("photos", photos), ("exercises", exercises)):
        results[name] = curves(*read(data), shared)
        for pairs, found in results[name].items():
            best = max(("kernel CCA", "names of classes"), key=lambda one: mean(draw[one] for draw in found))
            gains = [draw["both"] - draw[best] for draw in found]
            for method in COLOURS:
                table[f"{name}, {pairs} pairs: {method}"] = mean(draw[method] for draw in found)
            table[f"{name}, {pairs} pairs: gain over the better"] = mean(gains)
            table[f"{name}, {pairs} pairs: its standard error"] = stdev(gains) / len(gains) ** 0.5
    draw_figure(results, FIGURE, COLOURS)
    return table


if __name__ == "__main__":
    print(run())
