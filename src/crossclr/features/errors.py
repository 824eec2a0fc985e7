"""The one exception of this stage."""

from __future__ import annotations


class DataError(ValueError):
    """A fault in a user's data; the message names the file and the key, and says what to do."""
