"""`crossclr push` and `crossclr pull`: share a run by name through the hub of Hugging Face."""

from pathlib import Path
from typing import Annotated

import typer

from crossclr.cli.options import RunFolder

Name = Annotated[str, typer.Argument(metavar="NAME", help="Model on the hub: owner/name.")]


def push(
    run: RunFolder,
    name: Name,
    private: Annotated[bool, typer.Option("--private", help="Only you see a new repository.")] = False,
) -> None:
    """Upload weights, config, results and model card of a finished run.

    Data, training state and the paths of your machine are not uploaded. The token is the one that `hf auth login`
    stored, or HF_TOKEN. Needs crossclr[hub].

    Examples:
        crossclr push runs/emoji me/emoji-clips
    """
    from crossclr.training import Run

    typer.echo(Run.open(run).push_to_hub(name, private=private))


def pull(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Model on the hub, owner/name, or a folder.")],
    out: Annotated[Path | None, typer.Option(help="Run folder to write; default: runs/ and the model's name.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit; default: the newest.")] = None,
) -> None:
    """Download a shared run into a run folder.

    Only safetensors, JSON, YAML and the model card are downloaded. A repository that is damaged, foreign or holds files
    that can run code is refused. To evaluate or index it, put its data into the working directory, or name the folder
    of the data in CROSSCLR_DATA. Needs crossclr[hub].

    Examples:
        crossclr pull me/emoji-clips

        crossclr pull me/emoji-clips --revision v2 --out runs/theirs
    """
    from crossclr.training.sharing import pull_run

    path = pull_run(name, out or Path("runs") / Path(name).name, revision=revision)
    typer.echo(f"{path}: search in it with: crossclr index {path}")
