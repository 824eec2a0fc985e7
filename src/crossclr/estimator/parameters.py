"""What scikit-learn expects of an estimator, without importing it: that takes as long as importing PyTorch."""

import inspect
from typing import Any, Self

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

        return BaseEstimator().__sklearn_tags__()

    def _check_fitted(self, attribute: str) -> None:
        if not hasattr(self, attribute):
            from sklearn.exceptions import NotFittedError

            raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit first")

    @classmethod
    def _defaults(cls) -> dict[str, Any]:
        arguments = list(inspect.signature(cls.__init__).parameters.values())[1:]
        return {argument.name: argument.default for argument in arguments}
