"""The contract of a loss: one call for any number of named modalities, and for a pair."""

import sys
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from crossclr.losses.inputs.embeddings import Call, EmbeddedBatch, Rows, check_embeddings, read_call
from crossclr.losses.inputs.options import check_count, check_temperature
from crossclr.losses.inputs.pairs import PairsOption, check_pairs, mean_over_pairs, pairs_of


class Loss(nn.Module):
    """A loss between the embeddings of several modalities. Samples may lack some modalities.

    Args:
        pairs: ``"all"`` compares every modality with every other; ``{"text": ["video", "audio"]}`` compares text with
            video and with audio only; ``{"text": {"video": 1.0, "audio": 0.5}}`` gives weights. The loss is the
            weighted mean over the pairs; a pair that no sample of the batch has is omitted.
        fused: also compare each modality with the normalised mean of the others that a sample has.
        chunk_size: anchors compared at a time; limits memory and does not change the result.

    Inputs of a call:
        - **embeddings**: modality -> (N, D); row i of each belongs to sample i. The loss normalises them.
        - **features**: modality -> (N, Dx) input features; losses without ``needs_features`` ignore them.
        - **ids**: (N,) integers; samples with equal ids are the same item and never negatives of each other.
        - **present**: modality -> (N,) booleans, which samples have it; all samples have a modality that is not listed.
          Rows of absent samples may hold anything, even NaN.

        For two modalities there is a shorter form, ``loss(za, zb, a, b, ids)``, which names them ``a`` and ``b``.
    """

    needs_features: bool = False
    """Whether a call needs the input features."""

    covers_all_levels: ClassVar[bool] = False
    """Whether the loss has a method ``all_levels`` for the outputs of a two-level model at once."""

    def __init__(self, pairs: PairsOption = "all", fused: bool = False, chunk_size: int | None = None) -> None:
        super().__init__()
        self.chunk_size = None if chunk_size is None else check_count("chunk_size", chunk_size, 1)
        self.pair_weights = check_pairs(pairs)
        if not isinstance(fused, bool):
            raise ValueError(f"fused must be true or false, got {fused!r}")
        self.fused = fused

    def forward(
        self,
        za: Tensor | Rows,
        zb: Tensor | None = None,
        a: Tensor | None = None,
        b: Tensor | None = None,
        ids: Tensor | None = None,
        *,
        features: Rows | None = None,
        present: Rows | None = None,
    ) -> Tensor:
        """Scalar loss of a batch; see the class for the arguments."""
        call = read_call(za, zb, a, b, ids, features, present)
        dynamo = sys.modules.get("torch._dynamo")  # importing the compiler takes seconds
        # torch.compile must not trace this, because control flow depends on values and buffers change their shape.
        loss: Tensor = self._evaluate(call) if dynamo is None else dynamo.disable(self._evaluate)(call)
        return loss

    forward._torchdynamo_disable = True  # type: ignore[attr-defined]

    def _evaluate(self, call: Call) -> Tensor:
        first = next(iter(call.embeddings.values()))
        device = first.device.type if isinstance(first, Tensor) else "cpu"
        with torch.autocast(device, enabled=False):  # a softmax at small temperatures needs float32 precision
            return self.compute(self.check(call))

    def check(self, call: Call) -> EmbeddedBatch:
        """Check the arguments of a call."""
        return check_embeddings(call)

    def compute(self, batch: EmbeddedBatch) -> Tensor:
        """Scalar loss of checked unit rows."""
        raise NotImplementedError

    def all_levels(
        self,
        outputs: Mapping[str, Tensor],
        clip_counts: Tensor,
        generator: torch.Generator | None = None,
        present: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Scalar loss of all outputs (by ``level/modality``) of a two-level model, if ``covers_all_levels`` is set."""
        raise NotImplementedError(f"{type(self).__name__} compares one level at a time")


class TemperatureLoss(Loss):
    """A loss that divides all cosines by a fixed temperature."""

    def __init__(
        self,
        temperature: float = 0.03,
        chunk_size: int | None = None,
        pairs: PairsOption = "all",
        fused: bool = False,
    ) -> None:
        super().__init__(pairs, fused, chunk_size)
        self.temperature = check_temperature(temperature)


class PairwiseLoss(Loss):
    """A loss that is a mean over pairs of modalities, each computed from the samples that have both."""

    def compute(self, batch: EmbeddedBatch) -> Tensor:
        """Scalar loss of checked unit rows."""
        pairs = pairs_of(batch, self.pair_weights, self.fused)
        weighted = [pair.weight * self.pair_loss(*pair.rows(batch.ids)) for pair in pairs]
        return mean_over_pairs(weighted, sum(pair.weight for pair in pairs), pairs, batch)

    def pair_loss(self, x: Tensor, y: Tensor, ids: Tensor | None) -> Tensor:
        """Scalar loss of two modalities: unit rows x and y (N, D), which are partners, and ids (N,) or None."""
        raise NotImplementedError
