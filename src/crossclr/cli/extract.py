"""`crossclr extract`: videos, images, sounds and sentences to features."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crossclr.cli.options import Captions, Device, duration, say
from crossclr.storage.yaml_files import parse_yaml

if TYPE_CHECKING:
    from rich.console import Console

    from crossclr.extract.extraction import Extraction
    from crossclr.extract.plan import Report
    from crossclr.extract.recordings import Omission

CLEAN, OMITTED = 0, 1
SHOWN, SIMILAR = 20, 3  # lines and files of one reason that the terminal shows; the manifest has all


def extract(
    source: Annotated[
        Path | None, typer.Argument(help="Folder of recordings, one recording, or a CSV or JSON file that names them.")
    ] = None,
    captions: Captions = None,
    experts: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=MODEL],...",
            help="Experts to run. NAME=MODEL uses another model: a name on the "
            "hub, a local folder, or an ONNX or TorchScript file. Default: appearance,text.",
        ),
    ] = None,
    modality: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=EXPERT",
            help="Give an expert, or several as EXPERT+EXPERT, a modality of its own; repeatable. Default: video, "
            "audio and text, by what an expert needs.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder to write.")] = Path("features"),
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="EXPERT.OPTION=VALUE", help="Set an option of an expert: appearance.rate=2."),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the experts, then exit.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the planned work, time and disk space, then exit.")
    ] = False,
    text_only: Annotated[
        bool,
        typer.Option(
            "--text-only",
            help="Only compute tokens of the sentences of a file, with MiniLM or one of --experts: COOT's "
            "meta_all.json, or JSON clip id -> {captions: [...]}.",
        ),
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first file or segment that cannot be used.")
    ] = False,
    split_shares: Annotated[
        str,
        typer.Option(metavar="NAME=SHARE,...", help="Share of each split, for recordings whose captions name none."),
    ] = "train=0.8,val=0.1,test=0.1",
    segments: Annotated[
        str | None,
        typer.Option(
            help="Cut recordings without sentences: scenes, or windows=10s/5s. Default: one clip each.",
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="Number type of the rows: float16 or float32.")] = "float16",
    device: Device = "cpu",
    jobs: Annotated[int | None, typer.Option(min=1, help="Recordings decoded at the same time.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads of the networks.")] = None,
) -> None:
    """Turn videos, images, sounds and sentences into training features.

    All experts share one pass over each file. To resume after an interruption, run the same command again. A file or
    segment that cannot be used is omitted and reported at the end.

    Exit code: 0 every file was extracted (a video may lack sound), 1 something was omitted, 2 nothing could be
    extracted (or --strict stopped), 130 Ctrl-C.

    Recommended models, with channels, parameters and the rough speed of one CPU core:

        text=sentence-transformers/all-mpnet-base-v2: 768, 109 M, 30 sentences/s. More accurate than the default.

        appearance=openai/clip-vit-base-patch32: 512, 88 M, 7 images/s. Trained with texts, unlike the default.

        appearance=google/siglip-base-patch16-224: 768, 93 M, 2 images/s. More accurate than CLIP.

        Defaults: text (MiniLM): 384, 23 M, 240 sentences/s. appearance (EfficientNet): 1280, 4.7 M, 27 images/s.

    Examples:
        crossclr extract --list

        crossclr extract videos/ --captions captions.json --out features/

        crossclr extract films/ --experts appearance,audio,text --dry-run

        crossclr extract videos/ --experts appearance=openai/clip-vit-base-patch32,text

        crossclr extract films/ --experts appearance,object,audio,text --modality things=object

        crossclr extract photos.csv --strict

        crossclr extract msvd/captions.json --text-only --out msvd/text_minilm
    """
    from rich.console import Console

    from crossclr.extract import Settings
    from crossclr.extract.extraction import Extraction
    from crossclr.extract.recordings import list_media
    from crossclr.extract.registry import load_experts

    console = Console()
    if list_:
        show_experts(console)
        return
    if source is None:
        raise ValueError("name a folder, a recording or a table of files; `crossclr extract --list` lists the experts")
    if text_only:
        _write_text_features(source, out, ",".join(experts or ["text"]))
        return
    specs = [part.strip() for part in ",".join(experts or ["appearance,text"]).split(",") if part.strip()]
    settings = Settings(strict, dtype, _shares(split_shares), jobs, threads, segments, _modalities(modality or []))
    listing = list_media(source, captions)
    with console.status("loading the experts", spinner="dots"):
        built = load_experts(specs, _options(set_ or [], specs, device))
    job = Extraction(listing, out, built, settings)
    if dry_run:
        show_plan(job, console)
    else:
        _run_and_exit(job, console)


def _write_text_features(captions: Path, out: Path, expert: str) -> None:
    """For COOT's meta file ``OUT.h5`` and its sentence splits, for captions a folder of arrays."""
    from crossclr.extract import TokenExpert
    from crossclr.extract.registry import load
    from crossclr.extract.token_features import write_token_features_captions, write_token_features_coot
    from crossclr.storage.reading import read_json

    content = read_json(captions)
    first = next(iter(content.values()), None) if isinstance(content, dict) else None
    if isinstance(first, dict) and "segments" in first:
        encoder = None if expert == "text" else load(expert)
        if not isinstance(encoder, TokenExpert | None):
            raise ValueError(f"{expert} is no expert for text; crossclr extract --list shows all experts")
        out = out if out.suffix == ".h5" else out.with_name(f"{out.name}.h5")
        long_texts = write_token_features_coot(captions, out, encoder)
    elif expert != "text":
        raise ValueError(f"{expert} encodes the paragraphs of a meta file; {captions} is a captions file")
    else:
        long_texts = write_token_features_captions(captions, out)
    if long_texts and long_texts.count:
        typer.echo(str(long_texts))
    typer.echo(f"wrote {out}")


