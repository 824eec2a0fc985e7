"""CrossCLR and its rivals behind one interface: ``loss_fn(za, zb, a=None, b=None, ids=None) -> scalar tensor``."""

from crossclr.losses.clip import CLIP
from crossclr.losses.coot import Coot, cycle_consistency
from crossclr.losses.crossclr import CrossCLR, LossStats
from crossclr.losses.dcl import DCL
from crossclr.losses.distributed import Distributed
from crossclr.losses.maxmargin import MaxMargin
from crossclr.losses.memory.queue import PairQueue
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
    "LossStats",
    "MaxMargin",
    "NTXent",
    "PairQueue",
    "SigLIP",
    "build_loss",
    "cycle_consistency",
]
