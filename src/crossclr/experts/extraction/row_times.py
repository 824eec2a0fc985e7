"""The seconds that the rows of a recording cover."""

import h5py
import numpy as np
import numpy.typing as npt

from crossclr.experts.contract import Needs


def row_times(data: h5py.Dataset) -> npt.NDArray[np.float64]:
    """(rows, 2): the first and last second that each row of a feature file covers.

    The row of a single image covers the time around it, the row of a window covers the window.

    Args:
        data: the rows of one recording, with the attributes that `crossclr extract` writes.
    """
    first, step, span, last = (float(data.attrs[f"{name}_sec"]) for name in ("first", "step", "span", "last"))
    starts = np.minimum(first + step * np.arange(len(data)), last)
    return np.stack([starts, starts + (span or step)], axis=1)


def describe_times(needs: Needs, rows: int, duration: float) -> dict[str, float]:
    """The attributes that ``row_times`` reads, for the rows of a recording."""
    step = 1.0 / needs.rows_per_second
    first = (step - needs.span) / 2 if needs.kind == "sound" else 0.0
    last = first + step * (rows - 1)
    if needs.kind == "windows":
        last = max(0.0, min(last, duration - needs.span))
    return {"first_sec": first, "step_sec": step, "span_sec": needs.span, "last_sec": last}
