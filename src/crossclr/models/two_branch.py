"""The two-branch model: one branch per modality, each with a local and optionally a global encoder."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from crossclr.features.batch import Batch, Side
from crossclr.models.coot.coot_batch import sides_from_coot
from crossclr.models.encoders.global_encoder import GlobalEncoder
from crossclr.models.encoders.local_encoders import build_local_encoder
from crossclr.models.model_config import MLPEncoderConfig, ModelConfig, TransformerEncoderConfig

# COOT's names of the embeddings of each modality: of clips, of videos, and of their contexts.
NAMES = {"a": ("clip_emb", "vid_emb", "vid_context"), "b": ("sent_emb", "par_emb", "par_context")}


class Branch(nn.Module):
    """The encoders of one modality.

    Args:
        encoder: options of its local encoder.
        config: the model's config, for the options that both branches share.
        input_dim: channels of an input row.
        two_level: whether there is a global encoder.
    """

    def __init__(
        self, encoder: TransformerEncoderConfig | MLPEncoderConfig, config: ModelConfig, input_dim: int, two_level: bool
    ) -> None:
        super().__init__()
        self.local = build_local_encoder(encoder, input_dim, config.dim)
        self.global_ = GlobalEncoder(config.global_encoder, config.dim) if two_level else None
        self.clip_head: nn.Module = nn.Identity()
        self.video_head: nn.Module = nn.Identity()
        if config.output_dim is not None:
            self.clip_head = nn.Linear(config.dim, config.output_dim)
            if two_level:
                self.video_head = nn.Linear(2 * config.dim, config.output_dim)

    def forward(self, side: Side, clip_counts: Tensor) -> tuple[Tensor, ...]:
        """Embeddings of the clips, and with two levels also of the videos and of their contexts."""
        clips = len(side.clips)
        if self.global_ is None:
            return (self.clip_head(self.local(side.clips)),)
        if side.context is not None:
            # One call for both: more rows per matrix product, and a single packing.
            both = self.local(side.clips, side.context)
            local, context = both[:clips], both[clips:]  # (clips, dim), (videos, dim)
        elif bool((clip_counts == 1).all()):
            local = context = self.local(side.clips)  # the only clip of a video is the whole video
        else:
            raise ValueError(
                "this model has two levels and needs the rows of whole videos (Side.context), but the batch has none; "
                "use a two-level data set or build the model with two_level=False"
            )
        return (
            self.clip_head(local),
            self.video_head(self.global_(local, context, clip_counts)),
            self.clip_head(context),
        )


class TwoBranch(nn.Module):
    """Embeds two modalities into one space.

    Args:
        config: options of the branches.
        dims: channels of the input rows of each modality.
        two_level: whether videos (clips in order, with a context) are embedded too.

    Example:
        >>> import torch
        >>> from crossclr.features import Ragged
        >>> model = TwoBranch(ModelConfig(dim=16), dims=(3, 5), two_level=False)
        >>> clips = Ragged.from_list([torch.randn(4, 3), torch.randn(2, 3)])
        >>> model.encode_a(Side(clips))["clip_emb"].shape
        torch.Size([2, 16])
    """

    def __init__(self, config: ModelConfig, dims: tuple[int, int], two_level: bool) -> None:
        super().__init__()
        self.config = config
        self.dims = (int(dims[0]), int(dims[1]))
        self.two_level = two_level
        self.branch_a = Branch(config.encoder_a, config, self.dims[0], two_level)
        self.branch_b = Branch(config.encoder_b, config, self.dims[1], two_level)

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return next(self.parameters()).device

    @property
    def embedding_dim(self) -> int:
        """Channels of the embedding of a clip or a sentence."""
        return self.config.output_dim or self.config.dim

    def encode_a(self, side: Side, clip_counts: Tensor | None = None) -> dict[str, Tensor]:
        """Raw embeddings of the first modality: ``clip_emb`` and, with two levels, ``vid_emb`` and ``vid_context``.

        Args:
            side: the clips, and with two levels the whole videos.
            clip_counts: (videos,) number of clips of each video; one each by default.
        """
        return self._encode("a", side, clip_counts)

    def encode_b(self, side: Side, clip_counts: Tensor | None = None) -> dict[str, Tensor]:
        """Raw embeddings of the second modality: ``sent_emb`` and, with two levels, ``par_emb`` and ``par_context``."""
        return self._encode("b", side, clip_counts)

    def _encode(self, name: str, side: Side, clip_counts: Tensor | None) -> dict[str, Tensor]:
        if clip_counts is None:
            clip_counts = torch.ones(len(side.clips), dtype=torch.int64)
        found = (self.branch_a if name == "a" else self.branch_b)(side, clip_counts)
        return dict(zip(NAMES[name], found, strict=False))

    def encode(self, batch: Batch | Mapping[str, Any]) -> dict[str, Tensor]:
        """Raw (not normalised) embeddings of both modalities under COOT's names.

        Args:
            batch: a Batch, or a mapping in COOT's form (see `sides_from_coot`).
        """
        if isinstance(batch, Batch):
            return self.encode_a(batch.a, batch.clip_counts) | self.encode_b(batch.b, batch.clip_counts)
        (a, clips), (b, sentences) = sides_from_coot(batch, self.device)
        return self.encode_a(a, clips) | self.encode_b(b, sentences)

    def forward(self, batch: Batch | Mapping[str, Any]) -> dict[str, Tensor]:
        """Same as `encode`."""
        return self.encode(batch)


def build_model(config: ModelConfig, dims: tuple[int, int], two_level: bool) -> TwoBranch:
    """A new model with initial weights drawn from torch's global generator.

    Example:
        >>> model = build_model(ModelConfig(), dims=(512, 1536), two_level=True)
        >>> sum(p.numel() for p in model.parameters())
        7011328
    """
    return TwoBranch(config, dims, two_level)
