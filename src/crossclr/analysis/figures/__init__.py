"""Figures of the report: what is computed for each, and how it is drawn."""
