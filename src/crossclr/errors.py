"""The base of every error that this package raises on purpose. This module lies below all others."""


class CrossCLRError(Exception):
    """Something that you can correct: the message says what happened, where, and how to fix it.

    Each error also has a base of Python's own, such as `ValueError`.

    Example:
        >>> from crossclr import load_config
        >>> try:
        ...     load_config("emoji", ["training.epoch=3"])
        ... except CrossCLRError as error:
        ...     print(error)
        emoji: training.epoch is not a field; did you mean 'epochs'?
    """


class ReadError(CrossCLRError, ValueError):
    """A file that is absent, damaged or invalid; the message names the file and says how to fix it."""


class DataError(ReadError):
    """Invalid data; the message names the file and the key, and says how to fix it."""
