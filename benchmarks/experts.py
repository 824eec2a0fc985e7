"""Two experts of 447 videos, alone, joined and fused, with all rows and with 40% of one expert's rows removed.

    python -m benchmarks.experts DATA OUT

DATA holds the folder `vrd` with `text.npy`, one MiniLM row for each key. Every variant has the same budget: the same
random settings of learning rate, temperature, dropout and weight decay, of which the validation split chooses one, and
then five seeds on the test split. OUT keeps every result, so that an interrupted run continues.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from crossclr.evaluation import fuse
from crossclr.studies.trainings import Trainer, open_trainer
from crossclr.training import RunConfig
from crossclr.training.config_files import check_config

SEEDS, TRIALS, REMOVED = range(5), 4, 0.4
EXPERTS = {"appearance": 2048, "motion": 512}
SINGLES, FUSIONS = ("appearance", "motion"), ("concatenate", "mee", "ce", "mmt")
DIRECTION = "clip/text->video"
SHOWN = ("R@1", "R@10", "sR@1", "sR@10")


def prepare(data: Path, out: Path) -> None:
    """Write the arrays: experts, the second with gaps, and the same with zeros in the gaps."""
    folder = out / "arrays"
    if folder.exists():
        return
    folder.mkdir(parents=True)
    keys = json.loads((data / "vrd" / "keys.json").read_text())
    captions = json.loads((data / "vrd" / "captions.json").read_text())
    motion = np.load(data / "vrd" / "c3d.npy").astype(np.float32)
    np.save(folder / "appearance.npy", np.load(data / "vrd" / "resnet152.npy").astype(np.float32))
    np.save(folder / "motion.npy", motion)
    gone = np.random.default_rng(0).random(len(motion)) < REMOVED
    np.save(folder / "motion_gaps.npy", np.where(gone[:, None], np.nan, motion).astype(np.float32))
    np.save(folder / "motion_zeros.npy", np.where(gone[:, None], 0, motion).astype(np.float32))
    np.save(folder / "text.npy", np.load(data / "vrd" / "text.npy"))
    (folder / "keys.json").write_text(json.dumps(keys))
    (folder / "captions.json").write_text(json.dumps([captions[key][0] for key in keys]))
    (folder / "splits.json").write_text((data / "vrd" / "splits.json").read_text())


def config_of(out: Path, variant: str, gaps: bool, seed: int, settings: dict[str, float]) -> RunConfig:
    """The training of a variant."""
    motion = {"values": "motion_gaps.npy" if gaps else "motion.npy"}
    video: dict[str, Any] = {"values": "appearance.npy", "ids": "keys.json", "join": "separate"}
    encoder: dict[str, Any] = {"kind": "mlp", "dropout": settings["dropout"]}
    encoders: dict[str, Any] = {}
    if variant == "motion":
        video = {"values": "motion_zeros.npy" if gaps else "motion.npy", "ids": "keys.json"}
    elif variant != "appearance":
        video["also"] = [{**motion, "ids": "keys.json"}]
    if variant == "+":
        video["join"] = "resampled"
    if variant in FUSIONS:
        fusion = {"fusion": variant, "experts": EXPERTS, "dropout": settings["dropout"] / 2}
        encoders["video"] = {"kind": "experts", **fusion}
    values: dict[str, Any] = {
        "seed": seed,
        "data": {
            "kind": "arrays",
            "root": str(out / "arrays"),
            "modalities": {
                "video": video,
                "text": {"values": "text.npy", "ids": "keys.json", "texts": "captions.json"},
            },
            "splits": "splits.json",
        },
        "model": {"dim": 256, "encoder": encoder, "encoders": encoders},
        "loss": {"local": {"name": "crossclr", "temperature": settings["temperature"], "weight_scale": 0.02}},
        "optimiser": {
            "name": "adamw",
            "learning_rate": settings["learning_rate"],
            "betas": [0.9, 0.98],
            "epsilon": 1e-8,
            "weight_decay": settings["weight_decay"],
        },
        "schedule": {"name": "cosine", "warmup_epochs": 2},
        "training": {"epochs": 20, "batch_size": 100, "in_memory": True, "threads": 1},
        "validation": {"first_epoch": 19},
    }
    return check_config(values)


def draw_settings() -> list[dict[str, float]]:
    """The settings that every variant tries; the first are usual values."""
    rng = np.random.default_rng(0)
    found = [{"learning_rate": 1e-3, "temperature": 0.1, "dropout": 0.3, "weight_decay": 0.05}]
    for _ in range(TRIALS - 1):
        rate, temperature, decay = np.exp(rng.uniform(np.log([2e-4, 0.04, 0.01]), np.log([4e-3, 0.3, 0.3])))
        dropout = rng.uniform(0.0, 0.7)
        found.append({"learning_rate": rate, "temperature": temperature, "dropout": dropout, "weight_decay": decay})
    return [{name: float(value) for name, value in one.items()} for one in found]


class Results:
    """Results by training, in a file that grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.known: dict[str, Any] = dict(json.loads(line) for line in lines)

    def of(self, name: str, measure: Any) -> Any:
        """A result, measured if it is new."""
        if name not in self.known:
            self.known[name] = measure()
            with self.path.open("a") as file:
                file.write(json.dumps([name, self.known[name]]) + "\n")
        return self.known[name]


