"""The run folder of a captioner: the files of every run, a vocabulary and captions.

vocabulary.json     its words
predictions-*.json  its captions for a split, in MART's format
best/               the averaged weights

From a run of embeddings to a captioner, its sentences and their scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from crossclr.captions.caption_config import CaptionConfig, CaptionDataConfig, DecodingConfig, load_caption_config
from crossclr.captions.caption_metrics import Predictions, Scores, save_predictions, score_captions
from crossclr.captions.caption_set import CaptionSet, TrainingSentences, load_caption_set
from crossclr.captions.caption_training import CaptionTraining
from crossclr.captions.captioner import Captioner
from crossclr.captions.decoding import write_captions
from crossclr.captions.meteor import Meteor
from crossclr.captions.vocabulary import Vocabulary, read_word_vectors
from crossclr.progress_bar import Progress, show_progress
from crossclr.storage import FolderLock, write_file
from crossclr.storage.manifest import check_sealed
from crossclr.training.checkpoint import save_checkpoint, seed_everything
from crossclr.training.loop import Validate, Validation
from crossclr.training.recorder import fit_run
from crossclr.training.run_folder import CONFIG, RunFolder, Which, free_folder
from crossclr.training.torch_settings import torch_threads

WORDS = "vocabulary.json"


class CaptionRun(RunFolder[CaptionConfig]):
    """The run folder of a captioner."""

    @classmethod
    def open(cls, path: str | Path) -> CaptionRun:
        """Open an existing folder; raises FileNotFoundError if there is no captioner."""
        path = Path(path)
        if not (path / CONFIG).is_file() or not (path / WORDS).is_file():
            inside = sorted(folder.parent.name for folder in path.glob(f"captions/*/{WORDS}"))
            hint = f"; the run has the captioners {', '.join(f'captions/{n}' for n in inside)}" if inside else ""
            raise FileNotFoundError(
                f"{path} is not the folder of a captioner ({CONFIG} or {WORDS} is absent){hint}; train one with: "
                "crossclr caption train RUN"
            )
        check_sealed(path)
        return cls(path, load_caption_config(path / CONFIG))

    @classmethod
    def create(
        cls, path: Path, config: CaptionConfig, vocabulary: Vocabulary, model: Captioner, state: Mapping[str, Any]
    ) -> CaptionRun:
        """Write a folder with its first checkpoint; it appears complete or not at all."""
        config = config.model_copy(update={"data": _with_absolute_paths(config.data)})
        shape = {"feature_dim": model.feature_dim, "recurrent": model.recurrent}
        with cls.creating(path, config, shape) as folder:
            write_file(folder / WORDS, vocabulary.to_json())
            save_checkpoint(folder / "last", model.state_dict(), state)
        return cls(path, config)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Its words."""
        return Vocabulary.load(self.path / WORDS)

    def load_model(self, which: Which = "best") -> Captioner:
        """The trained captioner, in evaluation mode on the CPU."""
        shape = self.shape
        model = Captioner(self.config.model, shape["feature_dim"], len(self.vocabulary), shape["recurrent"])
        return self.load_weights_into(model, which)

    def predictions(self, part: str) -> Path:
        """The file with the captions of a split or an embedding file."""
        return self.path / f"predictions-{Path(part).stem}.json"


def build_captioner(config: CaptionConfig, feature_dim: int, vocabulary: Vocabulary, recurrent: bool) -> Captioner:
    """A new captioner, with the word vectors that the config names. The caller seeds torch."""
    model = Captioner(config.model, feature_dim, len(vocabulary), recurrent)
    if config.vocabulary.word_vectors is not None:
        vectors, _ = read_word_vectors(config.vocabulary.word_vectors, vocabulary, config.model.word_dim)
        with torch.no_grad():
            model.embedding.words.weight.copy_(vectors)
    return model


def _with_absolute_paths(data: CaptionDataConfig) -> CaptionDataConfig:
    """The same data, with paths that are valid from any folder."""

    def absolute(part: str | None, *, is_path: bool = True) -> str | None:
        return str(Path(part).absolute()) if part is not None and is_path and Path(part).exists() else part

    parts = {"train": data.train, "validate_": data.validate_, "test": data.test}  # splits or files
    absolute_parts = {name: absolute(part, is_path=bool(Path(part or "").suffix)) for name, part in parts.items()}
    captions = tuple(str(Path(path).absolute()) for path in data.captions)
    return data.model_copy(update={"run": absolute(data.run), "captions": captions, **absolute_parts})


def train_captions(
    config: CaptionConfig,
    *,
    out: str | Path | None = None,
    console: Console | None = None,
    meteor: Meteor | bool = True,
) -> CaptionRun:
    """Train a captioner, select the best epoch by its validation captions, and score it.

    Args:
        config: the options of the captioner.
        out: its folder; by default ``captions/<name>`` in the run folder, with a number if that exists.
        console: where to show progress; None shows nothing.
        meteor: include METEOR in the final scores, if Java is installed; or a METEOR process that is running.

    Raises:
        ValueError: the data or the config cannot be used; nothing is written then.
        Interrupted: after Ctrl-C; `resume_captions` resumes the training.
    """
    if out is None:
        out = free_folder(Path(config.data.run or "runs") / "captions" / config.name)
    path = Path(out)
    if path.exists():
        raise FileExistsError(f"{path} already exists; resume it with --resume {path} or choose another --out")
    with FolderLock(path), torch_threads(config.training.threads):
        sets = load_sets(config, console is not None)
        data = sets["train"]
        vocabulary = Vocabulary.build((text for texts in data.texts for text in texts), config.vocabulary.min_count)
        training = _training(config, data, vocabulary)
        run = CaptionRun.create(path, config, vocabulary, training.model, training.state_dict())
        return _finish(run, training, sets, None, console, meteor)


