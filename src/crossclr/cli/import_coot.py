"""`crossclr import-coot` and `import-ce`: use checkpoints and features of other projects."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from crossclr.cli.options import Set


def import_coot(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT.pth", help="COOT's model file.")],
    out: Annotated[Path, typer.Option(help="The run folder to write; it must not exist.")],
    config: Annotated[
        str, typer.Option(help="Name of a shipped config, or a YAML file, that describes the model's data.")
    ] = "youcook2-100m",
    set_: Set = None,
    heads: Annotated[
        int | None,
        typer.Option(min=1, help="Attention heads, which a checkpoint does not contain; 8 for COOT's models."),
    ] = None,
    global_heads: Annotated[int | None, typer.Option(min=1, help="Attention heads of the global networks.")] = None,
    pool: Annotated[
        Literal["coot_sum", "mean"],
        typer.Option(
            help="How to pool clips. coot_sum: COOT's numbers; mean: embeddings that do not depend on the batch."
        ),
    ] = "coot_sum",
) -> None:
    """Turn a COOT checkpoint into a run folder that evaluate and embed can use.

    Only tensors are read from the file, never code.

    Examples:
        crossclr import-coot yc2_100m_coot.pth --out runs/coot

        crossclr import-coot anet_coot.pth --out runs/coot-anet --config activitynet --pool mean
    """
    from crossclr.data import DataError
    from crossclr.models.coot import import_coot as build
    from crossclr.models.coot import read_coot
    from crossclr.training.checkpoint import save_checkpoint
    from crossclr.training.config_files import load_config
    from crossclr.training.run import Run, shape_of

    if out.exists():
        raise FileExistsError(f"{out} already exists; choose another --out")
    run_config = load_config(config, set_ or [])
    model = build(read_coot(checkpoint), heads=heads, global_pool=pool, global_heads=global_heads)
    note = ""
    try:
        run_config = run_config.model_copy(update={"data": run_config.data.with_absolute_paths()})
    except DataError as error:  # the weights can be imported before the features are available
        note = f"note: its data is missing: {error}"
    run_config = run_config.model_copy(update={"model": model.config})
    with Run.creating(out, run_config, shape_of(model)) as folder:
        save_checkpoint(folder / "best", model.state_dict(), {"imported_from": checkpoint.name})
    if note:
        typer.echo(note, err=True)
    count = sum(parameter.numel() for parameter in model.parameters())
    channels = " and ".join(map(str, model.dims.values()))
    typer.echo(f"{out}: {count:,} parameters, input {channels}, embeddings {model.config.dim}")


def import_ce(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Collaborative Experts' pickles or MMT's HDF5 files.")
    ],
    out: Annotated[Path, typer.Option(help="The data folder to write; it must not exist.")],
) -> None:
    """Turn features of Collaborative Experts or MMT into a data folder.

    Pickles are read by a reader that knows numbers, text and arrays only; nothing in them is executed.

    Examples:
        crossclr import-ce MSRVTT/structured-symlinks --out msrvtt
    """
    from crossclr.data.ce_files import import_ce as write

    if out.exists():
        raise FileExistsError(f"{out} already exists; choose another --out")
    channels = ", ".join(f"{name} {width}" for name, width in write(folder, out).items())
    typer.echo(f"{out}: {channels}\nnext: crossclr extract {out / 'captions.json'} --text-only --out {out / 'text'}")
