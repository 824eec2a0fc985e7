"""Experts: networks with shipped weights that turn sentences and pictures into feature rows.

They need the extra `crossclr[experts]`; nothing heavy is imported until an expert is built.
"""

from crossclr.experts.appearance import PictureEncoder
from crossclr.experts.text import TokenEncoder, write_token_features_captions, write_token_features_coot

__all__ = ["PictureEncoder", "TokenEncoder", "write_token_features_captions", "write_token_features_coot"]
