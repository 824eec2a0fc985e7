"""Sentences for clips and paragraphs for videos, written from embeddings, and their scores."""

from crossclr.captions.caption_set import CaptionSet
from crossclr.captions.ceiling import human_ceiling
from crossclr.captions.comparison import Comparison, compare_captions
from crossclr.captions.config import CaptionConfig, DecodingConfig, load_caption_config, preset_names
from crossclr.captions.decoding import beam_search, greedy, write_captions
from crossclr.captions.meteor import Meteor, MeteorError
from crossclr.captions.metrics import METRICS, Scores, score_captions
from crossclr.captions.model import Captioner
from crossclr.captions.page import Shown, Writer, caption_page
from crossclr.captions.pipeline import generate_captions, resume_captions, train_captions
from crossclr.captions.predictions import Caption, load_predictions, load_references, save_predictions
from crossclr.captions.repetition import mean_repetition, repetition
from crossclr.captions.run import CaptionRun
from crossclr.captions.sources import load_caption_set
from crossclr.captions.vocabulary import Vocabulary, tokenise

__all__ = [
    "METRICS",
    "Caption",
    "CaptionConfig",
    "CaptionRun",
    "CaptionSet",
    "Captioner",
    "Comparison",
    "DecodingConfig",
    "Meteor",
    "MeteorError",
    "Scores",
    "Shown",
    "Vocabulary",
    "Writer",
    "beam_search",
    "caption_page",
    "compare_captions",
    "generate_captions",
    "greedy",
    "human_ceiling",
    "load_caption_config",
    "load_caption_set",
    "load_predictions",
    "load_references",
    "mean_repetition",
    "preset_names",
    "repetition",
    "resume_captions",
    "save_predictions",
    "score_captions",
    "tokenise",
    "train_captions",
    "write_captions",
]
