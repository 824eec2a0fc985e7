"""Experts: networks that turn videos, pictures, sound and sentences into feature rows.

They need the extra `crossclr[experts]`; nothing heavy is imported until an expert is built.
"""

from crossclr.experts.contract import (
    Expert,
    ExpertError,
    FrameExpert,
    Needs,
    Origin,
    SoundExpert,
    TokenExpert,
    WindowExpert,
    window_spans,
)
from crossclr.experts.extraction.extract import Report, Settings, StrictError, extract, load_experts
from crossclr.experts.extraction.feature_files import row_times
from crossclr.experts.media.decoding import MediaError, decode, probe
from crossclr.experts.networks.efficientnet import ImageEncoder
from crossclr.experts.networks.tokens import TokenEncoder
from crossclr.experts.registry import expert_names, load, works_offline
from crossclr.experts.texts.token_features import write_token_features_captions, write_token_features_coot

__all__ = [
    "Expert",
    "ExpertError",
    "FrameExpert",
    "ImageEncoder",
    "MediaError",
    "Needs",
    "Origin",
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
