"""The check of a data set before training."""
