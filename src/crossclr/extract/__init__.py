"""Experts: networks that turn videos, images, sound and sentences into feature rows.

They need the extra `crossclr[experts]`; the packages of the extra are imported when an expert is built.
"""

from crossclr.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
