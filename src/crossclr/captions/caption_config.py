"""All options of a captioner as types, and the shipped presets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from crossclr.data.config import StrictConfig
from crossclr.training.config_files import check_values, config_text, read_values

PRESETS = "captions/presets"
Mode = Literal["clip", "vid", "vidclip", "vidclipctx", "raw"]


class CaptionDataConfig(StrictConfig):
    """The input: the embeddings of a run, embedding files, or raw features."""

    run: str | None = Field(default=None, description="Run folder with the embeddings; null: embedding files.")
    checkpoint: Literal["best", "last"] = Field(default="best", description="Checkpoint of the run.")
    untrained: bool = Field(default=False, description="Use the initial weights of the run's model, for comparison.")
    features: Mode = Field(
        default="clip",
        description="Input of each sentence: the clip's embedding, the video's, both (the paper's +), both with the "
        "video's context, or `raw`: the feature rows that the run reads.",
    )
    train: str = Field(default="train", description="Split to train on, or an embedding file (.h5, .npz).")
    validate_: str | None = Field(
        default="val", alias="validate", description="Split or file that selects the best epoch; null: the last epoch."
    )
    test: str | None = Field(default=None, description="Split or file of the final scores; null: the validation one.")
    captions: tuple[str, ...] = Field(
        default=(),
        description="JSON files with the sentences of each video (MART's captioning_*.json), for embedding files that "
        "hold no text.",
    )

    @model_validator(mode="after")
    def _raw_needs_a_run(self) -> CaptionDataConfig:
        if self.run is None and (self.features == "raw" or self.untrained):
            raise ValueError("raw features and untrained encoders come from a run folder; set data.run")
        return self


class CaptionModelConfig(StrictConfig):
    """The recurrent transformer. The defaults are MART's sizes."""

    dim: int = Field(default=768, ge=2, description="Channels of a position.")
    layers: int = Field(default=2, ge=1, description="Layers, each with its own memory.")
    heads: int = Field(default=12, ge=1, description="Attention heads.")
    word_dim: int = Field(default=300, ge=1, description="Channels of a word vector.")
    memory_cells: int = Field(default=1, ge=1, description="Memory cells of each layer.")
    dropout: float = Field(default=0.1, ge=0, lt=1, description="Dropout everywhere in the model.")
    feature_dropout: float = Field(default=0.1, ge=0, lt=1, description="Dropout on the normalised input rows.")
    recurrent: bool | None = Field(
        default=None,
        description="Carry memory from sentence to sentence; null: where some training video has several sentences.",
    )
    max_rows: int = Field(default=1, ge=1, description="Maximum number of feature rows of a sentence.")
    max_words: int = Field(default=20, ge=1, description="Maximum number of words of a sentence; longer ones are cut.")

    @field_validator("heads")
    @classmethod
    def _divides(cls, heads: int, info: Any) -> int:
        if info.data.get("dim", heads) % heads:
            raise ValueError(f"dim ({info.data['dim']}) must be a multiple of heads ({heads})")
        return heads


class VocabularyConfig(StrictConfig):
    """The vocabulary and its initial word vectors."""

    min_count: int = Field(
        default=3, ge=0, description="Keep words that occur more often than this in the training sentences."
    )
    word_vectors: str | None = Field(
        default=None,
        description="GloVe text file, or npz with `words` and `vec`, as initial vectors; null: random vectors.",
    )


class CaptionOptimiserConfig(StrictConfig):
    """BertAdam with a linear warm-up and a linear fall to zero. The defaults are MART's."""

    learning_rate: float = Field(default=1e-4, gt=0, description="Rate at the end of the warm-up.")
    betas: tuple[float, float] = Field(default=(0.9, 0.999), description="Decay of the two moments.")
    epsilon: float = Field(default=1e-6, gt=0, description="Added to the root of the second moment.")
    weight_decay: float = Field(default=0.01, ge=0, description="Decoupled decay; biases and norms have none.")
    warmup: float = Field(default=0.1, ge=0, lt=1, description="Share of all steps in which the rate rises.")
    gradient_clip: float = Field(default=1.0, gt=0, description="Largest norm of the gradient, whole and per tensor.")


