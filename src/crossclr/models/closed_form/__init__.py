"""Encoders in closed form: fitted by linear algebra, without training."""

from crossclr.models.closed_form.cca import CCA, Moments, fit_cca

__all__ = ["CCA", "Moments", "fit_cca"]
