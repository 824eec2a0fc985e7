"""Feature rows of named modalities: sources, samples, batches."""

from crossclr.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
