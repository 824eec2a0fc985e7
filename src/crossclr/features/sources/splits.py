"""Keys by split: parts by share, unions, and splits drawn by a hash."""

from collections.abc import Mapping, Sequence

import numpy as np

from crossclr.features.errors import DataError
from crossclr.features.sample import stable_hash


class SplitKeys:
    """The keys of each split.

    Args:
        keys: keys of each split.
        parts: splits to cut into parts by share, as `split_by_fraction` does.
        unions: additional names for unions of splits.
        groups: group of each key; the keys of a group go to the same part.

    Example:
        >>> splits = SplitKeys({"train": ["x"], "val": ["y", "z"]}, unions={"all": ["train", "val"]})
        >>> splits["all"], splits.names
        (['x', 'y', 'z'], ('train', 'val'))
    """

    def __init__(
        self,
        keys: Mapping[str, Sequence[str]],
        parts: Mapping[str, Mapping[str, float]] | None = None,
        unions: Mapping[str, Sequence[str]] | None = None,
        groups: Mapping[str, str] | None = None,
    ) -> None:
        self._keys = dict(keys)
        self.names: tuple[str, ...] = tuple(keys)
        for name, fractions in (parts or {}).items():
            self._keys.update(split_by_fraction(self[name], fractions, groups))
        for name, members in (unions or {}).items():
            self._keys[name] = [key for member in members for key in self[member]]

    def __getitem__(self, split: str) -> Sequence[str]:
        if split not in self._keys:
            raise DataError(f"there is no split {split!r}; there are {', '.join(self._keys)}")
        return self._keys[split]


def split_by_fraction(
    keys: Sequence[str], fractions: Mapping[str, float], groups: Mapping[str, str] | None = None
) -> dict[str, list[str]]:
    """Splits drawn by a hash of each key (or of its group, so that a parent video stays in one split).

    A sample keeps its split when others are added or removed.

    Example:
        >>> parts = split_by_fraction([str(n) for n in range(1000)], {"train": 0.8, "val": 0.2})
        >>> 750 < len(parts["train"]) < 850, len(parts["train"]) + len(parts["val"])
        (True, 1000)
    """
    total = sum(fractions.values())
    if not fractions or min(fractions.values()) < 0 or total <= 0:
        raise DataError(f"split fractions must be positive, got {dict(fractions)}")
    names, edges = list(fractions), np.cumsum(list(fractions.values())) / total
    parts: dict[str, list[str]] = {name: [] for name in names}
    for key in keys:
        place = stable_hash(f"split:{(groups or {}).get(key) or key}") / 2**63
        parts[names[min(int(np.searchsorted(edges, place, side="right")), len(names) - 1)]].append(key)
    return parts
