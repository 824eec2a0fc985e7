"""Feature files that are bombs, pipes or doors to other files are refused at once."""

import os
import zipfile

import h5py
import numpy as np
import pytest

from crossclr.data import DataError
from crossclr.data.array_files import open_npy, open_npz, open_parquet
from crossclr.data.entries import Hdf5Rows
from crossclr.data.shards import open_shard

READERS = [open_npy, open_npz, open_parquet, lambda path: Hdf5Rows(path).names(), lambda path: open_shard(path, ["x"])]


@pytest.mark.parametrize("read", READERS)
def test_a_pipe_does_not_block(tmp_path, read):
    path = tmp_path / "pipe.h5"
    os.mkfifo(path)
    with pytest.raises(DataError, match="not a regular file"):
        read(path)


@pytest.mark.slow
def test_a_zip_bomb_is_not_unpacked(tmp_path):
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, {"descr": "<f4", "fortran_order": False, "shape": (1 << 17, 1024)})
        for _ in range(512):
            member.write(bytes(1 << 20))
    with pytest.raises(DataError, match="unpacks"):
        open_npz(path)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_flipped_bit_in_npz_is_noticed(tmp_path, save):
    path = tmp_path / "x.npz"
    save(path, x=np.arange(1000.0))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"x\.npz: cannot be read as \.npz"):
        open_npz(path)[:]


@pytest.mark.parametrize("door", ["link", "storage", "virtual", "group", "missing", "huge", "text"])
def test_an_hdf5_entry_is_a_data_set_of_this_file(tmp_path, door):
    secret = tmp_path / "secret.bin"
    secret.write_bytes(np.ones(64, np.float32).tobytes())
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = np.ones((8, 8), np.float32)
    path = tmp_path / "rows.h5"
    with h5py.File(path, "w") as file:
        if door == "link":
            file["x"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/x")
        elif door == "storage":
            file.create_dataset("x", (8, 8), "f4", external=[(str(secret), 0, 256)])
        elif door == "virtual":
            layout = h5py.VirtualLayout((8, 8), "f4")
            layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "x", (8, 8))
            file.create_virtual_dataset("x", layout)
        elif door == "group":
            file.create_group("x")
        elif door == "missing":
            file["x"] = h5py.SoftLink("/nowhere")
        elif door == "huge":
            file.create_dataset("x", (1 << 24, 1024), "f4", chunks=(64, 1024))
        else:
            file["x"] = "a text"
    with pytest.raises(DataError, match=r"rows\.h5: .*'x'") as caught:
        Hdf5Rows(path).read("x")
    assert "\n" not in str(caught.value)


def test_soft_links_within_a_file_are_followed(tmp_path):
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["x"], file["y"] = np.ones((2, 3), np.float32), h5py.SoftLink("/x")
    assert Hdf5Rows(tmp_path / "rows.h5").read("y").shape == (2, 3)
