"""Batches in COOT's form: padded arrays under COOT's names."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from crossclr.features.batch import Inputs
from crossclr.features.ragged import Ragged


def ragged_from_padded(features: Tensor, lengths: Tensor) -> Ragged:
    """Sequences without their padding, from (sequences, longest, dim) and (sequences,).

    Example:
        >>> import torch
        >>> ragged_from_padded(torch.arange(6.0).view(2, 3, 1), torch.tensor([1, 2])).values.flatten().tolist()
        [0.0, 3.0, 4.0]
    """
    lengths = lengths.to("cpu", torch.int64)
    if features.ndim != 3 or len(features) != len(lengths):
        raise ValueError(f"padded features of shape {tuple(features.shape)} do not match {len(lengths)} lengths")
    if len(lengths) and int(lengths.max()) > features.shape[1]:
        raise ValueError(f"a length of {int(lengths.max())} exceeds the {features.shape[1]} padded rows")
    valid = torch.arange(features.shape[1]) < lengths.unsqueeze(1)  # (sequences, longest)
    return Ragged(features[valid.to(features.device)], lengths)


def _ragged(batch: Mapping[str, Any], name: str, device: torch.device) -> Ragged:
    features = _tensor(batch, f"{name}_feat").to(device)
    if f"{name}_feat_len" in batch:
        return ragged_from_padded(features, _tensor(batch, f"{name}_feat_len"))
    mask = _tensor(batch, f"{name}_feat_mask").bool()  # True on padding
    return ragged_from_padded(features, (~mask).sum(1))


def _tensor(batch: Mapping[str, Any], key: str) -> Tensor:
    if key not in batch:
        raise ValueError(f"the batch has no {key!r}; a batch in COOT's form has {sorted(map(str, batch))}")
    return torch.as_tensor(batch[key])


def inputs_from_coot(
    batch: Mapping[str, Any], device: torch.device | str = "cpu"
) -> tuple[tuple[Inputs, Tensor], tuple[Inputs, Tensor]]:
    """Video and text of a batch in COOT's form, each with the number of clips (or sentences) of each video.

    The batch has ``clip_feat``, ``sent_feat``, ``clip_num``, ``sent_num`` and, for two levels, ``vid_feat`` and
    ``par_feat``, as numpy arrays or tensors; each ``x_feat`` comes with ``x_feat_len`` (or ``x_feat_mask``, True on
    padding).
    """
    place = torch.device(device)
    found = []
    for clips, whole in (("clip", "vid"), ("sent", "par")):
        context = _ragged(batch, whole, place) if f"{whole}_feat" in batch else None
        counts = _tensor(batch, f"{clips}_num").to("cpu", torch.int64)
        found.append((Inputs(_ragged(batch, clips, place), context), counts))
    return found[0], found[1]
