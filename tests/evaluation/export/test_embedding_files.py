"""Embedding files: round trips, COOT's names, damaged input."""

from dataclasses import fields, replace

import h5py
import numpy as np
import pytest
import torch

from crossclr.evaluation import load_embeddings, save_embeddings


def assert_equal(found, expected):
    for field in fields(expected):
        one, other = getattr(found, field.name), getattr(expected, field.name)
        if isinstance(other, dict):
            assert list(one) == list(other)
            for name in other:
                assert_equal(one[name], other[name])
        elif isinstance(other, torch.Tensor):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
        else:
            assert one == other, field.name


def without_texts(embeddings):
    plain = {name: replace(vectors, texts=()) for name, vectors in embeddings.modalities.items()}
    return replace(embeddings, modalities=plain, groups=())


@pytest.mark.parametrize("suffix", [".h5", ".hdf5", ".npz"])
@pytest.mark.parametrize("two_level", [False, True])
@pytest.mark.parametrize("sentences", [1, 3])
def test_round_trip(make_embeddings, tmp_path, suffix, two_level, sentences):
    embeddings = make_embeddings(two_level=two_level, sentences=sentences)
    path = save_embeddings(embeddings, tmp_path / "deep" / f"out{suffix}")
    assert_equal(load_embeddings(path), embeddings)
    assert [file.name for file in path.parent.iterdir()] == [f"out{suffix}"]


@pytest.mark.parametrize("suffix", [".h5", ".npz"])
def test_round_trip_of_four_modalities_with_gaps(make_embeddings, tmp_path, suffix):
    embeddings = make_embeddings()
    has = torch.tensor([0, 3, 4, 9])
    sound = replace(
        embeddings["video"],
        rows=torch.randn(4, 6),
        clip_of=has,
        videos=torch.randn(2, 12),
        video_of=torch.tensor([0, 3]),
    )
    sound = replace(sound, context=torch.randn(2, 6))
    spanish = replace(embeddings["text"], texts=tuple(f"frase {n}" for n in range(len(embeddings["text"].rows))))
    both = {**embeddings.modalities, "sound": sound, "spanish": spanish}
    embeddings = replace(embeddings, modalities=both)
    assert_equal(load_embeddings(save_embeddings(embeddings, tmp_path / f"out{suffix}")), embeddings)


def test_without_texts_and_groups(make_embeddings, tmp_path):
    embeddings = without_texts(make_embeddings())
    assert_equal(load_embeddings(save_embeddings(embeddings, tmp_path / "a.npz")), embeddings)


def test_coot_names_and_meaning(make_embeddings, tmp_path):
    embeddings = make_embeddings(sentences=1)
    with h5py.File(save_embeddings(embeddings, tmp_path / "a.h5")) as file:
        assert [key.decode() for key in file["key"]] == ["küche", "b", "c", "d"]
        assert file["clip_num"][:].tolist() == file["sent_num"][:].tolist() == [3, 1, 2, 4]
        raw = {
            "vid_emb": embeddings["video"].videos,
            "par_emb": embeddings["text"].videos,
            "clip_emb": embeddings["video"].rows,
            "sent_emb": embeddings["text"].rows,
            "vid_context": embeddings["video"].context,
            "par_context": embeddings["text"].context,
        }
        for name, rows in raw.items():
            assert np.array_equal(file[f"{name}_before_norm"][:], rows.numpy())
            lengths = np.sqrt((rows.numpy().astype(np.float64) ** 2).sum(1, keepdims=True))
            np.testing.assert_allclose(file[name][:], rows.numpy() / lengths, rtol=1e-5)
            assert file[name].dtype == np.float32


def test_a_file_as_coot_writes_it(make_embeddings, tmp_path):
    """COOT's files have one sentence for each clip and none of our additions."""
    embeddings = make_embeddings(sentences=1)
    save_embeddings(embeddings, tmp_path / "full.h5")
    with h5py.File(tmp_path / "full.h5") as full, h5py.File(tmp_path / "coot.h5", "w") as coot:
        for name in full:
            if not name.endswith(("_of", "clip_key", "text", "group")):
                coot[name] = full[name][:]
    assert_equal(load_embeddings(tmp_path / "coot.h5"), without_texts(embeddings))


def test_only_normalised_rows(make_embeddings, tmp_path):
    embeddings = make_embeddings(sentences=1)
    save_embeddings(embeddings, tmp_path / "full.npz")
    arrays = {k: v for k, v in np.load(tmp_path / "full.npz").items() if not k.endswith("_before_norm")}
    np.savez(tmp_path / "short.npz", **arrays)
    found = load_embeddings(tmp_path / "short.npz")["video"].rows
    torch.testing.assert_close(found, torch.nn.functional.normalize(embeddings["video"].rows, dim=1))


def test_sent_num_counts_sentences(make_embeddings, tmp_path):
    path = save_embeddings(make_embeddings(sentences=3), tmp_path / "a.npz")
    assert np.load(path)["sent_num"].tolist() == [9, 3, 6, 12]


def test_a_failed_write_leaves_the_old_file(make_embeddings, tmp_path, monkeypatch):
    path = save_embeddings(make_embeddings(), tmp_path / "a.npz")
    before = path.read_bytes()

    def full_disk(stream, **arrays):
        stream.write(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "savez", full_disk)
    with pytest.raises(OSError, match="No space"):
        save_embeddings(make_embeddings(seed=1), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_faults_are_named(make_embeddings, tmp_path):
    embeddings = make_embeddings(sentences=1)
    with pytest.raises(ValueError, match=r"use \.h5"):
        save_embeddings(embeddings, tmp_path / "a.pt")
    with pytest.raises(FileNotFoundError, match=r"missing\.npz"):
        load_embeddings(tmp_path / "missing.npz")
    for name in ("a.h5", "a.npz"):
        path = save_embeddings(embeddings, tmp_path / name)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        with pytest.raises(ValueError, match=f"{name}: cannot be read"):
            load_embeddings(path)
    arrays = dict(np.load(save_embeddings(embeddings, tmp_path / "b.npz")))
    cases = {
        "has no 'key'": {k: v for k, v in arrays.items() if k != "key"},
        "does not fit together": {**arrays, "clip_num": arrays["clip_num"] + 1},
        "'clip_of' must name": {**arrays, "clip_of": arrays["clip_of"] + 1},
        "no 'clip_of'": {k: v[:-1] if k.startswith("sent_emb") else v for k, v in arrays.items() if k != "clip_of"},
    }
    for message, broken in cases.items():
        np.savez(tmp_path / "c.npz", **broken)
        with pytest.raises(ValueError, match=message):
            load_embeddings(tmp_path / "c.npz")


def test_pickles_are_not_opened(tmp_path):
    np.savez(tmp_path / "evil.npz", key=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match="cannot be read"):
        load_embeddings(tmp_path / "evil.npz")


def test_sentences_out_of_video_order_are_refused(make_embeddings, tmp_path):
    embeddings = make_embeddings(sentences=1)
    turned = replace(embeddings["text"], clip_of=embeddings["text"].clip_of.flip(0))
    both = replace(embeddings, modalities={**embeddings.modalities, "text": turned})
    with pytest.raises(ValueError, match="order of their videos"):
        save_embeddings(both, tmp_path / "a.h5")
