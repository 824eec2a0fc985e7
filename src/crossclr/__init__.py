"""One embedding space for video, text, sound and images, learned from features you already have."""

from crossclr.lazy_exports import lazy_exports

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
