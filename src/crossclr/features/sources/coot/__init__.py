"""Data in COOT's layout."""
