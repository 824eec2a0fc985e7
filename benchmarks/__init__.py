"""Measurements that run side by side; `make bench` prints them and writes benchmarks/results.json."""
