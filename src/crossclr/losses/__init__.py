"""CrossCLR and its rivals behind one interface: ``loss_fn(za, zb, a=None, b=None, ids=None) -> scalar tensor``."""

from crossclr.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
