"""One query from several things: a sentence, a file, items of which you want more, and items of which you want less."""

import numpy as np

from crossclr.search.index.contract import Vectors, unit
from crossclr.search.queries.query_options import Weights
from crossclr.search.query_error import QueryError


def with_sentences(item: Vectors, sentences: Vectors) -> Vectors:
    """(1, dim) an item that a person judged, together with the sentences of its clip, which count twice.

    Example:
        >>> vector = with_sentences(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]))
        >>> [round(float(value), 2) for value in vector[0]]
        [0.45, 0.89]
    """
    return unit(unit(item) + 2 * unit(unit(sentences).mean(0, keepdims=True))) if len(sentences) else item


def combine(
    *,
    text: Vectors | None = None,
    file: Vectors | None = None,
    more: Vectors | None = None,
    less: Vectors | None = None,
    weights: Weights | None = None,
) -> Vectors:
    """(1, dim) the unit vector of a combined query, by Rocchio's rule.

    Each kind of part is the unit vector of its mean. The query is their weighted sum, in which ``less`` is subtracted.

    Args:
        text: (1, dim) vector of the sentence.
        file: (1, dim) vector of the file.
        more: (items, dim) vectors of the items that the results should resemble.
        less: (items, dim) vectors of the items that they should not resemble.
        weights: how much each part counts.

    Raises:
        QueryError: nothing says what to find, or the parts cancel each other.

    Example:
        >>> query = combine(text=np.array([[1, 0]]), more=np.array([[0, 1], [0, 3]]), weights=Weights(more=1))
        >>> query.round(4).astype(str).tolist()
        [['0.7071', '0.7071']]
    """
    weights = weights or Weights()
    parts = [
        sign * getattr(weights, name) * unit(unit(np.asarray(found, dtype=np.float32)).mean(0, keepdims=True))
        for name, found, sign in (("text", text, 1), ("file", file, 1), ("more", more, 1), ("less", less, -1))
        if found is not None and len(found)
    ]
    if (text is None and file is None and more is None) or not parts:
        raise QueryError("say what to find: a sentence, a file, or an item to find more of")
    total = np.sum(parts, axis=0)
    if float(np.linalg.norm(total)) < 1e-6:
        raise QueryError("the parts of the query cancel each other; change their weights")
    return unit(total)
