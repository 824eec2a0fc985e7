"""The state of one modality: its recent samples, influential rows and anchor weights."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn

from crossclr.features.row_connectivity import connectivity_to
from crossclr.losses.inputs.embeddings import either_mask
from crossclr.losses.memory.influence import InfluenceRules, anchor_weights, influential, nearest_influential
from crossclr.losses.memory.queue import RingBuffer


@dataclass(frozen=True)
class Influence:
    """Influential rows and weights of one modality. They are constants: no gradient flows through them."""

    rules: InfluenceRules  # the options
    features: Tensor | None = None  # (N, Dx) unit input features of the batch; None if connectivity is not used
    present: Tensor | None = None  # (N,) which samples have the modality; None: all of them
    scores: Tensor | None = None  # (N,) connectivity of the batch's rows; None if it is not used
    mask: Tensor | None = None  # (N,) influential rows of the batch; None if connectivity is not used
    queue_mask: Tensor | None = None  # (filled,) influential rows of the queue; None without a queue
    slots: Tensor | None = None  # of the batch's present rows in the queue; None if the batch is the reference set
    pruned: Tensor | None = None  # scalar, share of the reference set that is influential
    held_back: bool = False  # whether ``min_keep`` limited the pruning

    def negatives(self, candidates: Tensor | None) -> Tensor | None:
        """(N,) the candidates that are not influential; None: all rows."""
        return either_mask(candidates, None if self.mask is None else ~self.mask)

    def queue_negatives(self, rows: int, device: torch.device) -> Tensor:
        """(rows,) rows of the queue that serve as negatives: not influential, and not from the batch itself."""
        keep = torch.ones(rows, dtype=torch.bool, device=device) if self.queue_mask is None else ~self.queue_mask
        keep[self.slots] = False  # the batch takes part with its live rows
        return keep

    def weights(self, anchors: Tensor | None, like: Tensor) -> Tensor:
        """(N,) weights of these anchors (None: all), which sum to 1; the others get 0. ``like`` sets the dtype."""
        if self.scores is None:
            return anchor_weights(torch.zeros_like(like[:, 0]).detach(), None, anchors=anchors)
        if anchors is None:
            return self._all_weights.to(like.dtype)
        return anchor_weights(self.scores, self.rules.weight_scale, self.present, anchors).to(like.dtype)

    @cached_property
    def _all_weights(self) -> Tensor:
        assert self.scores is not None  # noqa: S101 (asked by `weights`)
        return anchor_weights(self.scores, self.rules.weight_scale)

    def positives(self, anchors: Tensor | None) -> Tensor | None:
        """(N, k) influential anchors nearest to each anchor in input space, -1 for none; None: no anchor has any."""
        if not self.rules.extra_positives or self.mask is None or self.features is None:
            return None
        candidates = self.mask if anchors is None else self.mask & anchors
        return nearest_influential(self.features, candidates, self.rules.extra_positives)


class Modality(nn.Module):
    """The recent samples of one modality and their influence; without a queue, the batch alone."""

    def __init__(self, queue_size: int, rules: InfluenceRules) -> None:
        super().__init__()
        self.rules = rules
        self.queue = RingBuffer(queue_size) if queue_size else None

    def check(
        self, label: str, embeddings: Tensor, feature_label: str, features: Tensor | None, present: Tensor | None
    ) -> None:
        """Raise if rows do not fit the queue, before anything changes."""
        if self.queue is not None and (present is None or bool(present.any())):
            self.queue.check(feature_label, features, self.queue.features)
            self.queue.check(label, embeddings, self.queue.embeddings)

    def observe(
        self, embeddings: Tensor, features: Tensor | None, ids: Tensor | None, present: Tensor | None
    ) -> Influence:
        """Add a batch to the queue (only in training mode) and find the influential rows.

        Embeddings (N, D) and features (N, Dx) are unit rows. Features are None if connectivity is not used.
        """
        own = features if features is None or present is None else features[present]  # rows of the reference set
        slots = None
        if self.queue is not None and self.training:
            rows, row_ids = embeddings, ids
            if present is not None:
                rows, row_ids = embeddings[present], None if ids is None else ids[present]
            if len(rows):
                slots = self.queue.push(own, rows, row_ids)
            if len(rows) >= self.queue.size:
                slots = None  # the batch fills the queue: it is the reference set
        if features is None or own is None or not len(own):
            return Influence(self.rules, present=present, slots=slots)
        if slots is None or self.queue is None:
            rows, total, squares = own, own.sum(0), own.square().sum(1)
        else:
            filled = self.queue.filled
            rows, total, squares = self.queue.features[:filled], self.queue.total, self.queue.squares[:filled]
        scores = connectivity_to(rows, total, len(rows), squares)  # (M,)
        mask, held_back = influential(scores, self.rules.prune_threshold, self.rules.prune_by, self.rules.min_keep)
        batch_scores, batch_mask = (scores, mask) if slots is None else (scores[slots], mask[slots])
        return Influence(
            self.rules,
            features,
            present,
            scores=_at(present, batch_scores),
            mask=_at(present, batch_mask),
            queue_mask=None if slots is None else mask,
            slots=slots,
            pruned=mask.float().mean(),
            held_back=held_back,
        )


class ModalityDict(nn.ModuleDict):
    """A :class:`Modality` for each name, created when it first occurs (in a call, or in a state that is loaded)."""

    def __init__(self, queue_size: int, rules: InfluenceRules) -> None:
        super().__init__()
        self.queue_size, self.rules = queue_size, rules

    def of(self, name: str) -> Modality:
        """The modality of that name."""
        if name not in self:
            with torch.inference_mode(False):  # training cannot use buffers created in inference mode
                self[name] = Modality(self.queue_size, self.rules).train(self.training)
        return cast(Modality, self[name])

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # in the stored order, so that a resumed training stores the same bytes
        stored = dict.fromkeys(key[len(prefix) :].split(".")[0] for key in state_dict if key.startswith(prefix))
        for name in set(self) - set(stored):
            del self[name]
        for name in stored:
            self.of(name)
        super()._load_from_state_dict(state_dict, prefix, *args)


def _at(present: Tensor | None, values: Tensor) -> Tensor:
    """Put the values of the present rows into a vector for all rows of the batch."""
    if present is None:
        return values
    whole = values.new_zeros(len(present))
    whole[present] = values
    return whole
