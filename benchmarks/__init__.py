"""Figures measured side by side in one run; `make bench` prints them and writes benchmarks/results.json."""