class CaptionTrainingConfig(StrictConfig):
    """The loop. The defaults are MART's."""

    epochs: int = Field(default=50, ge=1, description="Passes over the training videos.")
    batch_size: int = Field(default=16, ge=1, description="Videos of one step.")
    max_sentences: int = Field(default=12, ge=1, description="Maximum number of sentences of a training video.")
    captions_per_clip: int = Field(
        default=1, ge=1, description="Captions sampled per epoch for a clip that has several."
    )
    label_smoothing: float = Field(default=0.1, ge=0, lt=1, description="Share of the target spread over all words.")
    ema_decay: float = Field(
        default=0.9999, ge=0, lt=1, description="Largest decay of the averaged weights that write captions; 0: none."
    )
    early_stop: int | None = Field(
        default=10, ge=1, description="Stop this many epochs after the best epoch; null: never."
    )
    threads: int | None = Field(default=None, ge=1, description="CPU threads of torch; null: its default.")
    log_every: int = Field(default=10, ge=1, description="Steps between two lines of metrics.")
    checkpoint_every: int | None = Field(
        default=None, ge=1, description="Steps between two checkpoints within an epoch; null: once an epoch."
    )


class DecodingConfig(StrictConfig):
    """How sentences are written."""

    beam: int = Field(default=1, ge=1, description="Beam size; 1: greedy, as in the paper.")
    min_words: int = Field(default=0, ge=0, description="Minimum number of words in a sentence.")
    block_ngram: int = Field(
        default=0, ge=0, description="Never repeat an n-gram of this length in a sentence; 0: off."
    )
    length_penalty: float = Field(
        default=0.0, ge=0, description="Beam: scores are divided by length to this power; 0: no penalty."
    )
    batch_size: int = Field(default=50, ge=1, description="Videos captioned at once.")


class CaptionValidationConfig(StrictConfig):
    """When to score captions during training, and which metric selects the best epoch."""

    first_epoch: int = Field(default=0, ge=0, description="First epoch (from 0) that is scored.")
    every: int = Field(default=1, ge=1, description="Epochs between two validations.")
    select_by: Literal["CIDEr", "ROUGE_L", "Bleu_4", "METEOR"] = Field(
        default="CIDEr", description="Metric that selects the best epoch."
    )


class CaptionConfig(StrictConfig):
    """A whole captioner: its data, its model and how it is trained."""

    name: str = Field(default="captions", pattern=r"^[\w.+-]+$", description="Short name; names the folder.")
    about: str = Field(default="", description="A sentence that describes the preset.")
    seed: int = Field(default=0, ge=0, description="Seed of weights, order of videos, sampled captions and dropout.")
    data: CaptionDataConfig = Field(default=CaptionDataConfig(), description="The input.")
    vocabulary: VocabularyConfig = Field(default=VocabularyConfig(), description="Words.")
    model: CaptionModelConfig = Field(default=CaptionModelConfig(), description="The recurrent transformer.")
    optimiser: CaptionOptimiserConfig = Field(default=CaptionOptimiserConfig(), description="The optimiser.")
    training: CaptionTrainingConfig = Field(default=CaptionTrainingConfig(), description="The loop.")
    validation: CaptionValidationConfig = Field(
        default=CaptionValidationConfig(), description="Validation during training."
    )
    decoding: DecodingConfig = Field(default=DecodingConfig(), description="How sentences are written.")


def load_caption_config(preset: str | Path, overrides: Sequence[str] | Mapping[str, Any] = ()) -> CaptionConfig:
    """Read a preset (by name) or a YAML file, apply overrides and check it.

    Args:
        preset: a shipped preset's name or a file.
        overrides: ``a.b=c`` strings, where c is YAML, or a mapping from ``a.b`` to a value.

    Example:
        >>> load_caption_config("paper", ["training.epochs=2"]).training.epochs
        2
    """
    text = config_text(preset, PRESETS)
    return check_values(read_values(text, str(preset), overrides), CaptionConfig, str(preset))
