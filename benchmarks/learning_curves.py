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
from collections.abc import Mapping
from pathlib import Path
from statistics import mean, stdev

import torch

from benchmarks.protocol import PairedSet
from crossclr import JointEmbedding
from crossclr.models.closed_form import ClosedForm, choose_linear
from crossclr.models.cross_fit import assign_folds
from crossclr.notices import CrossCLRWarning

PAIRS = (50, 100, 200, 400, 800)
COLOURS = {"default": "#0f766e", "linear CCA": "#b45309"}


def measure(data: PairedSet, pairs: int, draw: int) -> dict[str, float]:
    """Linear CCA and the default on one draw."""
    train, val, test = data.resplit(draw + 2)
    some = torch.cat([train, val])[:pairs]
    groups = None if data.groups is None else data.groups[some]
    rows = {name: values[some] for name, values in data.rows.items()}
    linear = ClosedForm(choose_linear(rows, assign_folds(len(some), 4, groups))).fit(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CrossCLRWarning)
        space = JointEmbedding().fit(**data.at(some)).space_
    found = {
        "linear CCA": data.measure(linear.encode, linear.encode, test),
        "default": data.measure(space.encode_queries, space.encode_items, test),
    }
    return {name: (one["text->video"] + one["video->text"]) / 2 for name, one in found.items()}


def draw_figure(
    results: dict[str, dict[int, list[dict[str, float]]]], path: Path, colours: Mapping[str, str] = COLOURS
) -> None:
    """An SVG with one panel for each set; bands are the standard error of the mean."""
    wide, high, gap = 220, 150, 50
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {len(results) * (wide + gap) + 10} {high + 75}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    for number, (name, by_pairs) in enumerate(results.items()):
        top = 10 * (1 + max(one[method] for found in by_pairs.values() for one in found for method in one) // 10)
        left = 40 + number * (wide + gap)
        across = {pairs: left + wide * place / (len(by_pairs) - 1) for place, pairs in enumerate(by_pairs)}
        lines.append(f'<text x="{left}" y="18" font-weight="600">{name}: mean recall, %</text>')
        for tick in range(0, int(top) + 1, 20 if top > 40 else 10):
            y = 30 + high * (1 - tick / top)
            lines.append(f'<line x1="{left}" x2="{left + wide}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e2e8f0"/>')
            lines.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#475569">{tick}</text>')
        for pairs, x in across.items():
            lines.append(f'<text x="{x:.1f}" y="{high + 46}" text-anchor="middle" fill="#475569">{pairs}</text>')
        for place, (method, colour) in enumerate(colours.items()):
            centre: list[str] = []
            low: list[str] = []
            above: list[str] = []
            for pairs, found in by_pairs.items():
                values = [one[method] for one in found]
                error = stdev(values) / len(values) ** 0.5
                for line, value in ((centre, 0.0), (low, -error), (above, error)):
                    line.append(f"{across[pairs]:.1f},{30 + high * (1 - (mean(values) + value) / top):.1f}")
            band = " ".join(low + above[::-1])
            lines.append(f'<polygon points="{band}" fill="{colour}" fill-opacity="0.2"/>')
            lines.append(f'<polyline points="{" ".join(centre)}" fill="none" stroke="{colour}" stroke-width="2"/>')
            if not number:
                x = left + 110 * place
                lines.append(f'<text x="{x}" y="{high + 66}" fill="{colour}" font-weight="600">{method}</text>')
    path.write_text("\n".join([*lines, "</svg>"]) + "\n", encoding="utf-8")


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