def show_experts(console: Console) -> None:
    """Print what `--list` shows."""
    from rich.text import Text

    from crossclr.extract.registry import PRESETS, works_offline

    for name, preset in PRESETS.items():
        offline = works_offline(name)
        style = "green" if offline.startswith("yes") else "yellow"
        console.print(Text.assemble((f"{name:17}", "bold"), preset.about), soft_wrap=True)
        say(console, f"{'':17}needs {preset.kind}, {preset.dim:,} channels; model: {preset.model}")
        weights = f"{'':17}weights: {preset.source}, licence {preset.licence}; works offline here: "
        console.print(Text.assemble(weights, (offline, style)), soft_wrap=True)
    hub, file = (", ".join(name for name in PRESETS if PRESETS[name].builder(kind)) for kind in ("hub", "file"))
    say(console, f"NAME=MODEL uses another model: a name on the hub or a folder ({hub}), or a file ({file}).")


def show_plan(job: Extraction, console: Console) -> None:
    """Print what `--dry-run` shows."""
    from rich.filesize import decimal
    from rich.table import Table

    from crossclr.extract.plan import plan_extraction

    with console.status("reading headers and measuring", spinner="dots"):
        plan = plan_extraction(job)
    table = Table()
    for head in ("expert", "model", "rows", "channels", "bytes", "network time"):
        table.add_column(head, overflow="fold", no_wrap=head not in ("model", "network time"))
    for share, expert in zip(plan.shares, job.experts, strict=True):
        table.add_row(
            share.expert,
            expert.model,
            f"{share.rows:,}",
            f"{expert.dim:,}",
            decimal(share.bytes),
            duration(share.seconds),
        )
    console.print(table)
    _show_problems(plan.problems, "will be omitted", console, "")
    hours = f"{plan.hours:.1f} hours" if plan.hours >= 1 else f"{plan.hours * 60:.1f} minutes"
    say(console, f"{plan.recordings} files to encode ({hours}), {plan.finished} already finished")
    say(
        console,
        f"about {duration(plan.seconds)} (decoding {duration(plan.decoding)}, at the same time as the networks)",
    )
    say(console, f"{decimal(plan.bytes)} in {job.out}; nothing was written")


