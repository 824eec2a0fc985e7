"""The error of a query that cannot be answered."""


class QueryError(ValueError):
    """A query that has no answer; the message says why."""
