"""Sums over all pairs of rows, a tile at a time, shared among processes, with exact derivatives."""