def show_report(report: Report, console: Console) -> None:
    """Print the summary and the next command."""
    show_problems(report, console)
    if report.unused:
        some = ", ".join(report.unused[:3]) + (", ..." if len(report.unused) > 3 else "")
        say(console, f"{len(report.unused)} files are not named in the captions: {some}")
    for name, long_texts in report.long_texts.items():
        say(console, f"{name}: {long_texts}")
    rows = ", ".join(f"{name} {count:,}" for name, count in report.rows.items())
    show_files(report, console)
    say(console, f"rows: {rows}")
    say(console, f"written to {report.out}")
    if report.config is None:
        say(console, "training needs a second modality: add --captions, or two experts such as appearance,audio")
        return
    say(console, f"check it: crossclr check {report.out}")
    say(console, f"next: crossclr train {report.config}")


def show_files(report: Report, console: Console) -> None:
    """Print how many files there are, and how many of them this run decoded."""
    kept = f" ({report.done} decoded now, {report.kept} already finished)" if report.kept else ""
    say(console, f"{report.done + report.kept} files{kept}, {report.datapoints} datapoints, {report.clips} clips")


def show_problems(report: Report, console: Console) -> None:
    """Print what was omitted, the faults first."""
    listed = f"; {report.out / 'manifest.json'} lists all"
    _show_problems([problem for problem in report.problems if not problem.minor], "omitted", console, listed)
    _show_problems([problem for problem in report.problems if problem.minor], "note", console, listed)


def _show_problems(problems: Sequence[Omission], word: str, console: Console, listed: str) -> None:
    """One line for each file, or one for each reason that many files share."""
    names: dict[str, list[str]] = {}
    for problem in problems:
        names.setdefault(problem.what, []).append(problem.name)
    lines = []
    for what, found in names.items():
        if len(found) <= SIMILAR:
            lines += [f"{word}: {name}: {what}" for name in found]
        else:
            lines.append(f"{word}: {len(found)} files, such as {', '.join(found[:2])}: {what}")
    for line in lines[:SHOWN]:
        say(console, line)
    if len(lines) > SHOWN:
        say(console, f"... and {len(lines) - SHOWN} more{listed}")


def _run_and_exit(job: Extraction, console: Console) -> None:
    try:
        report = _run(job, console)
    except KeyboardInterrupt:
        say(console, "stopped; run the same command again to resume")
        raise typer.Exit(130) from None
    show_report(report, console)
    raise typer.Exit(OMITTED if any(not problem.minor for problem in report.problems) else CLEAN)


def _run(job: Extraction, console: Console) -> Report:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    from crossclr.extract.plan import plan_extraction

    class Speed(ProgressColumn):
        """Rows per second."""

        def render(self, task: Any) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:,.1f} rows/s")

    with console.status("reading headers", spinner="dots"):
        plan = plan_extraction(job, measure=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Speed(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        tasks = {share.expert: bar.add_task(share.expert, total=share.rows) for share in plan.shares}
        job.progress = lambda name, rows: bar.advance(tasks[name], rows)
        return job.run()


def _options(values: list[str], specs: list[str], device: str) -> dict[str, dict[str, Any]]:
    from crossclr.extract.registry import Spec

    options: dict[str, dict[str, Any]] = {
        Spec.parse(spec).label: {} if device == "cpu" else {"device": device} for spec in specs
    }
    for value in values:
        place, equals, content = value.partition("=")
        label, dot, option = place.partition(".")
        if not equals or not dot:
            raise ValueError(f"--set must look like expert.option=value, such as appearance.rate=2; got {value!r}")
        options.setdefault(label, {})[option] = parse_yaml(content, f"--set {value}")
    return options


def _modalities(values: list[str]) -> dict[str, list[str]]:
    found = {}
    for value in values:
        name, equals, experts = value.partition("=")
        if not (equals and name and experts):
            raise ValueError(f"--modality must look like NAME=EXPERT, such as things=object; got {value!r}")
        found[name.strip()] = [one.strip() for one in experts.split("+")]
    return found


def _shares(text: str) -> dict[str, float]:
    try:
        pairs = [part.split("=") for part in text.split(",")]
        return {name.strip(): float(share) for name, share in pairs}
    except ValueError:
        raise ValueError(f"--split-shares must look like train=0.8,val=0.1,test=0.1; got {text!r}") from None
