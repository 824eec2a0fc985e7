"""Parity with COOT: its batches and its checkpoints."""
