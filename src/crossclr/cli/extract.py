"""`crossclr extract`: from videos, pictures, sounds and sentences to features."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from crossclr.experts.contract import Expert
    from crossclr.experts.extraction.extract import Extraction, Report
    from crossclr.experts.extraction.plan import Plan

CLEAN, LEFT_OUT = 0, 1
SHOWN = 50  # problems that the terminal shows; the manifest has all


def extract(
    source: Annotated[
        Path | None,
        typer.Argument(help="Folder of recordings, one recording, or a CSV or JSON file that names them."),
    ] = None,
    captions: Annotated[
        Path | None, typer.Option(help="Sentences: JSON or CSV. Without it, subtitles beside a video are taken.")
    ] = None,
    experts: Annotated[
        str,
        typer.Option(
            help="Experts with commas; name:model takes another model (hub name, folder, .onnx, TorchScript)."
        ),
    ] = "appearance,text",
    out: Annotated[Path, typer.Option(help="Folder to write.")] = Path("features"),
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="EXPERT.OPTION=VALUE", help="Option of an expert, as appearance.rate=2."),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the experts and end.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, how long and how many bytes.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first file or segment that is left out.")
    ] = False,
    splits: Annotated[str, typer.Option(help="Shares of the splits, where captions name none.")] = (
        "train=0.8,val=0.1,test=0.1"
    ),
    dtype: Annotated[str, typer.Option(help="Number type of the rows: float16 or float32.")] = "float16",
    device: Annotated[str, typer.Option(help="Where the networks run: cpu, cuda, cuda:1, mps.")] = "cpu",
    workers: Annotated[int | None, typer.Option(min=1, help="Recordings decoded at once.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads of the networks.")] = None,
) -> None:
    """Turn videos, pictures, sounds and sentences into features that `crossclr train` reads.

    One pass over each file for all experts. Stopped work goes on where it ended when the same command is given again.
    A file or segment that cannot be used is left out and told at the end.

    Exit code: 0 all is there, 1 something was left out, 2 nothing could be done (or --strict stopped), 130 Ctrl-C.

    Examples:
        crossclr extract --list

        crossclr extract videos/ --captions captions.json --experts appearance,text --out features/

        crossclr extract films/ --experts appearance,audio,text --dry-run

        crossclr extract videos/ --experts appearance:google/vit-base-patch16-224,text --set appearance.rate=2

        crossclr extract photos.csv --strict
    """
    from rich.console import Console

    from crossclr.experts.extraction.extract import Extraction, Settings, load_experts
    from crossclr.experts.extraction.recordings import list_media

    console = Console()
    if list_:
        show_experts(console)
        return
    if source is None:
        raise ValueError("name a folder, a recording or a table of files; `crossclr extract --list` lists the experts")
    specs = [part.strip() for part in experts.split(",") if part.strip()]
    settings = Settings(strict, dtype, _shares(splits), workers, threads)
    listing = list_media(source, captions)
    with console.status("loading the experts", spinner="dots"):
        built = load_experts(specs, _options(set_ or [], specs, device))
    job = Extraction(listing, out, built, settings)
    if dry_run:
        show_plan(job, console)
        return
    try:
        report = _run(job, built, console)
    except KeyboardInterrupt:
        _say(console, "stopped; the same command goes on where it ended")
        raise typer.Exit(130) from None
    show_report(report, console)
    raise typer.Exit(LEFT_OUT if report.problems else CLEAN)


def show_experts(console: Console) -> None:
    """What `--list` says."""
    from rich.text import Text

    from crossclr.experts.registry import PRESETS, works_offline

    for name, preset in PRESETS.items():
        offline = works_offline(name)
        style = "green" if offline.startswith("yes") else "yellow"
        console.print(Text.assemble((f"{name:17}", "bold"), preset.about), soft_wrap=True)
        _say(console, f"{'':17}needs {preset.kind}, {preset.dim:,} channels; model: {preset.model}")
        weights = f"{'':17}weights: {preset.source}, licence {preset.licence}; works offline here: "
        console.print(Text.assemble(weights, (offline, style)), soft_wrap=True)
    _say(
        console,
        "name:model takes another model: a hub name or a folder (text, bert-paper, appearance, scene, action, object, "
        "audio), or an ONNX or TorchScript file (appearance, scene, action and the presets of the paper).",
    )


def show_plan(job: Extraction, console: Console) -> None:
    """What `--dry-run` says."""
    from rich.table import Table

    from crossclr.experts.extraction.plan import plan_extraction

    with console.status("reading headers and measuring", spinner="dots"):
        plan = plan_extraction(job)
    table = Table("expert", "model", "rows", "channels", "bytes", "time of its network")
    for share, expert in zip(plan.shares, job.experts, strict=True):
        table.add_row(
            share.expert, expert.model, f"{share.rows:,}", f"{expert.dim:,}", _bytes(share.bytes), _time(share.seconds)
        )
    console.print(table)
    for problem in plan.problems[:SHOWN]:
        _say(console, f"will be left out: {problem}")
    hours = f"{plan.hours:.1f} hours" if plan.hours >= 1 else f"{plan.hours * 60:.1f} minutes"
    _say(console, f"{plan.recordings} files to do ({hours}), {plan.finished} finished before")
    _say(console, f"about {_time(plan.seconds)} (decoding {_time(plan.decoding)}, beside the networks)")
    _say(console, f"{_bytes(plan.bytes)} in {job.out}; nothing was written")


def show_report(report: Report, console: Console) -> None:
    """The summary, and the command that comes next."""
    for problem in report.problems[:SHOWN]:
        _say(console, f"left out: {problem}")
    if len(report.problems) > SHOWN:
        _say(console, f"... and {len(report.problems) - SHOWN} more; {report.out / 'manifest.json'} has all")
    if report.unused:
        some = ", ".join(report.unused[:3]) + (", ..." if len(report.unused) > 3 else "")
        _say(console, f"{len(report.unused)} files are not named by the captions: {some}")
    rows = ", ".join(f"{name} {count:,}" for name, count in report.rows.items())
    kept = f" ({report.kept} of them finished before)" if report.kept else ""
    _say(console, f"{report.done + report.kept} files{kept}, {report.datapoints} datapoints, {report.clips} clips")
    _say(console, f"rows: {rows}")
    _say(console, f"written to {report.out}")
    if report.config is None:
        _say(console, "to train, a second modality is needed: give --captions, or two experts such as appearance,audio")
        return
    _say(console, f"look at it: crossclr data check {report.out}")
    _say(console, f"next: crossclr train {report.config}")


def _run(job: Extraction, experts: list[Expert], console: Console) -> Report:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    from crossclr.experts.extraction.plan import plan_extraction

    class Speed(ProgressColumn):
        """Rows a second."""

        def render(self, task: Any) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:,.1f} rows/s")

    with console.status("reading headers", spinner="dots"):
        plan: Plan = plan_extraction(job, measure=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Speed(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        tasks = {share.expert: bar.add_task(share.expert, total=share.rows) for share in plan.shares}
        job.progress = lambda name, rows: bar.advance(tasks[name], rows)
        return job.run()


def _options(values: list[str], specs: list[str], device: str) -> dict[str, dict[str, Any]]:
    import yaml

    from crossclr.experts.registry import split_spec

    options: dict[str, dict[str, Any]] = {split_spec(spec)[0]: {} for spec in specs}
    if device != "cpu":
        options = {label: {"device": device} for label in options}
    for value in values:
        place, equals, content = value.partition("=")
        label, dot, option = place.partition(".")
        if not equals or not dot:
            raise ValueError(f"--set looks like expert.option=value, as appearance.rate=2; got {value!r}")
        options.setdefault(label, {})[option] = yaml.safe_load(content)
    return options


def _shares(text: str) -> dict[str, float]:
    try:
        pairs = [part.split("=") for part in text.split(",")]
        return {name.strip(): float(share) for name, share in pairs}
    except ValueError:
        raise ValueError(f"--splits looks like train=0.8,val=0.1,test=0.1; got {text!r}") from None


def _bytes(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1000
    return ""


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
