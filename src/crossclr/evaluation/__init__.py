"""Ranks, retrieval metrics, and floors to compare with."""
