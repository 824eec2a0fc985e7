"""How good an embedding is: exact ranks, retrieval metrics, the CCA floor, fusion of runs, export."""

from crossclr.evaluation.metrics import (
    METRICS,
    coot_median,
    evaluate_embeddings,
    metrics_table,
    rank_metrics,
    retrieval_metrics,
)
from crossclr.evaluation.ranks import retrieval_ranks
from crossclr.evaluation.targets import Targets

__all__ = [
    "METRICS",
    "Targets",
    "coot_median",
    "evaluate_embeddings",
    "metrics_table",
    "rank_metrics",
    "retrieval_metrics",
    "retrieval_ranks",
]
