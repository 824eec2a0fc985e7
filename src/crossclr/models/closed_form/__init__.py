"""Encoders in closed form: fitted by linear algebra, without training."""

from crossclr.models.closed_form.cross_fit import LINEAR, CrossFit, Grid, Trial
from crossclr.models.closed_form.encoder import ClosedForm
from crossclr.models.closed_form.feature_map import ClosedFormSettings, FeatureSpec
from crossclr.models.closed_form.pair_moments import Moments

__all__ = [
    "LINEAR",
    "ClosedForm",
    "ClosedFormSettings",
    "CrossFit",
    "FeatureSpec",
    "Grid",
    "Moments",
    "Trial",
]
