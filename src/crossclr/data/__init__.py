"""Data sets of named modalities: samples, batches, files, checks."""

from crossclr.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
