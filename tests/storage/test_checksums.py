"""Damage and edits of a folder are noticed."""

import hashlib
import tracemalloc

import pytest

from crossclr.errors import ReadError
from crossclr.storage import new_folder, write_file
from crossclr.storage.manifest import NAME, SMALL, changes, check_sealed, file_digest, seal, sealed_folders, unlist


@pytest.fixture
def folder(tmp_path):
    with new_folder(tmp_path / "run") as made:
        (made / "config.yaml").write_text("seed: 0")
        (made / "graph").mkdir()
        (made / "graph" / "links").write_bytes(b"links")
        with new_folder(made / "last") as inner:
            (inner / "weights").write_bytes(b"weights")
    return tmp_path / "run"


def test_a_new_folder_is_sealed(folder):
    check_sealed(folder)
    assert sealed_folders(folder) == [folder, folder / "last"]


@pytest.mark.parametrize("name", ["config.yaml", "graph/links"])
@pytest.mark.parametrize("damage", ["edit", "truncate", "remove"])
def test_damage_is_named(folder, name, damage):
    path = folder / name
    if damage == "remove":
        path.unlink()
    else:
        content = path.read_bytes()
        path.write_bytes(content[:-1] + b"?" if damage == "edit" else content[:-1])
    with pytest.raises(ReadError, match=rf"{name} (is missing|was changed).*crossclr check .* --accept"):
        check_sealed(folder)
    assert changes(folder / "last") == []
    seal(folder)
    check_sealed(folder)


def test_large_files_are_compared_by_size_until_verified(tmp_path):
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(SMALL + 1)
    seal(tmp_path)
    with large.open("r+b") as file:
        file.write(b"x")
    assert changes(tmp_path) == []
    assert changes(tmp_path, everything=True) == ["large was changed"]
    with large.open("ab") as file:
        file.write(b"x")
    assert changes(tmp_path) == ["large was changed"]


def test_a_file_can_be_added_and_other_files_may_grow(folder):
    write_file(folder / "results.json", "{}")
    seal(folder, ["results.json"])
    (folder / "metrics.jsonl").write_text("{}")
    check_sealed(folder)
    (folder / "results.json").write_text("[]")
    assert changes(folder) == ["results.json was changed"]


def test_a_file_that_is_written_again_is_not_listed_meanwhile(folder):
    unlist(folder, ["config.yaml", "absent"])
    (folder / "config.yaml").write_text("seed: 1")
    check_sealed(folder)
    seal(folder, ["config.yaml"])
    (folder / "config.yaml").write_text("seed: 2")
    assert changes(folder) == ["config.yaml was changed"]


@pytest.mark.parametrize("content", [None, "[]", '{"config.yaml": 1}', '{"config.yaml": ["x"]}', "{"])
def test_a_manifest_must_be_there_and_whole(folder, content):
    if content is None:
        (folder / NAME).unlink()
    else:
        (folder / NAME).write_text(content)
    with pytest.raises(ReadError, match=NAME):
        check_sealed(folder)


def test_the_digest_of_a_large_file_takes_neither_its_memory_nor_a_second_reading(tmp_path):
    path = tmp_path / "weights"
    content = bytes(range(256)) * (64 << 12)  # 64 MiB
    path.write_bytes(content)
    expected = hashlib.blake2b(content, digest_size=16).hexdigest()
    tracemalloc.start()
    try:
        assert file_digest(path) == expected
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    seal(tmp_path)
    with path.open("r+b") as file:
        file.write(b"edited")
    assert file_digest(path) == expected  # that of the manifest, which `verify` compares with the content
    path.write_bytes(b"other size")
    assert file_digest(path) == hashlib.blake2b(b"other size", digest_size=16).hexdigest()