def resume_captions(path: str | Path, *, console: Console | None = None, meteor: Meteor | bool = True) -> CaptionRun:
    """Resume a captioner that was stopped; the result is the same as without the stop."""
    run = CaptionRun.open(path)
    with FolderLock(run.path), torch_threads(run.config.training.threads):
        if run.results is not None:
            return run
        sets = load_sets(run.config, console is not None)
        training = _training(run.config, sets["train"], run.vocabulary)
        weights, state = run.load_state()
        training.load_state_dict(weights, state)
        return _finish(run, training, sets, state, console, meteor)


def generate_captions(
    run: CaptionRun | str | Path,
    part: str | None = None,
    *,
    decoding: DecodingConfig | None = None,
    which: Which = "best",
    progress: bool = False,
) -> tuple[Predictions, CaptionSet]:
    """Write the captions of a split or of an embedding file.

    Args:
        run: a captioner.
        part: a split of the run it was trained from, or a file; None: the part of its final scores.
        decoding: how to write; None: as in its config.
        which: the checkpoint, ``best`` or ``last``.
        progress: show progress bars.
    """
    run = run if isinstance(run, CaptionRun) else CaptionRun.open(run)
    config = run.config
    with torch_threads(config.training.threads):
        data = load_part(config, part or final_part(config), progress)
        model = run.load_model(which)
        if data.features.shape[1] != model.feature_dim:
            raise ValueError(
                f"{part} has rows of {data.features.shape[1]} channels, but the captioner in {run.path} was trained "
                f"with {model.feature_dim} (data.features={config.data.features})"
            )
        return _write(run, model, data, decoding or config.decoding, progress), data


def final_part(config: CaptionConfig) -> str:
    """The part of the final scores: the test part, or else the validation part."""
    part = config.data.test or config.data.validate_
    if part is None:
        raise ValueError("the config names neither data.test nor data.validate; name a split")
    return part


def load_part(config: CaptionConfig, part: str, progress: bool = False) -> CaptionSet:
    """One part of the data."""
    with show_progress(f"reading {Path(part).name}", progress) as report:
        return load_caption_set(config.data, part, max_rows=config.model.max_rows, progress=report)


def load_sets(config: CaptionConfig, progress: bool = False) -> dict[str, CaptionSet]:
    """The data of a training by role: ``train``, ``validate`` (if there is one) and ``final``."""
    data = config.data
    roles = {"train": data.train, "validate": data.validate_, "final": data.test or data.validate_}
    parts = {role: part for role, part in roles.items() if part is not None}
    read = {part: load_part(config, part, progress) for part in dict.fromkeys(parts.values())}  # each once
    for role, part in parts.items():
        if role != "train" and not read[part].references():
            raise ValueError(f"{part} has no sentences to score against; name files with sentences in data.captions")
    return {role: read[part] for role, part in parts.items()}


def _training(config: CaptionConfig, data: CaptionSet, vocabulary: Vocabulary) -> CaptionTraining:
    settings, sizes = config.training, config.model
    sentences = TrainingSentences(data, vocabulary, sizes.max_words, settings.max_sentences, settings.captions_per_clip)
    recurrent = sizes.recurrent if sizes.recurrent is not None else max(data.counts) > 1
    seed_everything(config.seed)
    model = build_captioner(config, data.features.shape[1], vocabulary, recurrent)
    return CaptionTraining(config, model, sentences)


def _finish(
    run: CaptionRun,
    training: CaptionTraining,
    sets: Mapping[str, CaptionSet],
    state: Mapping[str, Any] | None,
    console: Console | None,
    meteor: Meteor | bool,
) -> CaptionRun:
    config = run.config
    validate = _validator(run, sets.get("validate"))
    fit_run(run, training, state, validate=validate, console=console, command="crossclr caption train")
    if "final" not in sets:
        run.write_results(_results(run, training, None))
        return run
    part = final_part(config)
    written = _write(run, run.load_model("best"), sets["final"], config.decoding, console is not None)
    save_predictions(written, run.predictions(part))
    scores = score_captions(written, sets["final"].references(), meteor=meteor)
    run.write_results(_results(run, training, scores))
    if console is not None:
        console.print(scores.table(f"{config.name} on {Path(part).stem}"))
        for note in scores.notes:
            console.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)
        console.print(f"captioner: {run.path}", highlight=False, markup=False, soft_wrap=True)
    return run


def _write(
    run: CaptionRun, model: Captioner, data: CaptionSet, decoding: DecodingConfig, progress: bool
) -> Predictions:
    with show_progress("writing captions", progress) as report:
        return write_captions(model, data, run.vocabulary, decoding, report)


def _results(run: CaptionRun, training: CaptionTraining, scores: Scores | None) -> dict[str, Any]:
    config = run.config
    return {
        "name": config.name,
        "seed": config.seed,
        "run": config.data.run,
        "untrained": config.data.untrained,
        "features": config.data.features,
        "weights": sum(weight.numel() for weight in training.model.parameters()),
        "words": len(run.vocabulary),
        **run.history(),
        **({} if scores is None else {"part": Path(final_part(config)).stem, **scores.to_dict()}),
    }


def _validator(run: CaptionRun, data: CaptionSet | None) -> Validate | None:
    if data is None:
        return None
    references, decoding = data.references(), run.config.decoding
    meteor = run.config.validation.select_by == "METEOR"

    def validate(model: Captioner, progress: Progress | None) -> Validation:
        written = write_captions(model, data, run.vocabulary, decoding, progress)
        metrics = score_captions(written, references, meteor=meteor).metrics
        return Validation({name: score for name, score in metrics.items() if score is not None})

    return validate
