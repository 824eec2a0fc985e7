"""The exception for invalid data."""

from crossclr.storage.reading import ReadError


class DataError(ReadError):
    """Invalid data; the message names the file and the key, and says how to fix it."""
