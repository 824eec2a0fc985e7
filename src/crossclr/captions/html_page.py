"""A self-contained page of good, bad and random captions next to human captions."""

import base64
import html
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote

from crossclr.captions.caption_metrics import METRICS, Caption, Scores, clean, shown_name
from crossclr.captions.caption_set import CaptionSet
from crossclr.data.sample import clip_keys
from crossclr.evaluation.words import FUNCTION_WORDS

SHARE = 0.25  # good captions are among this share of the videos, those with the best scores; bad ones likewise


@dataclass(frozen=True)
class MediaPreview:
    """The media next to a caption.

    Args:
        kind: ``image``, ``video`` or ``audio``.
        thumbnail: a small WebP image, which is part of the page; None: there is none.
        link: where the file is; it is not part of the page.
        start: start of the clip in seconds.
        stop: end of the clip in seconds.
    """

    kind: str
    thumbnail: bytes | None = None
    link: str = ""
    start: float | None = None
    stop: float | None = None


@dataclass(frozen=True)
class Writer:
    """One captioner on the page.

    Args:
        name: its name on the page.
        predictions: its captions.
        scores: the scores of all its captions.
    """

    name: str
    predictions: Mapping[str, Sequence[Caption]]
    scores: Scores


def choose(scores: Scores, count: int, seed: int) -> dict[str, list[str]]:
    """Videos for the page, each at most once and chosen at random with a seed.

    Good ones come from the 25% with the highest CIDEr-D, bad ones from the 25% with the lowest, others from the rest.

    Example:
        >>> each = {f"v{n}": {"CIDEr": float(n)} for n in range(8)}
        >>> chosen = choose(Scores({}, 8, 8, each=each), 2, seed=0)
        >>> sorted(chosen["good"]), sorted(chosen["bad"]), len(chosen["any"])
        (['v6', 'v7'], ['v0', 'v1'], 2)
    """
    ordered = sorted(scores.each, key=lambda key: (-scores.each[key]["CIDEr"], key))
    size = max(1, round(len(ordered) * SHARE))
    draw = random.Random(seed)
    good = draw.sample(ordered[:size], min(count, size))
    worst = [key for key in ordered[-size:] if key not in good]
    bad = draw.sample(worst, min(count, len(worst)))
    rest = [key for key in ordered if key not in good and key not in bad]
    return {"good": good, "bad": bad, "any": draw.sample(rest, min(count, len(rest)))}


def mark(text: str, references: Sequence[str]) -> str:
    """HTML of a sentence that marks the words of the references, and function words less strongly.

    Example:
        >>> mark("a cat <runs>", ["the cat sleeps on a bed"])
        '<mark class="little">a</mark> <mark>cat</mark> &lt;runs&gt;'
    """
    known = {word for reference in references for word in clean(reference).split()}

    def shown(word: str) -> str:
        parts = clean(word).split()
        if not parts or not all(part in known for part in parts):
            return html.escape(word)
        little = ' class="little"' if all(part in FUNCTION_WORDS for part in parts) else ""
        return f"<mark{little}>{html.escape(word)}</mark>"

    return " ".join(shown(word) for word in text.split())


