"""Encoders and the two-branch model over them."""

from crossclr.models.adjustments.anchors import Anchors
from crossclr.models.adjustments.hub_bias import Hubs
from crossclr.models.adjustments.linear_views import Views
from crossclr.models.coot.coot_checkpoint import export_coot, import_coot
from crossclr.models.embed_split import as_searched, embed_source, pool_source
from crossclr.models.embeddings import Embeddings
from crossclr.models.model_config import (
    AnchorsConfig,
    EncoderConfig,
    GlobalEncoderConfig,
    HubsConfig,
    MLPEncoderConfig,
    ModelConfig,
    TransformerEncoderConfig,
    ViewsConfig,
)
from crossclr.models.two_branch import TwoBranch, build_model

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
