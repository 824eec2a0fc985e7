"""The grid of results as a picture: the darker a cell, the more queries find their sample among the first ten.

The model card of a run: training data, results, limits and licence.
"""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import yaml

from crossclr.evaluation.metrics import METRICS
from crossclr.evaluation.result_tables import GRID, grid_rows, is_grid, modalities_of
from crossclr.models.directions import Direction, direction_words
from crossclr.models.space import Facts
from crossclr.storage import write_file
from crossclr.storage.reading import read_json_object
from crossclr.training import Run, RunConfig

CELL, HEIGHT, LEFT, TOP = 96, 44, 130, 48  # pixels
METRIC = "R@10"


def grid_picture(results: Mapping[str, Mapping[str, float]]) -> str:
    """An SVG with a row for each query and a column for each searched modality.

    Example:
        >>> scores = {"R@10": 30.0}
        >>> grid_picture({"clip/text->video": scores, "clip/video->text": scores}).count("<rect")
        3
    """
    names = modalities_of(results)
    width, height = LEFT + CELL * len(names), TOP + HEIGHT * len(names) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="14" role="img" aria-label="{METRIC} of every pair of modalities">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="8" y="{TOP - 16}" fill="#555">query, {METRIC}</text>',
    ]
    for column, name in enumerate(names):
        x = LEFT + CELL * column
        parts.append(f'<text x="{x + CELL / 2}" y="{TOP - 16}" text-anchor="middle">→ {escape(_short(name))}</text>')
        parts.append(f'<text x="8" y="{TOP + HEIGHT * column + 27}">{escape(_short(name))}</text>')
        for row, query in enumerate(names):
            found = results.get(Direction("clip", query, name).key)
            if found is not None:
                y, share = TOP + HEIGHT * row, min(1.0, max(0.0, found[METRIC] / 100))
                ink, score = "#fff" if share > 0.55 else "#111", f"{found[METRIC]:.1f}"
                parts.append(
                    f'<rect x="{x + 1}" y="{y + 1}" width="{CELL - 2}" height="{HEIGHT - 2}" rx="4" '
                    f'fill="hsl(220 70% {96 - 56 * share:.0f}%)"/>'
                    f'<text x="{x + CELL / 2}" y="{y + 27}" text-anchor="middle" fill="{ink}">{score}</text>'
                )
    return "\n".join([*parts, "</svg>\n"])


def _short(name: str) -> str:
    return name if len(name) <= 12 else f"{name[:11]}…"


CARD, PICTURE = "README.md", "results.svg"


def write_card(run: Run | str | Path) -> Path:
    """Write ``README.md`` into a run folder and, with more than two modalities, ``results.svg``.

    Args:
        run: a run, or its folder. A run that is not finished gets a card without results.

    Returns:
        the file.
    """
    run = run if isinstance(run, Run) else Run.open(run)
    path = run.path / CARD
    write_file(path, model_card(run))
    measured = (run.results or {}).get("test") or {}
    if is_grid(measured):
        write_file(run.path / PICTURE, grid_picture(measured))
    return path


def model_card(run: Run) -> str:
    """The model card as Markdown."""
    config, results = run.config, run.results
    shape = run.shape
    environment = read_json_object(run.path / "environment.json")
    parts = [
        f"---\n{_metadata(config, results)}---",
        f"# {config.name}",
        config.about or "A joint embedding, trained with crossclr.",
        "## Data\n\n" + _data(config, shape),
        *([f"> **Warning.** {results['warning']}"] if results and results.get("warning") else []),
        "## Results\n\n" + _results(results),
        "## Training\n\n" + _training(config, environment),
        "## Limits\n\n" + _limits(config, shape),
        "## Licence\n\n" + _licence(config),
        "## Use\n\n" + _use(run.path.name),
    ]
    return "\n\n".join(parts) + "\n"


def _metadata(config: RunConfig, results: Mapping[str, Any] | None) -> str:
    """What the hub reads: library, tags, terms of the data and metrics, as YAML."""
    words = direction_words((results or {}).get("test") or {})
    metrics = [
        {"type": "recall", "name": f"{name}, {words[direction]}", "value": round(scores[name], 2)}
        for direction, scores in ((results or {}).get("test") or {}).items()
        for name in ("R@1", "R@10")
    ]
    task = {"type": "retrieval", "name": "cross-modal retrieval"}
    data = {"type": config.data.kind, "name": config.name, "split": config.splits.test or ""}
    found: dict[str, Any] = {
        "library_name": "crossclr",
        "license": "other" if config.data.licence() else "unknown",
        "tags": ["cross-modal-retrieval", "contrastive-learning", "crossclr", *config.data.modality_names],
        "model-index": [{"name": config.name, "results": [{"task": task, "dataset": data, "metrics": metrics}]}],
    }
    if not metrics:
        del found["model-index"]
    return yaml.safe_dump(found, sort_keys=False, allow_unicode=True)


