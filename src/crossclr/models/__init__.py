"""Encoders and the two-branch model over them."""

from crossclr.models.anchors import Anchors
from crossclr.models.config import (
    AnchorsConfig,
    EncoderConfig,
    GlobalEncoderConfig,
    MLPEncoderConfig,
    ModelConfig,
    TransformerEncoderConfig,
)
from crossclr.models.coot_checkpoint import export_coot, import_coot
from crossclr.models.embedding import embed_source
from crossclr.models.embeddings import Embeddings
from crossclr.models.two_branch import TwoBranch, build_model

__all__ = [
    "Anchors",
    "AnchorsConfig",
    "Embeddings",
    "EncoderConfig",
    "GlobalEncoderConfig",
    "MLPEncoderConfig",
    "ModelConfig",
    "TransformerEncoderConfig",
    "TwoBranch",
    "build_model",
    "embed_source",
    "export_coot",
    "import_coot",
]
