"""The options of a model, checked before anything is built."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Discriminator, Field, Tag, model_validator

from crossclr.data.config import StrictConfig

InputNorm = Literal["coot", "layer", "l2", "standard", "none"]
InitialWeights = Annotated[
    Literal["coot", "xavier"],
    Field(
        description="`coot`: small weights (deviation 0.01), with which learning starts after hundreds of steps. "
        "`xavier`: larger weights, with which learning starts at the first step."
    ),
]


WIDEST, MOST_LAYERS = 65_536, 256  # channels and layers; more cannot be meant
MOST_WEIGHTS = 4_000_000_000  # of an encoder: 16 GB in float32


class TransformerEncoderConfig(StrictConfig):
    """A local encoder for sequences: norm, projection, positions, transformer layers, pooler.

    Example:
        >>> TransformerEncoderConfig(heads=16, pooler="max").layers
        1
    """

    kind: Literal["transformer"] = Field(
        default="transformer", description="A transformer over the rows of a sequence."
    )
    layers: int = Field(default=1, ge=1, le=MOST_LAYERS, description="Number of transformer layers.")
    heads: int = Field(default=8, ge=1, description="Attention heads; the model's dim must be divisible by them.")
    feed_forward: int | None = Field(
        default=None, ge=1, le=WIDEST, description="Hidden width of the feed-forward part; default: dim."
    )
    pooler: Literal["attention", "max", "mean"] = Field(
        default="attention",
        description="How rows are pooled to one vector: attention-aware aggregation (AF), maximum or mean.",
    )
    pooler_heads: int = Field(
        default=2, ge=1, description="Heads of the attention pooler; the dim must be divisible by them."
    )
    pooler_hidden: int | None = Field(
        default=None, ge=1, le=WIDEST, description="Hidden width of each head of the attention pooler; default: dim."
    )
    dropout: float = Field(default=0.05, ge=0, lt=1, description="Dropout in attention, feed-forward and pooler.")
    input_norm: InputNorm = Field(
        default="coot",
        description="Normalisation of input rows: COOT's layer norm, torch's layer norm, unit length, each channel at "
        "mean 0 and deviation 1 over the training samples (standard), or none.",
    )
    initial_weights: InitialWeights = "coot"


class MLPEncoderConfig(StrictConfig):
    """A residual MLP for single vectors; sequences are pooled first.

    Example:
        >>> MLPEncoderConfig(kind="mlp", sequence_pooling="mean_max").blocks
        1
    """

    kind: Literal["mlp"] = Field(default="mlp", description="A residual MLP over one vector.")
    blocks: int = Field(
        default=1, ge=0, le=MOST_LAYERS, description="Residual blocks after the input projection; 0 is a linear map."
    )
    hidden: int | None = Field(
        default=None, ge=1, le=WIDEST, description="Hidden width of a residual block; default: twice the dim."
    )
    sequence_pooling: Literal["mean", "max", "mean_max"] = Field(
        default="mean",
        description="How a sequence is pooled to one vector before the MLP; `mean_max` joins both on the channel axis.",
    )
    dropout: float = Field(default=0.1, ge=0, lt=1, description="Dropout inside the residual blocks.")
    input_dropout: float = Field(default=0.0, ge=0, lt=1, description="Dropout on the normalised input vector.")
    row_dropout: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Share of a sequence's rows dropped at random in training, before pooling; at least one row stays.",
    )
    input_norm: InputNorm = Field(
        default="layer",
        description="Normalisation of the input vector: COOT's layer norm, torch's layer norm, unit length, each "
        "channel at mean 0 and deviation 1 over the training samples (standard), or none.",
    )


class ExpertsEncoderConfig(StrictConfig):
    """An encoder of a modality with several experts, which may be absent; only under ``encoders``.

    Example:
        >>> ExpertsEncoderConfig(kind="experts", fusion="mee", experts={"appearance": 2048, "motion": 512}).pooling
        'mean'
    """

    kind: Literal["experts"] = Field(default="experts", description="A fusion of the experts of a modality.")
    fusion: Literal["concatenate", "mee", "ce", "mmt"] = Field(
        default="mee",
        description="`concatenate`: one MLP over all experts, zeros for absent ones; `mee`: gated experts, weighted by "
        "the other modality's sample; `ce`: the same after experts gate each other; `mmt`: the same after a "
        "transformer over the rows of all experts.",
    )
    experts: dict[str, Annotated[int, Field(ge=1, le=WIDEST)]] = Field(
        min_length=2, description="Channels of each expert by its name, in the order of the data's arrays or files."
    )
    pooling: Literal["mean", "max"] = Field(
        default="mean", description="How the rows of an expert become one vector (of mmt: its aggregate token)."
    )
    batch_norm: bool = Field(
        default=True,
        description="Normalise gates over the batch (with `micro_batch` over its parts), as the originals.",
    )
    layers: int = Field(
        default=1, ge=0, le=MOST_LAYERS, description="mmt: transformer layers; concatenate: residual blocks."
    )
    heads: int = Field(default=4, ge=1, description="mmt: attention heads; the model's dim must be divisible by them.")
    feed_forward: int | None = Field(
        default=None, ge=1, le=WIDEST, description="mmt: hidden width of the feed-forward part; default: 4 · dim."
    )
    positions: int = Field(default=32, ge=2, le=WIDEST, description="mmt: positions; later rows have the last one.")
    rates: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default={},
        description="mmt: rows per second of experts, whose positions are then seconds and not row numbers.",
    )
    dropout: float = Field(default=0.1, ge=0, lt=1, description="mmt and concatenate: dropout inside.")
    input_norm: InputNorm = Field(
        default="layer", description="Normalisation of each expert's vector (of mmt: of its rows); see mlp."
    )

    @property
    def weighted(self) -> tuple[str, ...]:
        """Names of the experts if each has its own vector and weight; empty if all become one vector."""
        return () if self.fusion == "concatenate" else tuple(self.experts)


def _kind(value: Any) -> str:
    """The kind of an encoder; the default is a transformer."""
    kind = value.get("kind", "transformer") if isinstance(value, dict) else getattr(value, "kind", "transformer")
    return str(kind)


EncoderConfig = Annotated[
    Annotated[TransformerEncoderConfig, Tag("transformer")]
    | Annotated[MLPEncoderConfig, Tag("mlp")]
    | Annotated[ExpertsEncoderConfig, Tag("experts")],
    Discriminator(_kind),
]


class GlobalEncoderConfig(StrictConfig):
    """The encoder over the clips of a video, with the whole video as context.

    Example:
        >>> GlobalEncoderConfig().pool
        'mean'
    """

    layers: int = Field(default=1, ge=1, le=MOST_LAYERS, description="Self-attention layers over the clips of a video.")
    heads: int = Field(default=8, ge=1, description="Attention heads; the model's dim must be divisible by them.")
    feed_forward: int | None = Field(
        default=None, ge=1, le=WIDEST, description="Hidden width of the feed-forward part; default: dim."
    )
    pool: Literal["mean", "coot_sum"] = Field(
        default="mean",
        description="Mean over the clips of a video, or COOT's sum that includes padded positions, which makes an "
        "embedding depend on the other videos of its batch (for COOT checkpoints only).",
    )
    dropout: float = Field(default=0.05, ge=0, lt=1, description="Dropout in attention and feed-forward.")
    initial_weights: InitialWeights = "coot"


class ModelConfig(StrictConfig):
    """The joint model. The defaults are the paper's setting for YouCook2.

    Example:
        >>> config = ModelConfig(dim=768, encoder={"heads": 16}, encoders={"text": {"pooler": "max"}})
        >>> config.encoder_of("video").pooler, config.encoder_of("text").pooler, config.encoder_of("text").heads
        ('attention', 'max', 16)
    """

    dim: int = Field(default=384, ge=1, le=WIDEST, description="Channels inside the encoders and of a clip embedding.")
    output_dim: int | None = Field(
        default=None,
        ge=1,
        le=WIDEST,
        description="Channels of the embeddings after a final linear layer; default: no such layer.",
    )
    encoder: EncoderConfig = Field(
        default=TransformerEncoderConfig(), description="Local encoder of every modality that `encoders` does not list."
    )
    encoders: dict[str, EncoderConfig] = Field(
        default={},
        description="Local encoders by modality. Options that an entry of the same kind does not set are those of "
        "`encoder`.",
    )
    global_encoder: GlobalEncoderConfig = Field(
        default=GlobalEncoderConfig(), description="Global encoder of all modalities; only used with two levels."
    )

    def encoder_of(self, modality: str) -> TransformerEncoderConfig | MLPEncoderConfig | ExpertsEncoderConfig:
        """The options of the local encoder of a modality."""
        return self.encoders.get(modality, self.encoder)

    @property
    def experts(self) -> ExpertsEncoderConfig | None:
        """The encoder whose experts have their own vectors and weights; the other modalities weigh them."""
        encoders = [one for one in self.encoders.values() if isinstance(one, ExpertsEncoderConfig) and one.weighted]
        return encoders[0] if encoders else None

    @model_validator(mode="after")
    def _one_with_experts(self) -> "ModelConfig":
        weighted = [n for n, one in self.encoders.items() if isinstance(one, ExpertsEncoderConfig) and one.weighted]
        if isinstance(self.encoder, ExpertsEncoderConfig) or len(weighted) > 1:
            raise ValueError(
                "only one modality can have an encoder of kind experts with weights; name it under encoders, as in "
                "encoders: {video: {kind: experts, ...}}"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _fill_encoders(cls, values: Any) -> Any:
        if not isinstance(values, dict) or not isinstance(values.get("encoders"), dict):
            return values
        shared = values.get("encoder", {})
        shared = shared.model_dump() if isinstance(shared, BaseModel) else shared
        if not isinstance(shared, dict):
            return values  # reported by its own field
        filled = {
            name: {**shared, **own} if isinstance(own, dict) and _kind({**shared, **own}) == _kind(shared) else own
            for name, own in values["encoders"].items()
        }
        return {**values, "encoders": filled}

    @model_validator(mode="after")
    def _fits_into_memory(self) -> "ModelConfig":
        for encoder in (self.encoder, *self.encoders.values(), self.global_encoder):
            layers = encoder.blocks if isinstance(encoder, MLPEncoderConfig) else encoder.layers
            hidden = encoder.hidden if isinstance(encoder, MLPEncoderConfig) else encoder.feed_forward
            weights = layers * 2 * self.dim * ((hidden or self.dim) + self.dim)
            if weights > MOST_WEIGHTS:
                raise ValueError(f"an encoder of about {weights:,} weights is too large; lower dim or layers")
        return self

    @model_validator(mode="after")
    def _divisible(self) -> "ModelConfig":
        heads = {"global_encoder.heads": self.global_encoder.heads}
        named = {f"encoders.{name}": encoder for name, encoder in self.encoders.items()}
        for name, encoder in {"encoder": self.encoder, **named}.items():
            if isinstance(encoder, TransformerEncoderConfig):
                heads[f"{name}.heads"] = encoder.heads
                if encoder.pooler == "attention":
                    heads[f"{name}.pooler_heads"] = encoder.pooler_heads
            elif isinstance(encoder, ExpertsEncoderConfig) and encoder.fusion == "mmt":
                heads[f"{name}.heads"] = encoder.heads
        for name, count in heads.items():
            # Defaults do not matter where they may be unused: one-level models have no global encoder, and `encoders`
            # may list all modalities.
            unused = name == "global_encoder.heads" and self.global_encoder == GlobalEncoderConfig()
            unused |= name.startswith("encoder.") and bool(self.encoders) and self.encoder == TransformerEncoderConfig()
            if self.dim % count and not unused:
                raise ValueError(f"dim {self.dim} is not divisible by {name} {count}; change one of the two")
        return self
