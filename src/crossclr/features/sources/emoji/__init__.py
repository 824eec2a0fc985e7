"""The built-in set: emoji drawn by three vendors, with English names and tags."""

from crossclr.features.sources.emoji.emoji_catalogue import VENDORS, Emoji, load_emoji, load_rows
from crossclr.features.sources.emoji.emoji_images import count_images, emoji_image, is_built_in, read_image
from crossclr.features.sources.emoji.emoji_source import EmojiSource

__all__ = [
    "VENDORS",
    "Emoji",
    "EmojiSource",
    "count_images",
    "emoji_image",
    "is_built_in",
    "load_emoji",
    "load_rows",
    "read_image",
]
