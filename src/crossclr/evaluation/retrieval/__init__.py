"""Exact retrieval ranks and the metrics computed from them."""
