"""Building blocks of the encoders."""
