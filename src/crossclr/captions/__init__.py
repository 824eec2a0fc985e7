"""Sentences for clips and paragraphs for videos, written from embeddings, and their scores."""

from crossclr.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
