"""Measures that take the meaning of captions into account: nDCG, shared captions, kept neighbours."""
