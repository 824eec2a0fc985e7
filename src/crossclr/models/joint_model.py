"""The joint model: one encoder for each modality, each with a local and optionally a global part."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from crossclr.data.batch import Batch, Inputs, spread
from crossclr.models.encoders import GlobalEncoder, build_local_encoder
from crossclr.models.experts import ExpertQueries
from crossclr.models.model_config import EncoderConfig, ExpertsEncoderConfig, ModelConfig

LEVELS = ("clip", "video", "context")  # embeddings of clips, of videos, and of the videos' contexts


class Branch(nn.Module):
    """The encoders of one modality."""

    def __init__(self, encoder: EncoderConfig, config: ModelConfig, input_dim: int, two_level: bool) -> None:
        super().__init__()
        width, fused = config.output_dim or config.dim, config.experts
        self.local = build_local_encoder(encoder, input_dim, width if encoder is fused else config.dim)
        self.global_ = GlobalEncoder(config.global_encoder, config.dim) if two_level else None
        self.clip_head: nn.Module = nn.Identity()
        self.video_head: nn.Module = nn.Identity()
        if fused is not None:
            if encoder is not fused:
                self.clip_head = ExpertQueries(config.dim, len(fused.weighted), width, fused.batch_norm)
        elif config.output_dim is not None:
            self.clip_head = nn.Linear(config.dim, config.output_dim)
            if two_level:
                self.video_head = nn.Linear(2 * config.dim, config.output_dim)

    def forward(self, inputs: Inputs, clip_counts: Tensor) -> tuple[Tensor, ...]:
        """Embeddings of the clips, and with two levels also of the videos and of their contexts."""
        clips = len(inputs.clips)
        if self.global_ is None:
            return (self.clip_head(self.local(inputs.clips)),)
        if inputs.context is not None:
            # One call for both: more rows per matrix product, and a single packing.
            both = self.local(inputs.clips, inputs.context)
            local, context = both[:clips], both[clips:]  # (clips, dim), (videos, dim)
        elif bool((clip_counts == 1).all()):
            local = context = self.local(inputs.clips)  # the only clip of a video is the whole video
        else:
            raise ValueError(
                "this model has two levels and needs the rows of whole videos (Inputs.context), but the batch has "
                "none; use a two-level data set or build the model with two_level=False"
            )
        return (
            self.clip_head(local),
            self.video_head(self.global_(local, context, clip_counts)),
            self.clip_head(context),
        )


class JointModel(nn.Module):
    """Embeds any number of modalities into one space.

    Args:
        config: options of the encoders.
        dims: channels of the input rows of each modality, by its name.
        two_level: whether videos (clips in order, with a context) are embedded too.

    Example:
        >>> import torch
        >>> from crossclr.data import Ragged
        >>> model = JointModel(ModelConfig(dim=16), dims={"video": 3, "text": 5}, two_level=False)
        >>> clips = Ragged.from_list([torch.randn(4, 3), torch.randn(2, 3)])
        >>> model.encode_modality("video", Inputs(clips))["clip"].shape
        torch.Size([2, 16])
    """

    def __init__(self, config: ModelConfig, dims: Mapping[str, int], two_level: bool) -> None:
        super().__init__()
        self.config = config
        self.dims = {name: int(dim) for name, dim in dims.items()}
        self.two_level = two_level
        if unknown := [name for name in config.encoders if name not in self.dims]:
            raise ValueError(
                f"model.encoders has options for {unknown[0]!r}, but the data has the modalities "
                f"{', '.join(self.dims)}; rename the entry or remove it"
            )
        if bad := [name for name in self.dims if not name or "." in name or hasattr(nn.ModuleDict, name)]:
            raise ValueError(f"{bad[0]!r} cannot name a modality; choose a word without a dot, such as 'video'")
        if two_level and any(isinstance(one, ExpertsEncoderConfig) for one in config.encoders.values()):
            raise ValueError("an encoder of kind experts has one level; set loss.global to null")
        self.experts = () if config.experts is None else config.experts.weighted
        self.encoders = nn.ModuleDict(
            {name: Branch(config.encoder_of(name), config, dim, two_level) for name, dim in self.dims.items()}
        )

    @property
    def modalities(self) -> tuple[str, ...]:
        """Names of the modalities."""
        return tuple(self.dims)

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return next(self.parameters()).device

    @property
    def embedding_dim(self) -> int:
        """Channels of the embedding of a clip or a sentence."""
        return (self.config.output_dim or self.config.dim) * (len(self.experts) or 1)

    def encode_modality(self, modality: str, inputs: Inputs, clip_counts: Tensor | None = None) -> dict[str, Tensor]:
        """Raw (not normalised) embeddings of one modality: ``clip`` and, with two levels, ``video`` and ``context``.

        Args:
            modality: its name.
            inputs: the clips, and with two levels the whole videos.
            clip_counts: (videos,) number of clips of each video; one each by default.
        """
        if modality not in self.encoders:
            raise ValueError(f"the model has no modality {modality!r}; it has {', '.join(self.dims)}")
        if clip_counts is None:
            clip_counts = torch.ones(len(inputs.clips), dtype=torch.int64)
        return dict(zip(LEVELS, self.encoders[modality](inputs, clip_counts), strict=False))

    def encode(self, batch: Batch) -> dict[str, Tensor]:
        """Raw embeddings of all modalities under ``level/modality``, such as ``clip/text`` (clips, D).

        Rows of clips and videos that lack a modality are zeros.
        """
        outputs = {}
        for name in self.dims:
            if not bool(batch.present[name].any()):
                outputs.update(self._nothing(name, batch))
                continue
            counts = batch.present_counts(name)
            for level, rows in self.encode_modality(name, batch.inputs[name], counts[counts > 0]).items():
                outputs[f"{level}/{name}"] = spread(rows, batch.present[name] if level == "clip" else counts > 0)
        return outputs

    def _nothing(self, name: str, batch: Batch) -> dict[str, Tensor]:
        """Zeros for a modality that no clip of the batch has; its weights still get a gradient, which is zero."""
        zero = sum(parameter.sum() for parameter in self.encoders[name].parameters()) * 0.0
        dim, out = self.config.dim, self.config.output_dim
        widths = {"clip": self.embedding_dim, "video": out or 2 * dim, "context": out or dim}
        return {
            f"{level}/{name}": zero
            + torch.zeros(len(batch.ids) if level == "clip" else len(batch.keys), width, device=self.device)
            for level, width in widths.items()
            if level == "clip" or self.two_level
        }

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Same as `encode`."""
        return self.encode(batch)


def at_level(outputs: Mapping[str, Tensor], level: str) -> dict[str, Tensor]:
    """The embeddings of one level by modality, from the outputs of a model.

    Example:
        >>> list(at_level({"clip/text": torch.zeros(1, 2), "video/text": torch.zeros(1, 2)}, "clip"))
        ['text']
    """
    return {key.partition("/")[2]: rows for key, rows in outputs.items() if key.startswith(f"{level}/")}


def build_model(config: ModelConfig, dims: Mapping[str, int], two_level: bool) -> JointModel:
    """A new model with initial weights drawn from torch's global generator.

    Example:
        >>> model = build_model(ModelConfig(), dims={"video": 512, "text": 1536}, two_level=True)
        >>> sum(p.numel() for p in model.parameters())
        7011328
    """
    return JointModel(config, dims, two_level)
