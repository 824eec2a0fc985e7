"""The cheap checks that `crossclr train` runs itself: enough samples, unique ids, no sample in two splits."""

from collections.abc import Iterable, Sequence

import numpy as np

from crossclr.features.errors import DataError
from crossclr.features.source import Source

COMPARED = 32  # repeated ids whose features are compared


def check_splits(source: Source, train: str, others: Iterable[str | None] = ()) -> None:
    """Refuse splits that would make a result wrong; in ``others``, None and ``train`` itself are skipped."""
    measured = [split for split in dict.fromkeys(others) if split is not None and split != train]
    for split in (train, *measured):
        if not len(source.keys(split)):
            raise DataError(f"split {split!r} has no samples; see the section splits of the config")
    if len(source.keys(train)) < 2:
        raise DataError(f"split {train!r} has one sample; contrastive training needs at least two")
    known = _checked_ids(source, train)
    for split in measured:
        shared = [name for name in _checked_ids(source, split) if name in known]
        if shared:
            raise DataError(
                f"{len(shared):,} samples of split {split!r} are also in split {train!r} (first: {shared[0]!r}); the "
                "results would not be honest: assign each sample to one split"
            )


def _checked_ids(source: Source, split: str) -> set[str]:
    """The ids of a split; rows of one id must be several sentences of one clip."""
    ids = source.ids(split)
    known = set(ids)
    if "" in known:
        raise DataError(f"split {split!r}: sample {source.keys(split)[list(ids).index('')]} has no id; give it one")
    if len(known) < len(ids):
        _compare_repeated(source, split, ids)
    return known


def _compare_repeated(source: Source, split: str, ids: Sequence[str]) -> None:
    first: dict[str, int] = {}
    keys, modality, compared = source.keys(split), source.modalities[0], 0
    for place, name in enumerate(ids):
        if first.setdefault(name, place) == place:
            continue
        before, again = (source.read(keys[number])[modality].clips for number in (first[name], place))
        if keys[first[name]] == keys[place] or not all(map(np.array_equal, before, again)):
            raise DataError(f"split {split!r}: id {name!r} occurs twice with different features; give each its own id")
        compared += 1
        if compared == COMPARED:
            return
