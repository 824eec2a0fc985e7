"""Evaluation of run folders: metrics, fusion of several runs, model card."""
