"""`crossclr config`: list, show, copy."""

from pathlib import Path
from typing import Annotated

import typer

from crossclr.cli.options import Set

app = typer.Typer(no_args_is_help=True, add_completion=False, help="List, show and copy configs.")
Name = Annotated[str, typer.Argument(help="Name of a shipped config, or a YAML file.")]


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
def show(config: Name, set_: Set = None) -> None:
    """Print a whole config with its defaults and a description of every field.

    Examples:
        crossclr config show youcook2-100m

        crossclr config show emoji --set training.epochs=5
    """
    from crossclr.training import load_config
    from crossclr.training.config_files import describe_config

    typer.echo(describe_config(load_config(config, set_ or [])), nl=False)


@app.command()
def copy(
    config: Name,
    target: Annotated[Path | None, typer.Argument(help="File to write; default <name>.yaml.")] = None,
) -> None:
    """Copy a shipped config to a file of your own.

    Examples:
        crossclr config copy youcook2-100m my-config.yaml
    """
    from crossclr.storage import write_file
    from crossclr.training.config_files import config_text

    text = config_text(config)
    target = target or Path(f"{Path(config).stem}.yaml")
    if target.exists():
        raise FileExistsError(f"{target} already exists; choose another file")
    write_file(target, text)
    typer.echo(f"wrote {target}")
