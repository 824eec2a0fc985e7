"""What scikit-learn expects of an estimator, without importing it: that takes as long as importing PyTorch."""

import inspect
from typing import Any, Self

import numpy as np

from crossclr.suggestions import suggest


class Parameters:
    """An estimator whose constructor only stores its arguments; `clone`, pipelines and searches accept it.

    Example:
        >>> class Scale(Parameters):
        ...     def __init__(self, factor=1):
        ...         self.factor = factor
        >>> Scale().set_params(factor=3)
        Scale(factor=3)
    """

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments of the constructor, by name; ``deep`` changes nothing, because none is an estimator."""
        return {name: getattr(self, name) for name in self._defaults()}

    def set_params(self, **params: Any) -> Self:
        """Change arguments of the constructor; returns the estimator itself."""
        for name, value in params.items():
            if name not in self._defaults():
                raise ValueError(f"{type(self).__name__} has no parameter {name!r}; {suggest(name, self._defaults())}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        given = {name: repr(getattr(self, name)) for name in self._defaults()}
        changed = [
            f"{name}={given[name]}" for name, default in self._defaults().items() if given[name] != repr(default)
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_tags__(self) -> Any:
        from sklearn.base import BaseEstimator  # scikit-learn itself calls this
        from sklearn.utils import TransformerTags

        tags = BaseEstimator().__sklearn_tags__()
        tags.transformer_tags = TransformerTags()
        tags.target_tags.required = tags.target_tags.multi_output = True  # y is the second modality
        tags.target_tags.single_output = False
        tags.input_tags.sparse = True
        return tags

    def _check_fitted(self, attribute: str) -> None:
        if not hasattr(self, attribute):
            from sklearn.exceptions import NotFittedError

            raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit first")

    @classmethod
    def _defaults(cls) -> dict[str, Any]:
        arguments = list(inspect.signature(cls.__init__).parameters.values())[1:]
        return {argument.name: argument.default for argument in arguments}


class NamedArrays(dict[str, Any]):
    """Modalities by name whose samples scikit-learn can select: for `cross_val_score`, searches and splits.

    Example:
        >>> pairs = NamedArrays(video=np.arange(6).reshape(3, 2), text=["a", "b", "c"])
        >>> pairs.shape, pairs[[0, 2]]
        ((3, 2), {'video': array([[0, 1],
               [4, 5]]), 'text': ['a', 'c']})
    """

    @property
    def shape(self) -> tuple[int, int]:
        """Number of samples and of modalities."""
        first = next(iter(self.values()))
        return (first.shape[0] if hasattr(first, "shape") else len(first)), len(self)

    def __getitem__(self, key: Any) -> Any:
        """A modality by its name, or all modalities of some samples by their places."""
        if isinstance(key, str):
            return super().__getitem__(key)
        places = np.arange(self.shape[0])[key[0] if isinstance(key, tuple) else key]
        rows = {name: getattr(values, "iloc", values) for name, values in self.items()}
        return NamedArrays(
            {name: [one[at] for at in places] if isinstance(one, list) else one[places] for name, one in rows.items()}
        )


def read_seed(random_state: Any) -> int:
    """A seed from a seed, from a generator, or from numpy's global generator for None."""
    if random_state is None:
        return int(np.random.randint(2**31 - 1))  # noqa: NPY002  # as scikit-learn does
    if not isinstance(random_state, np.random.RandomState):
        try:
            random_state = np.random.RandomState(random_state)
        except (TypeError, ValueError) as error:
            raise ValueError(f"random_state: {random_state!r} is not a seed ({error})") from None
    return int(random_state.randint(2**31 - 1))


def plain_value(value: Any) -> Any:
    """A parameter in types that JSON has."""
    if isinstance(value, np.generic):
        return value.item()
    return None if isinstance(value, np.random.RandomState) else value
