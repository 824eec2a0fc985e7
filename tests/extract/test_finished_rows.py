import h5py
import numpy as np
import pytest

from crossclr.extract import ExpertError
from crossclr.extract.finished_rows import PARTS_FOLDER as FOLDER
from crossclr.extract.finished_rows import FinishedRows
from tests.support.fake_experts import Colour, Letters

ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)


def opened(out, expert, **made_from):
    rows = FinishedRows(out, "float32")
    rows.expect(expert, made_from)
    return rows


def test_a_part_is_found_until_its_input_or_expert_changes(tmp_path):
    opened(tmp_path, Colour(), a=1).add(Colour(), "a", ROWS, duration_sec=2.5)
    found = opened(tmp_path, Colour(), a=1).find("colour", "a")
    assert (found["duration_sec"], found["expert"], found["dim"]) == (2.5, "colour", 3)
    assert opened(tmp_path, Colour(), a=2).find("colour", "a") is None
    assert opened(tmp_path, Colour(rate=7.0), a=1).find("colour", "a") is None
    assert opened(tmp_path, Colour(), b=1).find("colour", "b") is None


@pytest.mark.parametrize("kept", [0, 40, -40])
def test_a_damaged_part_counts_as_absent(tmp_path, kept):
    rows = opened(tmp_path, Colour(), a=1)
    rows.add(Colour(), "a", ROWS)
    (path,) = (tmp_path / FOLDER / "colour").iterdir()
    path.write_bytes(path.read_bytes()[:kept])
    assert rows.find("colour", "a") is None


def test_joining_adds_to_the_file_of_an_earlier_run(tmp_path):
    first = opened(tmp_path, Letters(), a=1)
    first.add(Letters(), "a", ROWS, sentence_tokens=[1, 1])
    assert first.join(Letters(), ["a"]).sentence_tokens == {"a": [1, 1]}
    first.remove_parts()
    second = opened(tmp_path, Letters(), a=1, b=2)
    assert second.find("letters", "a") is not None
    second.add(Letters(), "b", ROWS + 1, sentence_tokens=[2])
    joined = second.join(Letters(), ["a", "b"])
    assert (joined.rows, joined.sentence_tokens) == (4, {"a": [1, 1], "b": [2]})
    with h5py.File(tmp_path / "letters.h5") as file:
        np.testing.assert_array_equal(file["a"][()], ROWS)
        np.testing.assert_array_equal(file["b"][()], ROWS + 1)
        assert file["a"].attrs["expert"] == "letters"
    assert opened(tmp_path, Letters(), b=2).join(Letters(), ["b"]).rows == 2  # a is gone


def test_rows_that_cannot_be_stored_are_refused(tmp_path):
    rows = FinishedRows(tmp_path, "float16")
    rows.expect(Colour(), {"a": 1})
    with pytest.raises(ExpertError, match="--dtype float32"):
        rows.add(Colour(), "a", ROWS * 1e6)
    with pytest.raises(ExpertError, match="NaN"):
        rows.add(Colour(), "a", ROWS * np.nan)
