"""Encoders and the two-branch model over them."""
