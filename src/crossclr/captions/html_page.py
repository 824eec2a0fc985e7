"""A self-contained page of good, bad and random captions next to human captions."""

from __future__ import annotations

import base64
import html
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import pairwise
from pathlib import Path

from crossclr.captions.data.caption_set import CaptionSet
from crossclr.captions.scoring.caption_metrics import METRICS, Scores, clean, shown_name
from crossclr.captions.scoring.predictions import Caption
from crossclr.features import clip_keys

SHARE = 0.25  # good: among this share of videos with the best scores; bad: likewise
LIMIT = 8_000_000  # bytes of a file that is embedded in the page; a larger one is linked
_LITTLE = """a an the and or of to in on at with into up out from for by as is are was be being it its some his her
their"""
LITTLE = frozenset(_LITTLE.split())


@dataclass(frozen=True)
class Shown:
    """The media next to a caption.

    Args:
        kind: ``image``, ``video`` or ``audio``.
        type: such as ``image/png``.
        content: the bytes, or None where the file is linked.
        link: where the file is.
        start: first second of the clip; likewise ``stop``.
    """

    kind: str
    type: str
    content: bytes | None = None
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
    """Videos for the page: good, bad and other ones, chosen at random with a seed, each at most once.

    Good ones come from the quarter with the best CIDEr-D, bad ones from the quarter with the worst.

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
        little = ' class="little"' if all(part in LITTLE for part in parts) else ""
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
    media: Mapping[str, Shown] | None = None,
) -> str:
    """The whole page.

    Args:
        writers: one or more captioners on the same videos; the scores of the first decide what is good or bad.
        data: the videos and their human captions.
        title: of the page.
        count: videos of each kind.
        seed: of the choice of videos and of references.
        references: how many of a clip's captions are shown (all are matched).
        media: images or players by video, or by ``video/number`` for single clips.
    """
    if not writers:
        raise ValueError("a page needs at least one captioner")
    place = {key: number for number, key in enumerate(data.keys)}
    chosen = choose(writers[0].scores, count, seed)
    draw = random.Random(seed + 1)
    sections = []
    for kind, heading, told in (
        ("good", "Good ones", "drawn from the quarter with the best CIDEr-D"),
        ("bad", "Bad ones", "drawn from the quarter with the worst CIDEr-D"),
        ("any", "Any others", "drawn from all that are left"),
    ):
        cards = [_card(key, place[key], writers, data, draw, references, media or {}) for key in chosen[kind]]
        if cards:
            sections.append(f'<section id="{kind}"><h2>{heading} <small>{told}</small></h2>{"".join(cards)}</section>')
    style = (resources.files("crossclr.captions") / "page.css").read_text(encoding="utf-8")
    explain = (
        "Words that also stand in a reference are <mark>marked</mark>, "
        'little words <mark class="little">lightly</mark>. '
        f"{len(data.keys):,} videos in all; those shown were drawn at random with seed {seed}."
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{style}</style></head><body>"
        f"<header><h1>{html.escape(title)}</h1><p>{explain}</p>{_scores(writers)}</header>"
        f"<main>{''.join(sections)}</main></body></html>\n"
    )


def load_shown(kind: str, type_: str, path: Path, start: float | None, stop: float | None, base: Path) -> Shown:
    """A file for the page: embedded if it is small, else linked, relative to ``base`` if possible."""
    if path.stat().st_size <= LIMIT:
        return Shown(kind, type_, path.read_bytes(), "", start, stop)
    try:
        link = path.resolve().relative_to(base.resolve()).as_posix()
    except ValueError:
        link = path.resolve().as_uri()
    return Shown(kind, type_, None, link, start, stop)


def _scores(writers: Sequence[Writer]) -> str:
    head = "".join(f"<th>{html.escape(shown_name(name))}</th>" for name in METRICS)
    rows = "".join(
        f"<tr><th>{html.escape(writer.name)}</th>"
        + "".join(
            f"<td>{'—' if (v := writer.scores.metrics.get(name)) is None else f'{v:.1f}'}</td>" for name in METRICS
        )
        + "</tr>"
        for writer in writers
    )
    return f'<div class="scroll"><table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _card(
    key: str,
    number: int,
    writers: Sequence[Writer],
    data: CaptionSet,
    draw: random.Random,
    references: int,
    media: Mapping[str, Shown],
) -> str:
    start, stop = list(pairwise(data.starts))[number]
    clips = []
    names = clip_keys(key, stop - start)
    for clip in range(start, stop):
        texts = data.texts[clip]
        shown = draw.sample(texts, min(references, len(texts)))
        lines = ""
        for writer in writers:
            sentence = mark(_text(writer, key, clip - start), texts) or "<i>nothing</i>"
            lines += f'<p class="written">{_name(writer, writers)}{sentence}</p>'
        people = "".join(f"<li>{html.escape(text)}</li>" for text in shown)
        more = f'<li class="more">and {len(texts) - len(shown)} more</li>' if len(texts) > len(shown) else ""
        time = f"<time>{_clock(data.times[clip][0])}–{_clock(data.times[clip][1])}</time>" if stop - start > 1 else ""
        own = _media(media.get(names[clip - start])) if len(names) > 1 else ""
        clips.append(f'<div class="clip">{time}{own}<div>{lines}</div><ul>{people}{more}</ul></div>')
    value = writers[0].scores.each[key]["CIDEr"]
    return (
        f"<article><h3>{html.escape(key)} <small>CIDEr-D {value:.0f}</small></h3>{_media(media.get(key))}"
        f'<div class="clips">{"".join(clips)}</div></article>'
    )


def _text(writer: Writer, key: str, number: int) -> str:
    captions = writer.predictions.get(key, ())
    return captions[number].text if number < len(captions) else ""


def _name(writer: Writer, writers: Sequence[Writer]) -> str:
    return f"<b>{html.escape(writer.name)}</b> " if len(writers) > 1 else ""


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"


def _media(shown: Shown | None) -> str:
    if shown is None:
        return ""
    if shown.content is not None:
        source = f"data:{shown.type};base64,{base64.b64encode(shown.content).decode()}"
    else:
        source = html.escape(shown.link, quote=True)
    if shown.kind == "image":
        return f'<img alt="" loading="lazy" src="{source}">'
    part = "" if shown.start is None else f"#t={shown.start:g}" + ("" if shown.stop is None else f",{shown.stop:g}")
    tag = "video" if shown.kind == "video" else "audio"
    return f'<{tag} controls preload="metadata" src="{source}{part}"></{tag}>'


def is_self_contained(page: str) -> bool:
    """Whether a page is self-contained.

    Example:
        >>> is_self_contained('<img src="data:,">'), is_self_contained('<script src="https://example.org/x.js">')
        (True, False)
    """
    return not re.search(r"""(?:src|href)\s*=\s*["']?\s*(?:https?:)?//|url\(|@import""", page)
