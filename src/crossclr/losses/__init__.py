"""CrossCLR and other losses. All are called the same way and take any number of named modalities.

``loss({"video": zv, "text": zt}, features={...}, ids=ids, present={...})``, or ``loss(za, zb, a, b, ids)`` for a pair.
"""

from crossclr.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
