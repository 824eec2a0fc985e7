"""Baselines that need no training."""
