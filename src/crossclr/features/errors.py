"""The exception for invalid data."""


class DataError(ValueError):
    """Invalid data; the message names the file and the key, and says how to fix it."""
