"""Sentences for clips and paragraphs for videos, written from embeddings, and their scores."""

from crossclr.captions.caption_config import CaptionConfig, DecodingConfig, load_caption_config, preset_names
from crossclr.captions.caption_page import Shown, Writer, caption_page
from crossclr.captions.caption_run import CaptionRun
from crossclr.captions.comparison import Comparison, compare_captions
from crossclr.captions.data.caption_set import CaptionSet
from crossclr.captions.data.load_caption_set import load_caption_set
from crossclr.captions.data.vocabulary import Vocabulary, tokenise
from crossclr.captions.decoding import beam_search, greedy, write_captions
from crossclr.captions.network.captioner import Captioner
from crossclr.captions.pipeline import generate_captions, resume_captions, train_captions
from crossclr.captions.scoring.caption_metrics import METRICS, Scores, score_captions
from crossclr.captions.scoring.human_ceiling import human_ceiling
from crossclr.captions.scoring.meteor import Meteor, MeteorError
from crossclr.captions.scoring.predictions import Caption, load_predictions, load_references, save_predictions
from crossclr.captions.scoring.repetition import mean_repetition, repetition

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
