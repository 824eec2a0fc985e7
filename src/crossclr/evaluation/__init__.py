"""How good an embedding is: exact ranks, retrieval metrics, the CCA baseline, fusion of runs, export."""

from crossclr.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
