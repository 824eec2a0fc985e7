"""Feature rows by key: the two kinds of files, and experts that are joined."""

import h5py
import numpy as np
import pytest

from crossclr.data import DataError
from crossclr.data.entries import FolderRows, Hdf5Rows, open_rows, read_experts
from crossclr.data.sequences import join_rows


def rows(count, dim, seed=0):
    return np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)


@pytest.fixture
def hdf5(tmp_path):
    """Writes an HDF5 file and opens it."""

    def write(name="x.h5", **entries):
        with h5py.File(tmp_path / name, "w") as file:
            for key, values in entries.items():
                file[key] = values
        return open_rows(tmp_path / name)

    return write


@pytest.fixture
def folder(tmp_path):
    """Writes a folder of arrays and opens it."""

    def write(name="folder", **entries):
        (tmp_path / name).mkdir()
        for key, values in entries.items():
            np.save(tmp_path / name / f"{key}.npy", values)
        return open_rows(tmp_path / name)

    return write


def test_a_path_is_opened_by_what_it_is(hdf5, folder):
    assert isinstance(hdf5(x=rows(2, 3)), Hdf5Rows)
    assert isinstance(folder(x=rows(2, 3)), FolderRows)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32])
def test_both_kinds_give_the_stored_rows_as_float32(hdf5, folder, dtype):
    values = (10 * rows(4, 3)).astype(dtype)
    for reader in (hdf5(x=values), folder(x=values)):
        found = reader.read("x")
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, values.astype(np.float32))
        assert reader.dim == 3
        assert reader.names() == ["x"]


def test_a_vector_is_one_row(hdf5, folder):
    for reader in (hdf5(x=np.arange(3.0)), folder(x=np.arange(3.0))):
        assert reader.read("x").tolist() == [[0.0, 1.0, 2.0]]


def test_axes_of_size_one_are_dropped_in_folders(tmp_path):
    values = rows(5, 4)
    np.savez(tmp_path / "x.npz", other=np.zeros(2), frame_scores=values[:, None, :, None, None])
    np.testing.assert_array_equal(FolderRows(tmp_path).read("x"), values)


def test_old_coot_names_are_found_only_if_the_key_itself_is_missing(hdf5):
    reader = hdf5(**{"v_abcdefghijk": rows(1, 2, 1), "abcdefghijk_9": rows(1, 2, 2)})
    assert reader.find("abcdefghijk_7") == "v_abcdefghijk"
    assert reader.find("abcdefghijk_9") == "abcdefghijk_9"
    assert reader.find("zzz") is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.full((2, 3), np.nan), r"in 2 of 2 rows \(first: row 0\)"),
        (np.array([[1.0, 2.0, 3.0], [1.0, np.inf, 3.0]]), r"in 1 of 2 rows \(first: row 1\)"),
        (np.zeros((0, 3)), "is empty"),
        (np.zeros((2, 3, 4)), r"\(rows, dim\) is needed"),
        (np.array([[True, False, True]]), "features must be numbers"),
        (np.zeros((2, 5)), "5 channels but the first entry has 3"),
    ],
)
def test_invalid_rows_name_the_file_and_the_key(hdf5, folder, values, message):
    for reader in (hdf5(a=rows(2, 3), bad=values), folder(a=rows(2, 3), bad=values)):
        with pytest.raises(DataError, match=message) as error:
            reader.read("bad")
        assert str(reader.path) in str(error.value)
        assert "'bad'" in str(error.value)


def test_large_finite_values_whose_sum_overflows_are_accepted(hdf5):
    large = np.full((2, 3), 3e38, np.float32)
    np.testing.assert_array_equal(hdf5(x=large).read("x"), large)


def test_the_number_of_channels_is_known_without_reading_rows(hdf5):
    assert hdf5(x=np.full((2, 3), np.nan)).dim == 3


def test_missing_keys_and_empty_files(hdf5, folder, tmp_path):
    for reader in (hdf5(x=rows(1, 2)), folder(x=rows(1, 2))):
        with pytest.raises(DataError, match="no entry for key 'y'"):
            reader.read("y")
    with pytest.raises(DataError, match="has no entries"):
        _ = hdf5("empty.h5").dim
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DataError, match=r"no \.npy or \.npz files"):
        FolderRows(tmp_path / "nothing")


def test_joined_experts_against_a_loop():
    first, third = rows(6, 2, 1), rows(3, 4, 2)
    joined = join_rows([first, None, third], [2, 3, 4])
    assert joined.shape == (6, 9)
    for row in range(6):
        # The centre of interval `row` of 6, in units of the 3 stored rows; half a row is the distance to a centre.
        centre = min(max((row + 0.5) / 2 - 0.5, 0), 2)
        below = min(int(centre), 1)
        expected = third[below] * (1 - (centre - below)) + third[below + 1] * (centre - below)
        np.testing.assert_allclose(joined[row], [*first[row], 0, 0, 0, *expected], rtol=1e-6)


def test_a_missing_first_expert_leaves_the_number_of_rows_to_the_next():
    assert join_rows([None, rows(3, 2)], [1, 2]).shape == (3, 3)


def test_each_expert_is_read_or_none(hdf5):
    one, two = hdf5("one.h5", x=rows(1, 2), y=rows(1, 2)), hdf5("two.h5", y=rows(2, 3))
    assert [part is None for part in read_experts([one, two], "x")] == [False, True]
    assert [len(part) for part in read_experts([one, two], "y")] == [1, 2]
    with pytest.raises(DataError, match=r"no expert has key 'z' .*one\.h5.*two\.h5"):
        read_experts([one, two], "z")
