"""One embedding space for two modalities, learned from features you already have: the complete CrossCLR."""

__version__ = "0.1.0"
