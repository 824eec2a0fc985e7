"""The experiments: the paper's tables and curves."""

from crossclr.analysis.experiments.ablation import Ablation
from crossclr.analysis.experiments.contract import Curve, Experiment
from crossclr.analysis.experiments.experts import Experts
from crossclr.analysis.experiments.losses import Losses
from crossclr.analysis.experiments.modalities import Modalities
from crossclr.analysis.experiments.multiple_positives import Positives
from crossclr.analysis.experiments.sweeps import Sweeps

EXPERIMENTS: dict[str, Experiment] = {
    "losses": Losses(),
    "ablation": Ablation(),
    "sweeps": Sweeps(),
    "modalities": Modalities(),
    "experts": Experts(),
    "positives": Positives(),
}

__all__ = ["EXPERIMENTS", "Curve", "Experiment"]