def _data(config: RunConfig, shape: Mapping[str, Any]) -> str:
    dims = f"Channels of a row: {', '.join(f'{dim:,} ({name})' for name, dim in shape['dims'].items())}."
    levels = "Two levels: clips within videos." if shape["two_level"] else "One level: clips."
    splits = config.splits
    used = f"Trained on `{splits.train}`, epoch chosen on `{splits.validate_}`, measured on `{splits.test}`."
    return f"{config.data.describe()}\n{dims} {levels}\n{used}"


def _results(results: Mapping[str, Any] | None) -> str:
    if not results or not results.get("test"):
        return "The run is not finished or has no test split, so there are no results."
    others = {**(results.get("parts") or {}), "CCA on the same features": results.get("cca_baseline") or {}}
    lines = [f"| split `{results['split']}` | " + " | ".join(METRICS) + " |", "|---" * (len(METRICS) + 1) + "|"]
    explained = "R@K: percent of queries whose target is among the first K. MdR, MnR: median and mean rank (1 is best)."
    epoch = f"Best epoch: {results['best_epoch'] + 1} of {results['epochs']}. One seed ({results['seed']})."
    if results.get("space"):
        epoch = f"\n\n{_space(results['space'])}"
    if is_grid(results["test"]):
        names = modalities_of(results["test"])
        head = [f"split `{results['split']}`, {' / '.join(GRID)}", *(f"→ {name}" for name in names)]
        lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
        below = [(name, grid_rows(found)) for name, found in others.items() if found and found != results["test"]]
        for number, row in enumerate(grid_rows(results["test"])):
            lines.append("| " + " | ".join(row) + " |")
            lines += ["| " + " | ".join([f"— {name}", *rows[number][1:]]) + " |" for name, rows in below]
        picture = f"![R@10 of every pair of modalities]({PICTURE})"
        return "\n".join(lines) + f"\n\nA row for each query. {explained} {epoch}\n\n{picture}"
    words = direction_words(results["test"])
    for direction, metrics in results["test"].items():
        lines.append(_row(words[direction], metrics))
        lines += [_row(f"— {name}", found[direction]) for name, found in others.items() if direction in found]
    return "\n".join(lines) + f"\n\n{explained} {epoch}"


def _space(space: Mapping[str, Any]) -> str:
    """What the search space consists of, and what to expect on new samples."""
    facts = Facts.from_dict(space)
    table = [
        "| part | used with | score | gain |",
        "|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in facts.rows()),
    ]
    words = f"The search space. Settings: {facts.settings}."
    if facts.estimate is not None:
        words += f" On new samples, expect {facts.estimate}."
    return f"{words}\n\n" + "\n".join(table)


def _row(name: str, metrics: Mapping[str, float]) -> str:
    return f"| {name} | " + " | ".join(f"{metrics[metric]:.1f}" for metric in METRICS) + " |"


def _training(config: RunConfig, environment: Mapping[str, Any]) -> str:
    local = config.loss.local
    options = ", ".join(f"{name} {value}" for name, value in local.options.items())
    names = config.data.modality_names
    encoders = ", ".join(f"{config.model.encoder_of(name).kind} ({name})" for name in names)
    lines = [
        f"- loss: {local.name}" + (f" ({options})" if options else ""),
        f"- encoders: {encoders}, {config.model.output_dim or config.model.dim} channels",
        f"- optimiser: {config.optimiser.name}, learning rate {config.optimiser.learning_rate:g}, "
        f"batches of {config.training.batch_size}, {config.training.epochs} epochs, seed {config.seed}",
        f"- crossclr {environment['crossclr']}, torch {environment['packages']['torch']}",
        "- everything else: `config.yaml` and `environment.json` in this folder",
    ]
    return "\n".join(lines)


def _limits(config: RunConfig, shape: Mapping[str, Any]) -> str:
    channels = ", ".join(f"{dim:,} ({name})" for name, dim in shape["dims"].items())
    lines = [
        f"- It takes rows of exactly {channels} channels, from the same feature extractors as in training; rows of "
        "other extractors give meaningless vectors.",
        "- The results hold for one split of one data set; other data may differ. Ranks grow with the gallery.",
        "- Every query has a nearest item, even if nothing fits.",
        "- Biases of the data (topics, people, languages) are biases of the embedding.",
    ]
    return "\n".join([*lines, *(f"- {caveat}" for caveat in config.data.caveats())])


def _licence(config: RunConfig) -> str:
    return config.data.licence() or (
        "The config does not contain the licence of the data, and a model trained on the data may be bound by it. Look "
        "it up at the source of the data, and state it here before you share the run."
    )


def _use(folder: str) -> str:
    return (
        f'```sh\ncrossclr evaluate {folder}\ncrossclr index {folder}\ncrossclr search {folder} "..."\n'
        f"crossclr serve {folder}\n```"
    )