def scores(results: dict[str, Any]) -> dict[str, float]:
    """The metrics of text → video."""
    return {metric: results[DIRECTION][metric] for metric in SHOWN}


def tuned(results: Results, out: Path, variant: str, gaps: bool) -> dict[str, float]:
    """The settings that are best on the validation split."""
    values = []
    for settings in draw_settings():
        config = config_of(out, variant, gaps, 0, settings)
        config = config.model_copy(update={"splits": config.splits.model_copy(update={"test": None})})

        def measure(config: RunConfig = config) -> float:
            found = open_trainer(config).train(config).results["validation"]
            return float(np.mean([own[metric] for own in found.values() for metric in (*SHOWN, "nDCG")]))

        values.append(results.of(f"tune {variant} {gaps} {json.dumps(settings)}", measure))
    return draw_settings()[int(np.argmax(values))]


def tested(results: Results, out: Path, variant: str, gaps: bool) -> list[dict[str, float]]:
    """The metrics of five seeds on the test split."""

    def measure(seed: int) -> dict[str, float]:
        if variant != "⊕":
            config = config_of(out, variant, gaps, seed, tuned(results, out, variant, gaps))
            return scores(open_trainer(config).train(config).results["test"])
        parts, trainer = [], None
        for single in SINGLES:
            own_gaps = gaps and single == "motion"
            config = config_of(out, single, own_gaps, seed, tuned(results, out, single, own_gaps))
            own: Trainer = open_trainer(config)
            trainer = trainer or own
            parts.append(own.embed(own.train(config).model, "test"))
        assert trainer is not None
        return scores(trainer.measure(fuse(parts), "test"))

    return [results.of(f"test {variant} {gaps} {seed}", lambda seed=seed: measure(seed)) for seed in SEEDS]


def main() -> None:
    """Train everything and print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    prepare(arguments.data, arguments.out)
    results = Results(arguments.out / "results.jsonl")
    for gaps in (False, True):
        print(f"\n{'40% of the motion rows removed' if gaps else 'All rows'}\n\n| experts | {' | '.join(SHOWN)} |")
        print("|---" * (1 + len(SHOWN)) + "|")
        for variant in (*SINGLES, "+", "⊕", *FUSIONS):
            if gaps and variant == "appearance":
                continue
            found = tested(results, arguments.out, variant, gaps)
            cells = [[one[metric] for one in found] for metric in SHOWN]
            shown = " | ".join(f"{np.mean(cell):.1f} ± {np.std(cell, ddof=1):.1f}" for cell in cells)
            print(f"| {variant} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
