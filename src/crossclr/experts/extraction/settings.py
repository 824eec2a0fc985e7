"""The settings of an extraction, and the report of what it did."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from crossclr.experts.contract import LongTexts
from crossclr.experts.extraction.cutting import Cutting
from crossclr.experts.extraction.recordings import Problem
from crossclr.experts.extraction.training_set import FRACTIONS

STORED = ("float16", "float32")


class StrictError(ValueError):
    """With ``strict``, the first file or segment that would be omitted."""


@dataclass(frozen=True)
class Settings:
    """How to extract.

    Args:
        strict: stop at the first file or segment that would be omitted.
        stored: number type of the rows, ``float16`` or ``float32``.
        fractions: share of each split, for recordings whose captions name none.
        workers: recordings decoded at once; default: chosen by the number of cores.
        threads: CPU threads of the networks; default: torch's own number, since decoders need little.
        segments: how to cut recordings without sentences (see `Cutting.parse`); default: each is one clip.
        modalities: names of experts by modality; the others form ``video``, ``audio`` and ``text``.
    """

    strict: bool = False
    stored: str = "float16"
    fractions: Mapping[str, float] = field(default_factory=lambda: dict(FRACTIONS))
    workers: int | None = None
    threads: int | None = None
    segments: str | None = None
    modalities: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.segments is not None:
            Cutting.parse(self.segments)
        if self.stored not in STORED:
            raise ValueError(f"rows are stored as {' or '.join(STORED)}, got {self.stored!r}")
        if not self.fractions or min(self.fractions.values()) < 0 or sum(self.fractions.values()) <= 0:
            raise ValueError(f"shares of splits must be positive, got {dict(self.fractions)}")


@dataclass
class Report:
    """What an extraction did.

    Args:
        out: the output folder.
        rows: rows of each expert in the folder.
        done: recordings that this run encoded.
        kept: recordings that an earlier run had finished.
        problems: everything that was omitted.
        unused: files that the captions do not name.
        long_texts: for each text expert, the texts that are longer than its limit, if there are any.
        config: the config to train with; None if there are not two modalities.
        datapoints: entries of the meta file.
        clips: segments of the meta file.
    """

    out: Path
    rows: dict[str, int] = field(default_factory=dict)
    done: int = 0
    kept: int = 0
    problems: list[Problem] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    long_texts: dict[str, LongTexts] = field(default_factory=dict)
    config: Path | None = None
    datapoints: int = 0
    clips: int = 0
