"""Figures: what they show, computed once more by loops."""

import numpy as np
import pytest
import torch

from crossclr.data import Content, Dataset, EmojiConfig, Sample, open_data
from crossclr.studies import examples, maps, plots
from crossclr.studies import maps as graph
from crossclr.studies import maps as similarities
from crossclr.studies.examples import image_uri
from crossclr.studies.loss_experiments import Curve
from tests.support.pairs import first, pair_data, pair_embeddings, second
from tests.support.vectors import cosine


def some(clips=40, seed=0, groups=4):
    rng = np.random.default_rng(seed)
    rows = torch.from_numpy(rng.normal(size=(clips, 6)).astype(np.float32))
    texts = tuple(f"a {('dog', 'cat', 'bird', 'cow')[c % 4]} {c % 9}" for c in range(clips) for _ in range(2))
    clip_of = torch.repeat_interleave(torch.arange(clips), 2)
    noise = torch.from_numpy(rng.normal(size=(2 * clips, 6)).astype(np.float32))
    keys = tuple(f"c{c}" for c in range(clips))
    labels = tuple(f"g{c % groups}" for c in range(clips)) if groups else keys
    sentences = rows[clip_of] + 0.5 * noise
    return pair_embeddings(rows, sentences, clip_of, texts=texts, clip_keys=keys, video_keys=keys, groups=labels)


def test_histograms_by_hand():
    found = some(12)
    got = similarities.similarities("x", found)
    positive = [
        cosine(second(found).rows[n], first(found).rows[c]) for n, c in enumerate(second(found).clip_of.tolist())
    ]
    assert got.positive.mean == pytest.approx(np.mean(positive))
    assert got.positive.variance == pytest.approx(np.var(positive))
    others = [
        cosine(second(found).rows[n], first(found).rows[c])
        for n in range(24)
        for c in range(12)
        if c != int(second(found).clip_of[n])
    ]
    assert got.negative.mean == pytest.approx(np.mean(others), abs=0.01)  # drawn at random
    assert got.negative.variance == pytest.approx(np.var(others), abs=0.01)
    assert sum(got.positive.density) * 2 / similarities.BINS == pytest.approx(1)
    told = similarities.similarity_sentence([got, similarities.similarities("y", some(12, 5))])
    assert f"{got.positive.variance:.3f}" in told


def test_map_labels_and_agreement():
    found = some(30)
    points = maps.choose_points(found, found)
    assert points.clips == list(range(30))
    assert points.groups == [f"g{c % 4}" for c in range(30)]
    drawn = maps.joint_map("x", found, points)
    assert drawn.clips.shape == drawn.sentences.shape == (30, 2)
    b = second(found).rows[points.sentences]
    shares = []
    for n in range(30):
        near = sorted((m for m in range(30) if m != n), key=lambda m: -cosine(b[n], b[m]))[:10]
        shares += [points.groups[m] == points.groups[n] for m in near]
    assert drawn.agreement == pytest.approx(100 * np.mean(shares))
    assert np.array_equal(maps.joint_map("x", found, points).clips, drawn.clips)  # one seed, one map


def test_clusters_stand_in_for_groups_that_are_too_many():
    found = some(60, groups=0)
    points = maps.choose_points(found, found)
    assert 1 < len(set(points.groups)) <= maps.GROUPS
    assert any("dog" in group or "cat" in group for group in points.groups)


def test_graph_by_hand():
    inputs = some(25)
    drawn = graph.connectivity_graph(inputs, 0.8, "quantile")
    rows = [second(inputs).rows[2 * c] for c in range(25)]
    connected = [np.mean([cosine(rows[i], rows[j]) for j in range(25) if j != i]) for i in range(25)]
    np.testing.assert_allclose(drawn.connectivity, connected, atol=1e-5)
    assert drawn.influential == [c > np.quantile(connected, 0.8) for c in connected]
    pairs = {(i, j) for i in range(25) for j in range(i + 1, 25) if cosine(rows[i], rows[j]) > drawn.threshold + 1e-6}
    assert set(drawn.links) >= pairs
    assert len(drawn.links) == round(0.01 * 300)
    assert sum(drawn.degrees) == 2 * len(drawn.links)
    assert f"{100 * drawn.share:.1f}%" in graph.graph_sentence(drawn)
    assert "nothing is pruned" in graph.graph_sentence(graph.connectivity_graph(inputs, None, "relative"))