def caption_page(
    writers: Sequence[Writer],
    data: CaptionSet,
    *,
    title: str = "Captions",
    count: int = 8,
    seed: int = 0,
    references: int = 5,
    media: Mapping[str, MediaPreview] | None = None,
) -> str:
    """The whole page.

    Args:
        writers: one or more captioners on the same videos; the scores of the first decide what is good or bad.
        data: the videos and their human captions.
        title: of the page.
        count: videos of each kind.
        seed: selects videos and references.
        references: how many of a clip's captions are shown (all are matched).
        media: images or players by video, or by ``video/number`` for single clips.
    """
    if not writers:
        raise ValueError("a page needs at least one captioner")
    chosen = choose(writers[0].scores, count, seed)
    draw = random.Random(seed + 1)
    sections = []
    for kind, heading, explanation in (
        ("good", "Good captions", "random videos from the 25% with the highest CIDEr-D"),
        ("bad", "Bad captions", "random videos from the 25% with the lowest CIDEr-D"),
        ("any", "Other captions", "random videos from the rest"),
    ):
        cards = [_card(key, writers, data, draw, references, media or {}) for key in chosen[kind]]
        if cards:
            title_line = f"<h2>{heading} <small>{explanation}</small></h2>"
            sections.append(f'<section id="{kind}">{title_line}{"".join(cards)}</section>')
    style = (resources.files("crossclr.captions") / "page.css").read_text(encoding="utf-8")
    explain = (
        "Words that also occur in a reference are <mark>highlighted</mark>, "
        'function words <mark class="little">faintly</mark>. '
        f"The videos shown were chosen from {len(data.keys):,} at random with seed {seed}."
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{style}</style></head><body>"
        f"<header><h1>{html.escape(title)}</h1><p>{explain}</p>{_scores(writers)}</header>"
        f"<main>{''.join(sections)}</main></body></html>\n"
    )


def link_to(path: Path, base: Path) -> str:
    """The address of a file on a page in ``base``: relative to it if possible."""
    try:
        return quote(path.resolve().relative_to(base.resolve()).as_posix())
    except ValueError:
        return path.resolve().as_uri()


def _scores(writers: Sequence[Writer]) -> str:
    head = "".join(f"<th>{html.escape(shown_name(name))}</th>" for name in METRICS)
    rows = ""
    for writer in writers:
        values = [writer.scores.metrics.get(name) for name in METRICS]
        cells = "".join(f"<td>{'—' if value is None else f'{value:.1f}'}</td>" for value in values)
        rows += f"<tr><th>{html.escape(writer.name)}</th>{cells}</tr>"
    return f'<div class="scroll"><table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _card(
    key: str,
    writers: Sequence[Writer],
    data: CaptionSet,
    draw: random.Random,
    references: int,
    media: Mapping[str, MediaPreview],
) -> str:
    start, stop = list(pairwise(data.starts))[data.keys.index(key)]
    clips = []
    names = clip_keys(key, stop - start)
    for clip in range(start, stop):
        texts = data.texts[clip]
        shown = draw.sample(texts, min(references, len(texts)))
        lines = ""
        for writer in writers:
            captions = writer.predictions.get(key, ())
            sentence = captions[clip - start].text if clip - start < len(captions) else ""
            name = f"<b>{html.escape(writer.name)}</b> " if len(writers) > 1 else ""
            lines += f'<p class="written">{name}{mark(sentence, texts) or "<i>nothing</i>"}</p>'
        people = "".join(f"<li>{html.escape(text)}</li>" for text in shown)
        more = f'<li class="more">and {len(texts) - len(shown)} more</li>' if len(texts) > len(shown) else ""
        time = f"<time>{_clock(data.times[clip][0])}–{_clock(data.times[clip][1])}</time>" if stop - start > 1 else ""
        player = _media(media.get(names[clip - start])) if len(names) > 1 else ""
        clips.append(f'<div class="clip">{time}{player}<div>{lines}</div><ul>{people}{more}</ul></div>')
    value = writers[0].scores.each[key]["CIDEr"]
    return (
        f"<article><h3>{html.escape(key)} <small>CIDEr-D {value:.0f}</small></h3>{_media(media.get(key))}"
        f'<div class="clips">{"".join(clips)}</div></article>'
    )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"


def _media(shown: MediaPreview | None) -> str:
    if shown is None:
        return ""
    small = "" if shown.thumbnail is None else f"data:image/webp;base64,{base64.b64encode(shown.thumbnail).decode()}"
    link = html.escape(shown.link, quote=True)
    if shown.kind == "image":
        image = f'<img alt="" loading="lazy" src="{small or link}">'
        return f'<a href="{link}">{image}</a>' if link else image
    span = "" if shown.start is None else f"#t={shown.start:g}" + ("" if shown.stop is None else f",{shown.stop:g}")
    if shown.kind == "video":
        return f'<video controls preload="none" poster="{small}" src="{link}{span}"></video>'
    return f'<audio controls preload="none" src="{link}{span}"></audio>'
