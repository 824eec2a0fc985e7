"""Encoders and the two-branch model over them."""

from crossclr.models.anchors import Anchors
from crossclr.models.config import (
    AnchorsConfig,
    EncoderConfig,
    GlobalEncoderConfig,
    HubsConfig,
    MLPEncoderConfig,
    ModelConfig,
    TransformerEncoderConfig,
    ViewsConfig,
)
from crossclr.models.coot_checkpoint import export_coot, import_coot
from crossclr.models.embedding import as_searched, embed_source, pool_source
from crossclr.models.embeddings import Embeddings
from crossclr.models.hubs import Hubs
from crossclr.models.two_branch import TwoBranch, build_model
from crossclr.models.views import Views

__all__ = [
    "Anchors",
    "AnchorsConfig",
    "Embeddings",
    "EncoderConfig",
    "GlobalEncoderConfig",
    "Hubs",
    "HubsConfig",
    "MLPEncoderConfig",
    "ModelConfig",
    "TransformerEncoderConfig",
    "TwoBranch",
    "Views",
    "ViewsConfig",
    "as_searched",
    "build_model",
    "embed_source",
    "export_coot",
    "import_coot",
    "pool_source",
]
