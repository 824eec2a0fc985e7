"""The `crossclr` command.

Commands live in files of this folder and are imported when they are used, so that `crossclr --help` answers at once.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from crossclr.cli.allocator import keep_freed_memory
from crossclr.extras import MissingExtraError
from crossclr.notices import show_plainly

# name: module, its function or `app`, one line of help
COMMANDS: dict[str, tuple[str, str, str]] = {
    "demo": (
        "crossclr.cli.demo",
        "demo",
        "Train on the built-in set and search with it: the whole product in minutes.",
    ),
    "extract": ("crossclr.cli.extract", "extract", "Turn videos, pictures, sounds and sentences into features."),
    "train": ("crossclr.cli.train", "train", "Train a joint embedding from a config, with one or several seeds."),
    "evaluate": ("crossclr.cli.evaluate", "evaluate", "Measure retrieval of one run, or of several together."),
    "embed": ("crossclr.cli.evaluate", "embed", "Write the embeddings of a run to a file."),
    "experiment": ("crossclr.cli.experiment", "experiment", "Run an experiment of the paper on any data."),
    "report": ("crossclr.cli.experiment", "report", "Run every experiment and write them into one HTML report."),
    "index": ("crossclr.cli.search", "index", "Build the index that search and the service use."),
    "search": ("crossclr.cli.search", "search", "Find clips by a sentence, or the neighbours of an item."),
    "serve": ("crossclr.cli.search", "serve", "Start the search service and its page."),
    "export": ("crossclr.cli.search", "export", "Write both encoders as ONNX and check them."),
    "caption": (
        "crossclr.cli.caption",
        "app",
        "Write sentences and paragraphs from embeddings, and score them.",
    ),
    "card": ("crossclr.cli.card", "card", "Write the model card of a run."),
    "data": ("crossclr.cli.data", "app", "Check and describe a data set before training on it."),
    "config": ("crossclr.cli.config", "app", "List, show, copy and check configs."),
    "import-coot": ("crossclr.cli.import_coot", "import_coot", "Turn a COOT checkpoint into a model of this package."),
}


class LazyGroup(TyperGroup):
    """A group that knows the names of its commands, and imports one when it is run."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The commands whose file is there."""
        return [name for name, (module, _, _) in COMMANDS.items() if importlib.util.find_spec(module)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A name with a line of help: enough for listing and for suggestions."""
        if cmd_name not in self.list_commands(ctx):
            return None
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name][2])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The real command, for running it."""
        known = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in known:
            close = difflib.get_close_matches(args[0], known, n=1)
            ctx.fail(f"There is no command {args[0]!r}." + (f" Did you mean {close[0]!r}?" if close else ""))
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else load_command(name), rest


def load_command(name: str) -> Any:
    """Import a command or a group of commands."""
    module, attribute, _ = COMMANDS[name]
    found = getattr(importlib.import_module(module), attribute)
    if not isinstance(found, typer.Typer):
        application = typer.Typer(add_completion=False, rich_markup_mode="rich")
        application.command(name)(found)
        found = application
    command = typer.main.get_command(found)
    command.name = name
    return command


app = typer.Typer(
    cls=LazyGroup, no_args_is_help=True, add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from crossclr import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def crossclr(
    debug: bool = typer.Option(False, "--debug", help="Show the whole traceback of an error."),
    version: bool = typer.Option(
        False, "--version", help="Show the version and end.", is_eager=True, callback=_show_version
    ),
) -> None:
    """One embedding space for two modalities, learned from features you already have.

    Examples:
        crossclr demo

        crossclr config list

        crossclr data check my-config.yaml

        crossclr train my-config.yaml --set training.epochs=20
    """


def main() -> None:
    """Run the command line; an expected error is one line on stderr and exit code 2."""
    keep_freed_memory()
    show_plainly()
    try:
        app(prog_name="crossclr")
    except KeyboardInterrupt:
        sys.exit(130)
    except (ValueError, OSError, MissingExtraError) as error:
        if "--debug" in sys.argv[1:]:
            raise
        sys.stderr.write(f"error: {_one_line(error)}\n")
        sys.exit(2)


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.strerror}: {error.filename}"
    return " ".join(str(error).split()) or type(error).__name__
