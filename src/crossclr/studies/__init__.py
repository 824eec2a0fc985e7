"""The paper's tables and figures on any data: experiments, figures, and a report."""

from crossclr.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
