"""How good an embedding is: exact ranks, retrieval metrics, the CCA floor, fusion of runs, export."""

from crossclr.evaluation.card import model_card, write_card
from crossclr.evaluation.cca import CCA, Moments, fit_cca
from crossclr.evaluation.export import load_embeddings, save_embeddings
from crossclr.evaluation.floor import cca_floor, embed_floor, fit_floor, pooled_split
from crossclr.evaluation.fusion import fuse
from crossclr.evaluation.gain import ndcg
from crossclr.evaluation.metrics import (
    METRICS,
    coot_median,
    evaluate_embeddings,
    metrics_table,
    rank_metrics,
    retrieval_metrics,
)
from crossclr.evaluation.neighbourhoods import neighbours_kept
from crossclr.evaluation.ranks import retrieval_ranks
from crossclr.evaluation.relevance import Relevance
from crossclr.evaluation.runs import Evaluation, embed_run, evaluate_runs
from crossclr.evaluation.semantics import SEMANTIC, Semantics, kept_neighbours, semantic_scores
from crossclr.evaluation.shared_captions import SharedCaptions, shared_ranks
from crossclr.evaluation.targets import Targets

__all__ = [
    "CCA",
    "METRICS",
    "SEMANTIC",
    "Evaluation",
    "Moments",
    "Relevance",
    "Semantics",
    "SharedCaptions",
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
    "kept_neighbours",
    "load_embeddings",
    "metrics_table",
    "model_card",
    "ndcg",
    "neighbours_kept",
    "pooled_split",
    "rank_metrics",
    "retrieval_metrics",
    "retrieval_ranks",
    "save_embeddings",
    "semantic_scores",
    "shared_ranks",
    "write_card",
]
