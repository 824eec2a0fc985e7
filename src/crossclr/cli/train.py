"""`crossclr train`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def train(
    config: Annotated[str | None, typer.Argument(help="A shipped config's name, or a YAML file.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a field of the config; may be given several times."),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Changes that have proven good, by name (fitted); --set comes after them.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Several seeds, as 0,1,2: a folder each, and a summary.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; default runs/<name of the config>.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue this run folder.")] = None,
    devices: Annotated[int | None, typer.Option(min=1, help="Devices of a machine, each with a process.")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Machines; MASTER_ADDR, MASTER_PORT, NODE_RANK set.")] = None,
    baseline: Annotated[bool, typer.Option(help="Show the CCA baseline beside the final figures.")] = True,
) -> None:
    """Train a joint embedding, choose the best epoch, evaluate it.

    Examples:
        crossclr train emoji

        crossclr train youcook2-100m --set data.root=/data/youcook2 --out runs/first

        crossclr train emoji --set "loss.local={name: clip, temperature: 0.07}" --seeds 0,1,2

        crossclr train emoji --recipe fitted

        crossclr train --resume runs/first

        crossclr train youcook2-100m --devices 2

    Under torchrun, which starts the processes anew when one dies, the run goes on from its last checkpoint:

        torchrun --nproc-per-node 2 --max-restarts 3 -m crossclr train youcook2-100m
    """
    from rich.console import Console

    from crossclr import api
    from crossclr.cli.seeds import parse_seeds
    from crossclr.training import Interrupted, load_config
    from crossclr.training.config.recipes import recipe_changes

    if (config is None) == (resume is None):
        raise ValueError("name a config to train, or a run folder to continue with --resume (one of the two)")
    if resume is not None and (set_ or recipe or seeds or out or devices or nodes):
        raise ValueError(
            "--resume continues a run as it was begun; it goes without --set, --recipe, --seeds, --out, --devices and "
            "--nodes"
        )
    changes = list(set_ or [])
    if recipe is not None:
        found = recipe_changes(recipe, load_config(config or "", changes))
        changes = [f"{key}={json.dumps(value)}" for key, value in found.items()] + changes
    changes += [f"training.{name}={count}" for name, count in (("devices", devices), ("nodes", nodes)) if count]
    console = Console()
    try:
        if resume is not None:
            api.resume(resume, baseline=baseline, console=console)
        elif seeds is not None:
            api.train_seeds(config or "", parse_seeds(seeds), changes, out=out, baseline=baseline, console=console)
        else:
            api.train(config or "", changes, out=out, baseline=baseline, console=console)
    except Interrupted as stopped:
        console.print(
            f"stopped; continue with: crossclr train --resume {stopped}", highlight=False, markup=False, soft_wrap=True
        )
        raise typer.Exit(130) from None
