"""`crossclr config`: list, show, copy, validate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False, help="List, show, copy and check configs.")
Name = Annotated[str, typer.Argument(help="A shipped config's name, or a YAML file.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a field; may be given several times.")
]


@app.command("list")
def list_() -> None:
    """Show the configs that ship with the package.

    Examples:
        crossclr config list
    """
    from crossclr.training import config_names, load_config

    names = config_names()
    width = max(map(len, names))
    for name in names:
        typer.echo(f"{name:{width}}  {load_config(name).about}")


@app.command()
def show(config: Name, set_: Overrides = None) -> None:
    """Print a whole config, defaults included, with a sentence for every field.

    Examples:
        crossclr config show youcook2-100m

        crossclr config show emoji --set training.epochs=5
    """
    from crossclr.training import describe_config, load_config

    typer.echo(describe_config(load_config(config, set_ or [])), nl=False)


@app.command()
def copy(
    config: Name, target: Annotated[Path | None, typer.Argument(help="Where to; default <name>.yaml here.")] = None
) -> None:
    """Copy a shipped config to a file of your own.

    Examples:
        crossclr config copy youcook2-100m my-config.yaml
    """
    from crossclr.training.config.config_files import config_text

    text = config_text(config)
    target = target or Path(f"{Path(config).stem}.yaml")
    if target.exists():
        raise FileExistsError(f"{target} already exists; name another file")
    target.write_text(text, encoding="utf-8")
    typer.echo(f"wrote {target}")


@app.command()
def validate(
    configs: Annotated[list[str], typer.Argument(help="Names of shipped configs, or YAML files.")],
    set_: Overrides = None,
) -> None:
    """Check configs without running anything; every fault is named with its place.

    Examples:
        crossclr config validate my-config.yaml

        crossclr config validate emoji --set loss.local.temperature=0.05
    """
    from crossclr.training import ConfigError, load_config

    faults = 0
    for config in configs:
        try:
            load_config(config, set_ or [])
        except ConfigError as error:
            faults += 1
            typer.echo(f"error: {error}", err=True)
        else:
            typer.echo(f"{config}: good")
    if faults:
        raise typer.Exit(2)
