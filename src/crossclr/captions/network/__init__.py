"""The captioner's network."""
