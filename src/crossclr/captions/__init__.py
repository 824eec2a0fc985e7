"""Sentences for clips and paragraphs for videos, written from embeddings, and their scores."""

from crossclr.captions.meteor import Meteor, MeteorError
from crossclr.captions.metrics import METRICS, Scores, score_captions
from crossclr.captions.predictions import Caption, load_predictions, load_references, save_predictions
from crossclr.captions.repetition import mean_repetition, repetition
from crossclr.captions.vocabulary import Vocabulary, tokenise

__all__ = [
    "METRICS",
    "Caption",
    "Meteor",
    "MeteorError",
    "Scores",
    "Vocabulary",
    "load_predictions",
    "load_references",
    "mean_repetition",
    "repetition",
    "save_predictions",
    "score_captions",
    "tokenise",
]
