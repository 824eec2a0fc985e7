"""The `crossclr` command.

A command lives in a file of this folder and is imported only when it runs, so that `crossclr --help` answers at once.
"""

import gc
import importlib
import sys
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from crossclr.allocator import keep_freed_memory
from crossclr.extras import explain_missing
from crossclr.notices import show_plainly
from crossclr.suggestions import suggest


@dataclass(frozen=True)
class Command:
    """Where a command lives."""

    place: str  # ``module:name`` of its function, or of a `typer.Typer` with several commands
    help: str  # one line for the list of commands


COMMANDS = {
    "demo": Command("crossclr.cli.demo:demo", "Fit, compare and search on the built-in set: a first look."),
    "start": Command("crossclr.cli.start:start", "From a folder of videos to the search page in one command."),
    "extract": Command("crossclr.cli.extract:extract", "Turn videos, images, sound and sentences into features."),
    "train": Command("crossclr.cli.train:train", "Train a joint embedding from a config."),
    "evaluate": Command("crossclr.cli.evaluate:evaluate", "Measure the retrieval of one run, or of several together."),
    "embed": Command("crossclr.cli.evaluate:embed", "Write the embeddings of a run to a file."),
    "index": Command("crossclr.cli.index:index", "Build the index for search and the service."),
    "search": Command("crossclr.cli.search:search", "Find clips by a sentence, a file or other clips."),
    "serve": Command("crossclr.cli.search:serve", "Start the search service and its page."),
    "export": Command("crossclr.cli.search:export", "Write the encoders as ONNX, or for sentence-transformers."),
    "caption": Command("crossclr.cli.caption:app", "Write captions from embeddings and score them."),
    "push": Command("crossclr.cli.hub:push", "Share a run by name through the hub of Hugging Face."),
    "pull": Command("crossclr.cli.hub:pull", "Download a shared run from the hub."),
    "config": Command("crossclr.cli.config:app", "List, show and copy configs."),
    "check": Command("crossclr.cli.check:check", "Check a config, its data, a run folder or an index."),
    "study": Command("crossclr.cli.study:app", "Compare losses on your data, or reproduce the paper."),
    "doctor": Command("crossclr.cli.doctor:doctor", "Show what is installed, what is missing and how to install it."),
    "import-coot": Command("crossclr.cli.import_coot:import_coot", "Convert a COOT checkpoint to a model."),
    "import-ce": Command("crossclr.cli.import_coot:import_ce", "Convert features of Collaborative Experts or MMT."),
}
HELP = {"help_option_names": ["-h", "--help"]}


class LazyGroup(TyperGroup):
    """A group that knows the names of its commands and imports a command when it runs."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A placeholder with the name and the line of help: enough to list commands."""
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name].help) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The real command, to run it."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            ctx.fail(f"There is no command {args[0]!r}; {suggest(args[0], COMMANDS)}")
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else load_command(name), rest


def load_command(name: str) -> Any:
    """Import a command or a group of commands."""
    module, _, attribute = COMMANDS[name].place.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    if not isinstance(found, typer.Typer):
        application = typer.Typer(add_completion=False, rich_markup_mode="rich")
        application.command(name, context_settings=HELP)(found)
        found = application
    else:
        found.info.context_settings, found._add_completion = HELP, False
    command = typer.main.get_command(found)
    command.name = name
    return command


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    context_settings=HELP,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from crossclr import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def crossclr(
    debug: bool = typer.Option(False, "--debug", help="Show the full traceback of an error."),
    version: bool = typer.Option(
        False, "--version", help="Show the version and exit.", is_eager=True, callback=_show_version
    ),
) -> None:
    """Learn one embedding space for video, text, sound and images.

    Examples:
        crossclr demo

        crossclr train emoji

        crossclr check my-config.yaml

        crossclr search runs/emoji "something to drink"
    """


def main() -> None:
    """Run the command line. An expected error becomes one line on stderr and exit code 2."""
    keep_freed_memory()
    gc.set_threshold(50_000)  # imports make many objects and no garbage; collecting takes a tenth of their time
    show_plainly()
    try:
        app(prog_name="crossclr")
    except KeyboardInterrupt:
        sys.exit(130)
    except (ValueError, OSError, ImportError) as error:
        shown = explain_missing(error) if type(error) is ModuleNotFoundError else error
        if "--debug" in sys.argv[1:] or shown is None or type(shown) is ImportError:
            raise
        sys.stderr.write(f"error: {_one_line(shown)}\n")
        sys.exit(2)
    except Exception as error:
        if "--debug" in sys.argv[1:]:
            raise
        sys.stderr.write(
            f"error: unexpected {type(error).__name__}: {_one_line(error)}. This is a fault of crossclr; please report "
            "it with the traceback that you get with: crossclr --debug ...\n"
        )
        sys.exit(70)


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.strerror}: {error.filename}"
    return " ".join(str(error).split()) or type(error).__name__
