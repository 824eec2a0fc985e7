"""How good an embedding is: exact ranks, retrieval metrics, the CCA baseline, fusion of runs, export."""

from crossclr.evaluation.baselines.cca_baseline import cca_baseline, embed_baseline, fit_baseline, pooled_split
from crossclr.evaluation.export.embedding_files import load_embeddings, save_embeddings
from crossclr.evaluation.meaning.ndcg import ndcg
from crossclr.evaluation.meaning.neighbourhoods import neighbours_kept
from crossclr.evaluation.meaning.relevance import Relevance
from crossclr.evaluation.meaning.semantics import SEMANTIC, Semantics, kept_neighbours, semantic_scores
from crossclr.evaluation.meaning.shared_captions import SharedCaptions, shared_ranks
from crossclr.evaluation.retrieval.ground_truth import Targets
from crossclr.evaluation.retrieval.metrics import (
    METRICS,
    coot_median,
    evaluate_embeddings,
    metrics_table,
    rank_metrics,
    retrieval_metrics,
)
from crossclr.evaluation.retrieval.ranks import retrieval_ranks
from crossclr.evaluation.runs.evaluate import Evaluation, embed_run, evaluate_runs
from crossclr.evaluation.runs.fusion import fuse
from crossclr.evaluation.runs.model_card import model_card, write_card

__all__ = [
    "METRICS",
    "SEMANTIC",
    "Evaluation",
    "Relevance",
    "Semantics",
    "SharedCaptions",
    "Targets",
    "cca_baseline",
    "coot_median",
    "embed_baseline",
    "embed_run",
    "evaluate_embeddings",
    "evaluate_runs",
    "fit_baseline",
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
