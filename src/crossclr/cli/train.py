"""`crossclr train`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from crossclr.cli.options import Set, parse_seeds, resumable


def train(
    config: Annotated[str | None, typer.Argument(help="A shipped config's name, or a YAML file.")] = None,
    set_: Set = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="best (kernel CCA, with trained encoders if they help), closed-form (no training), or paper (encoders "
            "trained with CrossCLR). Default: that of the config."
        ),
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Train several seeds, as in 0,1,2, and summarise them.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default runs/<name of the config>.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Resume this run folder.")] = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda", "mps"] | None, typer.Option(help="Where to train; default: that of the config.")
    ] = None,
    devices: Annotated[int | None, typer.Option(min=1, help="Devices per machine, one process each.")] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Machines; needs MASTER_ADDR, MASTER_PORT, NODE_RANK.")
    ] = None,
    baseline: Annotated[bool, typer.Option(help="Show the CCA baseline next to the final metrics.")] = True,
) -> None:
    """Train a joint embedding and evaluate it on the test split.

    Examples:
        crossclr train emoji

        crossclr train youcook2-100m --set data.root=/data/youcook2 --out runs/first

        crossclr train emoji --recipe paper --seeds 0,1,2

        crossclr train emoji --recipe paper --set "loss.local={name: clip, temperature: 0.07}"

        crossclr train --resume runs/first

        crossclr train youcook2-100m --devices 2

    torchrun restarts the processes when one dies; the run then resumes from its last checkpoint:

        torchrun --nproc-per-node 2 --max-restarts 3 -m crossclr train youcook2-100m
    """
    from rich.console import Console

    from crossclr import api

    if (config is None) == (resume is None):
        raise ValueError("give either a config to train or a run folder to resume with --resume")
    if resume is not None and (set_ or recipe or seeds or out or device or devices or nodes):
        raise ValueError(
            "--resume keeps the settings of the run; it cannot be combined with --set, --recipe, --seeds, --out, "
            "--device, --devices or --nodes"
        )
    changes = [*([] if recipe is None else [f"recipe={recipe}"]), *(set_ or [])]
    given = (("accelerator", device), ("devices", devices), ("nodes", nodes))
    changes += [f"training.{name}={count}" for name, count in given if count]
    console = Console()
    with resumable("crossclr train --resume"):
        if resume is not None:
            api.resume(resume, baseline=baseline, console=console)
        elif seeds is not None:
            api.train_seeds(
                config or "", parse_seeds(seeds) or [], changes, out=out, baseline=baseline, console=console
            )
        else:
            api.train(config or "", changes, out=out, baseline=baseline, console=console)
