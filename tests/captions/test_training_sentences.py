"""Caption sets and what is drawn from them."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossclr.captions.caption_set import CaptionSet, TrainingSentences, make_batcher, replace_texts
from crossclr.captions.vocabulary import BOS, EOS, PAD, SPECIALS, Vocabulary

WORDS = [f"w{i}" for i in range(60)]
VOCABULARY = Vocabulary([*SPECIALS, *WORDS])


def make_set(counts, rows, texts):
    clips = sum(counts)
    # the first channel of a row is the number of its clip, the second its place
    features = torch.tensor([[float(clip), float(place)] for clip in range(clips) for place in range(rows[clip])])
    keys = tuple(f"v{number}" for number in range(len(counts)))
    times = tuple((float(clip), clip + 1.0) for clip in range(clips))
    return CaptionSet(keys, tuple(counts), features, torch.tensor(rows), tuple(map(tuple, texts)), times)


@settings(max_examples=30)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 100), st.sampled_from([None, 2]))
def test_batches_stand_time_by_time_with_the_right_rows(counts, seed, limit):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(1, 4, (sum(counts),), generator=generator).tolist()
    data = make_set(counts, rows, [["w0"]] * sum(counts))
    batch = make_batcher(data, limit)(range(len(counts)))
    lengths = [min(count, limit or count) for count in counts]
    assert sum(batch.active) == sum(lengths)
    assert list(batch.active) == sorted(batch.active, reverse=True)
    position = 0
    for time, active in enumerate(batch.active):
        for video in batch.videos[:active]:
            clip = data.starts[video] + time
            assert batch.clips[position] == clip
            count = int(batch.rows[position])
            assert count == rows[clip]
            assert batch.features[position, :count, 0].tolist() == [clip] * count
            assert batch.features[position, :count, 1].tolist() == list(range(count))
            assert not batch.features[position, count:].any()
            position += 1


def test_an_epoch_has_every_video_once_and_depends_on_seed_and_epoch():
    counts = [3, 1, 2, 2, 1]
    data = make_set(counts, [1] * 9, [[f"w{clip} w{clip}"] for clip in range(9)])
    sentences = TrainingSentences(data, VOCABULARY, max_words=20, max_clips=12, captions_per_clip=7)
    assert sentences.batches_per_epoch(2) == 3

    def epoch(seed, number, start=0):
        return list(sentences.batches(seed, number, 2, start))

    batches = epoch(0, 0)
    assert [batch.active[0] for batch in batches] == [2, 2, 1]
    for batch in batches:
        for row in range(len(batch.rows)):  # each sentence stands with its own clip
            clip = int(batch.features[row, 0, 0])
            assert batch.words[row, : batch.lengths[row]].tolist() == [BOS, clip + 7, clip + 7, EOS]
    assert Counter(int(clip) for batch in batches for clip in batch.features[:, 0, 0]) == Counter(range(9))
    for again, first in zip(epoch(0, 0, start=1), batches[1:], strict=True):
        assert torch.equal(again.features, first.features)
        assert torch.equal(again.words, first.words)
    assert not all(torch.equal(a.features, b.features) for a, b in zip(epoch(0, 1), batches, strict=True))
    assert not all(torch.equal(a.features, b.features) for a, b in zip(epoch(1, 0), batches, strict=True))


def test_many_captions_of_a_clip_are_drawn_without_repetition():
    texts = [[f"w{n}" for n in range(10)], [f"w{n}" for n in range(20, 24)], ["w50"]]
    data = make_set([1, 1, 1], [1, 2, 3], texts)
    sentences = TrainingSentences(data, VOCABULARY, 20, 12, captions_per_clip=4)
    drawn: dict[int, list[int]] = {}
    for batch in sentences.batches(0, 3, 5):
        for row in range(len(batch.rows)):
            drawn.setdefault(int(batch.features[row, 0, 0]), []).append(int(batch.words[row, 1]) - 7)
    assert len(drawn[0]) == len(set(drawn[0])) == 4
    assert set(drawn[0]) < set(range(10))
    assert sorted(drawn[1]) == [20, 21, 22, 23]
    assert drawn[2] == [50] * 4


def test_long_sentences_are_cut_and_targets_are_the_next_words():
    data = make_set([1, 1], [1, 1], [["w1 w2 w3 w4 w5"], ["w6"]])
    sentences = TrainingSentences(data, VOCABULARY, max_words=3, max_clips=12)
    (batch,) = sentences.batches(0, 0, 2)
    assert sorted(batch.lengths.tolist()) == [3, 5]
    taught, targets = batch.targets()
    assert int(taught.sum()) == len(targets) == 4 + 2
    long = int(batch.lengths.argmax())
    assert batch.words[long].tolist() == [BOS, 8, 9, 10, EOS]
    assert PAD not in targets.tolist()
    assert targets.tolist().count(EOS) == 2


def test_references_are_paragraphs_or_all_captions():
    data = make_set([2, 1, 1], [1] * 4, [["w1"], ["w2"], ["w3", "w4", "w5"], []])
    assert data.references() == {"v0": ["w1 w2"], "v1": ["w3", "w4", "w5"]}


def test_a_clip_without_a_sentence_cannot_be_learned_from():
    data = make_set([2, 1], [1, 1, 1], [["w1"], ["w2"], []])
    with pytest.raises(ValueError, match="clip of 'v1' has no sentence"):
        TrainingSentences(data, VOCABULARY, 20, 12)


def test_sentences_from_a_file():
    data = make_set([2, 1], [1, 1, 1], [[], [], []])
    captions = {
        "v0": {"sentences": ["cut", "stir"], "timestamps": [[5, 6], [1, 2.5]]},
        "v1": {"sentences": ["serve"]},
        "other": {"sentences": []},
    }
    found = replace_texts(data, captions, "file")
    assert found.texts == (("cut",), ("stir",), ("serve",))
    assert found.times == ((5.0, 6.0), (1.0, 2.5), (0.0, 1.0))
    with pytest.raises(ValueError, match="file has no sentences for 'v1'"):
        replace_texts(data, {"v0": captions["v0"]}, "file")
    with pytest.raises(ValueError, match="1 sentences but 2 clips"):
        replace_texts(data, {"v0": {"sentences": ["a"]}, "v1": captions["v1"]}, "file")
