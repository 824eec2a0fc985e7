"""The default against linear CCA with few pairs: 50 to 800 training pairs, ten draws each.

    python -m benchmarks.learning_curves sets --sets emoji,msvd,exercises --out studies/curves --figure curves.svg

The sets are the files of `benchmarks.protocol_sets`. Draw k takes the first pairs of re-split k + 2 and is measured on
the test part of that re-split: the mean of R@1, R@5 and R@10 in both directions. Linear CCA is chosen by four folds of
the same pairs and refitted on all of them. A finished draw is never repeated.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from statistics import mean, stdev

import torch

from crossclr import JointEmbedding
from crossclr.models.closed_form import LINEAR, ClosedForm, CrossFit
from crossclr.notices import CrossCLRWarning
from crossclr.protocol import PairedSet

PAIRS = (50, 100, 200, 400, 800)


def measure(data: PairedSet, pairs: int, draw: int) -> dict[str, float]:
    """Linear CCA and the default on one draw."""
    train, val, test = data.resplit(draw + 2)
    some = torch.cat([train, val])[:pairs]
    groups = None if data.groups is None else data.groups[some]
    rows = {name: values[some] for name, values in data.rows.items()}
    linear = ClosedForm(CrossFit(rows, groups=groups).search(LINEAR)[0].settings).fit(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CrossCLRWarning)
        space = JointEmbedding().fit(**data.at(some)).space_
    found = {
        "linear CCA": data.measure(linear.encode, linear.encode, test),
        "default": data.measure(space.queries, space.items, test),
    }
    return {name: (one["text->video"] + one["video->text"]) / 2 for name, one in found.items()}


def draw_figure(results: dict[str, dict[int, list[dict[str, float]]]], path: Path) -> None:
    """One panel for each set, with the standard error of the mean as a band."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(results), figsize=(3.3 * len(results), 2.9), layout="constrained")
    for axis, (name, by_pairs) in zip(axes, results.items(), strict=True):
        for method, colour in (("default", "#1f6f8b"), ("linear CCA", "#c0703a")):
            centre = [mean(one[method] for one in found) for found in by_pairs.values()]
            error = [stdev(one[method] for one in found) / len(found) ** 0.5 for found in by_pairs.values()]
            axis.plot(list(by_pairs), centre, marker="o", markersize=3.5, color=colour, label=method)
            low, high = ([c + sign * e for c, e in zip(centre, error, strict=True)] for sign in (-1, 1))
            axis.fill_between(list(by_pairs), low, high, color=colour, alpha=0.2, linewidth=0)
        axis.set_xscale("log")
        axis.set_xticks(list(by_pairs), [str(pairs) for pairs in by_pairs])
        axis.minorticks_off()
        axis.set(title=name, xlabel="training pairs")
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("mean recall, %")
    axes[0].legend(frameon=False)
    figure.savefig(path)


def main() -> None:
    """Run what is missing, print a table and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--sets", default="emoji,msvd,exercises")
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict[int, list[dict[str, float]]]] = {}
    for name in options.sets.split(","):
        data = PairedSet.read(options.data / f"{name}.npz")
        results[name] = {}
        for pairs in PAIRS:
            for number in range(options.draws):
                path = options.out / f"{name}-{pairs}-{number}.json"
                if not path.exists():
                    path.write_text(json.dumps(measure(data, pairs, number)))
                results[name].setdefault(pairs, []).append(json.loads(path.read_text()))
            found = results[name][pairs]
            gains = [one["default"] - one["linear CCA"] for one in found]
            error = stdev(gains) / len(gains) ** 0.5
            means = {method: f"{mean(one[method] for one in found):.1f}" for method in found[0]}
            print(name, pairs, means, f"gain {mean(gains):+.2f} +- {error:.2f}", flush=True)
    if options.figure:
        draw_figure(results, options.figure)


if __name__ == "__main__":
    main()
