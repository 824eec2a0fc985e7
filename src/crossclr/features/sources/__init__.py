"""Data sources, one file for each kind, and the configs that describe them."""
