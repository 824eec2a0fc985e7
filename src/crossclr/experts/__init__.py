"""Experts: networks that turn videos, images, sound and sentences into feature rows.

They need the extra `crossclr[experts]`; the packages of the extra are imported when an expert is built.
"""

from crossclr.experts.contract import (
    Expert,
    ExpertError,
    FrameExpert,
    LongTexts,
    Needs,
    Origin,
    Paragraph,
    SoundExpert,
    TokenExpert,
    WindowExpert,
    window_spans,
)
from crossclr.experts.extraction.extract import extract
from crossclr.experts.extraction.row_times import row_times
from crossclr.experts.extraction.settings import Report, Settings, StrictError
from crossclr.experts.media import MediaError
from crossclr.experts.media.decoding import decode, probe
from crossclr.experts.networks.efficientnet import ImageEncoder
from crossclr.experts.networks.tokens import TokenEncoder
from crossclr.experts.registry import expert_names, load, load_experts, works_offline
from crossclr.experts.texts.token_features import write_token_features_captions, write_token_features_coot

__all__ = [
    "Expert",
    "ExpertError",
    "FrameExpert",
    "ImageEncoder",
    "LongTexts",
    "MediaError",
    "Needs",
    "Origin",
    "Paragraph",
    "Report",
    "Settings",
    "SoundExpert",
    "StrictError",
    "TokenEncoder",
    "TokenExpert",
    "WindowExpert",
    "decode",
    "expert_names",
    "extract",
    "load",
    "load_experts",
    "probe",
    "row_times",
    "window_spans",
    "works_offline",
    "write_token_features_captions",
    "write_token_features_coot",
]
