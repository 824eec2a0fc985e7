"""Warnings of this package: one clean line for the user, whatever called the code that gives them."""

import warnings


class CrossCLRWarning(UserWarning):
    """Something works, but probably not as you want. Filter it as any other category of warnings."""


def warn(message: str) -> None:
    """Give a warning that names neither a source file nor a line of code.

    The place in the code says nothing here: it is a call inside torch, or deep in the training loop. The message
    itself says what happened and which option to change.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     warn("the queue is empty; raise queue_size")
        >>> str(caught[0].message), caught[0].filename
        ('the queue is empty; raise queue_size', 'crossclr')
    """
    warnings.warn_explicit(message, CrossCLRWarning, filename="crossclr", lineno=0, module=__name__)


def show_plainly() -> None:
    """Print these warnings as ``warning: message`` from now on. The command line calls this when it starts."""
    usual = warnings.formatwarning

    def plain(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        if issubclass(category, CrossCLRWarning):
            return f"warning: {message}\n"
        return usual(message, category, filename, lineno, line)

    warnings.formatwarning = plain
