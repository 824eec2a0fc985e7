"""Images, sound and video: file types, decoding, and preparing images for a network."""


class MediaError(ValueError):
    """A file that cannot be decoded; the message says why."""
