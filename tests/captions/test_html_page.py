import re
from html.parser import HTMLParser

import pytest
import torch

from crossclr.captions.caption_metrics import Caption, score_captions
from crossclr.captions.caption_set import CaptionSet
from crossclr.captions.html_page import MediaPreview, Writer, caption_page, choose, link_to, mark


def word(number):
    return f"thing{chr(97 + number % 26)}{chr(97 + number // 26)}"


def make_data(counts=(1, 2, 1, 1, 3, 1, 1, 1)):
    clips = sum(counts)
    return CaptionSet(
        tuple(f"v<{n}>" for n in range(len(counts))),
        counts,
        torch.zeros(clips, 1),
        torch.ones(clips, dtype=torch.int64),
        tuple((f"a cat sees {word(n)}", f"the cat looks at {word(n)} & x", "more", "most") for n in range(clips)),
        tuple((60.0 * n, 60.0 * n + 61) for n in range(clips)),
    )


def make_writer(data, name="ours", text="a <cat> runs"):
    starts = data.starts
    written = {
        key: [Caption(text if n % 2 else data.texts[clip][0]) for clip in range(starts[n], starts[n + 1])]
        for n, key in enumerate(data.keys)
    }
    return Writer(name, written, score_captions(written, data.references(), meteor=False))


class Balanced(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.text = [], ""

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_a_page_is_whole_and_escaped_and_needs_nothing_else():
    data = make_data()
    page = caption_page([make_writer(data), make_writer(data, "theirs", "")], data, title="A & B", count=4)
    parser = Balanced()
    parser.feed(page)
    assert not parser.open
    assert not re.search(r"""(?:src|href)\s*=\s*["']?\s*(?:https?:)?//|url\(|@import""", page)
    assert "<script" not in page
    assert "A & B" in parser.text
    assert "<cat>" in parser.text
    assert "nothing" in parser.text
    assert "1:00–2:01" in parser.text
    for heading in ("Good captions", "Bad captions", "Other captions"):
        assert heading in parser.text
    assert "—" in parser.text  # METEOR was not computed


def test_the_choice_depends_on_the_seed_alone_and_no_video_stands_twice():
    data = make_data((1,) * 40)
    writer = make_writer(data)
    assert caption_page([writer], data, seed=3) == caption_page([writer], data, seed=3)
    assert caption_page([writer], data, seed=3) != caption_page([writer], data, seed=4)
    chosen = choose(writer.scores, 8, seed=1)
    keys = [key for part in chosen.values() for key in part]
    assert len(keys) == len(set(keys)) == 24
    value = {key: writer.scores.each[key]["CIDEr"] for key in keys}
    assert min(value[key] for key in chosen["good"]) > max(value[key] for key in chosen["bad"])


def test_few_videos_are_enough():
    data = make_data((1,))
    page = caption_page([make_writer(data)], data)
    assert page.count("<article>") == 1
    assert "Bad ones" not in page
    with pytest.raises(ValueError, match="at least one captioner"):
        caption_page([], data)


def test_words_of_any_reference_are_marked_whatever_their_case():
    assert mark("The Dog, barks!", ["a DOG", "it barks"]) == "The <mark>Dog,</mark> <mark>barks!</mark>"
    assert mark("the dog", ["the cat"]) == '<mark class="little">the</mark> dog'
    assert mark("--", ["a"]) == "--"


def test_media_stand_beside_their_clips(tmp_path):
    data = make_data((1, 2))
    media = {
        "v<0>": MediaPreview("image", b"abc", "a.png"),
        "v<1>/0": MediaPreview("video", b"abc", 'x".mp4', 3.0, 4.5),
        "v<1>/1": MediaPreview("audio", None, "s.wav", 1.0),
    }
    page = caption_page([make_writer(data)], data, media=media)
    assert re.search(r'<a href="a.png"><img [^>]*src="data:image/webp;base64,YWJj"></a>', page)
    assert re.search(r'<video [^>]*poster="data:image/webp;base64,YWJj" src="x&quot;\.mp4#t=3,4\.5">', page)
    assert re.search(r'<audio [^>]*src="s.wav#t=1">', page)


def test_links_are_relative_to_the_page_where_possible(tmp_path):
    file = tmp_path / "a" / "a file.mp4"
    assert link_to(file, tmp_path) == "a/a%20file.mp4"
    assert link_to(file, tmp_path / "b").startswith("file://")
