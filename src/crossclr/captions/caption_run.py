"""The run folder of a captioner: the files of every run, a vocabulary and captions.

vocabulary.json     its words
predictions-*.json  its captions for a split, in MART's format
best/               the averaged weights
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from crossclr.captions.caption_config import CaptionConfig, CaptionDataConfig, load_caption_config
from crossclr.captions.data.vocabulary import Vocabulary, read_word_vectors
from crossclr.captions.network.captioner import Captioner
from crossclr.storage import write_file
from crossclr.storage.checksums import check_sealed
from crossclr.training import RunFolder, save_checkpoint
from crossclr.training.run_folder.folder import CONFIG, Which

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
    found = {name: absolute(part, is_path=bool(Path(part or "").suffix)) for name, part in parts.items()}
    captions = tuple(str(Path(path).absolute()) for path in data.captions)
    return data.model_copy(update={"run": absolute(data.run), "captions": captions, **found})
