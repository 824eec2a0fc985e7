"""Optimisers and schedules of the learning rate."""
