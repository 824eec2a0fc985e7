"""Captions for a person's own files, from a captioner that was trained on a run."""

from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize

from crossclr.captions import CaptionRun
from crossclr.captions.caption_metrics import Predictions
from crossclr.captions.caption_set import CaptionSet, uncorrected_space
from crossclr.captions.decoding import write_captions
from crossclr.data.sequences import limit_rows
from crossclr.extract.media import media_kind
from crossclr.integrations.run_encoder import AcceptedInputs, RunEncoder
from crossclr.progress_bar import show_progress
from crossclr.training import Run


def caption_files(
    captioner: CaptionRun, folder: Path, *, beam: int | None = None, progress: bool = False
) -> tuple[Predictions, dict[str, str]]:
    """A sentence for each media file below a folder, and the reasons why other files have none.

    Args:
        captioner: trained on the embeddings (``clip``) or features (``raw``) of a run.
        folder: of images, videos or sounds; each file is one clip.
        beam: beam size; None: as in the captioner's config.
        progress: show progress bars.

    Raises:
        ValueError: the captioner cannot caption files, or the folder has none that can be used.
    """
    data, config = captioner.config.data, captioner.config
    if data.run is None or data.features not in ("clip", "raw") or data.untrained:
        raise ValueError(
            f"{captioner.path} reads {data.features} of {data.run or 'embedding files'}; files can be captioned by a "
            "captioner of a trained run with --features clip or raw"
        )
    run = Run.open(data.run)
    encoder = RunEncoder(uncorrected_space(run, data.checkpoint), AcceptedInputs.of_run(run))
    modality = next((name for name in encoder.space.modalities if name in encoder.inputs.experts), None)
    files = sorted(path for path in folder.rglob("*") if media_kind(path) and path.is_file())
    rows: dict[str, Tensor] = {}
    problems: dict[str, str] = {}
    with show_progress("reading files", progress) as report:
        for done, path in enumerate(files, 1):
            name = path.relative_to(folder).as_posix()
            try:
                _, found = encoder.rows([str(path) if modality is None else {modality: str(path)}])[0]
            except ValueError as error:
                problems[name] = str(error)
            else:
                rows[name] = torch.tensor(limit_rows(found, config.model.max_rows) if data.features == "raw" else found)
            report(done, len(files))
    if not rows:
        reason = next(iter(problems.values()), "it holds no images, videos or sounds")
        raise ValueError(f"no file of {folder} can be captioned: {reason}")
    parts = list(rows.values())
    if data.features == "clip":
        parts = list(normalize(encoder.space.plain(str(modality), parts), dim=1).unsqueeze(1))
    count = len(parts)
    lengths = torch.tensor([len(part) for part in parts])
    clips = CaptionSet(tuple(rows), (1,) * count, torch.cat(parts), lengths, ((),) * count, ((0.0, 1.0),) * count)
    decoding = config.decoding if beam is None else config.decoding.model_copy(update={"beam": beam})
    return write_captions(captioner.load_model(), clips, captioner.vocabulary, decoding), problems
