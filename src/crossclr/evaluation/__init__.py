"""How good an embedding is: exact ranks, retrieval metrics, the CCA floor, fusion of runs, export."""

from crossclr.evaluation.card import model_card, write_card
from crossclr.evaluation.cca import CCA, Moments, fit_cca
from crossclr.evaluation.export import load_embeddings, save_embeddings
from crossclr.evaluation.floor import cca_floor, embed_floor, fit_floor
from crossclr.evaluation.fusion import fuse
from crossclr.evaluation.metrics import (
    METRICS,
    coot_median,
    evaluate_embeddings,
    metrics_table,
    rank_metrics,
    retrieval_metrics,
)
from crossclr.evaluation.ranks import retrieval_ranks
from crossclr.evaluation.runs import Evaluation, embed_run, evaluate_runs
from crossclr.evaluation.targets import Targets

__all__ = [
    "CCA",
    "METRICS",
    "Evaluation",
    "Moments",
    "Targets",
    "cca_floor",
    "coot_median",
    "embed_floor",
    "embed_run",
    "evaluate_embeddings",
    "evaluate_runs",
    "fit_cca",
    "fit_floor",
    "fuse",
    "load_embeddings",
    "metrics_table",
    "model_card",
    "rank_metrics",
    "retrieval_metrics",
    "retrieval_ranks",
    "save_embeddings",
    "write_card",
]