def test_influential_samples_and_their_nearest_texts():
    inputs = some(25)
    found = graph.influential_samples(inputs)
    assert found[0].connectivity == max(one.connectivity for one in found)
    told = [one.text for one in found] + [text for one in found for _, text, _ in one.nearest]
    assert len({text.casefold() for text in told}) == len(told)
    one = found[0]
    place = second(inputs).texts.index(one.text)
    own = second(inputs).rows[2 * (place // 2)]
    assert one.nearest[0][2] == pytest.approx(
        cosine(own, second(inputs).rows[2 * inputs.clip_keys.index(one.nearest[0][0])]), abs=1e-5
    )


def test_examples_are_the_nearest_clips():
    found = some(20)
    clips, texts, words = first(found).rows, second(found).rows, second(found).texts
    for example in examples.choose_examples(found, by_text=True):
        own = found.clip_keys.index(example.key)
        asked = [n for n in (2 * own, 2 * own + 1) if words[n] == example.text]
        nearest = [sorted(range(20), key=lambda c, n=n: -cosine(texts[n], clips[c]))[:3] for n in asked]
        assert [found.clip_keys.index(hit.key) for hit in example.hits] in nearest
        assert [hit.right == "own" for hit in example.hits] == [hit.key == example.key for hit in example.hits]
    for example in examples.choose_examples(found, by_text=False):
        own = found.clip_keys.index(example.key)
        order = sorted((c for c in range(20) if c != own), key=lambda c: -cosine(clips[own], clips[c]))
        assert [hit.key for hit in example.hits] == [found.clip_keys[c] for c in order[:3]]
        for hit in example.hits:
            other = found.clip_keys.index(hit.key)
            shares = set(words[2 * own : 2 * own + 2]) & set(words[2 * other : 2 * other + 2])
            assert (hit.right == "shared") == bool(shares)
    assert "6 queries" in examples.sentence(examples.choose_examples(found, by_text=True))


@pytest.mark.parametrize("by_text", [True, False])
def test_examples_show_no_text_twice(by_text):
    found = some(8)
    again = [first(found).rows.repeat(4, 1), second(found).rows.repeat(4, 1)]
    clip_of = torch.repeat_interleave(torch.arange(32), 2)
    keys = tuple(f"c{c}" for c in range(32))
    repeated = pair_embeddings(*again, clip_of, texts=4 * second(found).texts, clip_keys=keys, video_keys=keys)
    shown = examples.choose_examples(repeated, by_text)
    assert len(shown) == len({example.text for example in shown}) == 6
    assert all(len({hit.text for hit in example.hits}) == 3 for example in shown)


def test_pictures_of_the_built_in_set_and_of_files(tmp_path):
    emoji = open_data(EmojiConfig(modalities={"image": "fluent", "text": "text"}))
    assert image_uri(emoji, "1F34E").startswith("data:image/webp;base64,")
    plain = pair_data(np.ones((2, 3)), np.ones((2, 3)))
    assert image_uri(plain, "0") == ""
    assert image_uri(plain, "nobody") == ""
    from PIL import Image

    Image.new("RGB", (300, 200), "red").save(tmp_path / "x.png")
    shown = Sample("0", {"video": Content([np.ones((1, 3), np.float32)])}, media=(str(tmp_path / "x.png"),))
    assert image_uri(Dataset.from_samples([shown]), "0").startswith("data:image/jpeg;base64,")


def test_a_curve_is_drawn_with_its_band():
    means, stds = {"x → y R@1": [1.0, 3.0, 2.0]}, {"x → y R@1": [0.5, 0.1, 0.2]}
    line = Curve("temperature", "τ", [0.01, 0.1, 1.0], means, stds, 0.1, "")
    plot = plots.curve(line)
    band, drawn = plot["data"]
    assert band["y"] == pytest.approx([1.5, 3.1, 2.2, 1.8, 2.9, 0.5])
    assert drawn["y"] == [1.0, 3.0, 2.0]
    assert plot["layout"]["xaxis"]["type"] == "log"
    assert plot["layout"]["shapes"][0]["x0"] == 0.1
