"""CrossCLR and other losses with one call, for any number of named modalities.

``loss({"video": zv, "text": zt}, features={...}, ids=ids, present={...})``, or ``loss(za, zb, a, b, ids)`` for a pair.
"""

from crossclr.losses.base import Loss
from crossclr.losses.clip import CLIP
from crossclr.losses.coot import Coot, cycle_consistency
from crossclr.losses.crossclr import CrossCLR
from crossclr.losses.dcl import DCL
from crossclr.losses.distributed import Distributed
from crossclr.losses.maxmargin import MaxMargin
from crossclr.losses.memory.queue import RingBuffer
from crossclr.losses.memory.stats import LossStats, ModalityStats
from crossclr.losses.milnce import MILNCE
from crossclr.losses.ntxent import NTXent
from crossclr.losses.registry import LOSSES, build_loss
from crossclr.losses.siglip import SigLIP

__all__ = [
    "CLIP",
    "DCL",
    "LOSSES",
    "MILNCE",
    "Coot",
    "CrossCLR",
    "Distributed",
    "Loss",
    "LossStats",
    "MaxMargin",
    "ModalityStats",
    "NTXent",
    "RingBuffer",
    "SigLIP",
    "build_loss",
    "cycle_consistency",
]
