"""The report as one self-contained HTML file with styles, tables, figures and plotly.js."""

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any


@dataclass
class Page:
    """Sections of HTML in the order of their addition.

    Example:
        >>> page = Page("A study")
        >>> page.section("losses", "Losses", "What was compared.")
        >>> page.plot({"data": [], "layout": {}}, "Nothing to see.")
        >>> "Nothing to see." in page.render(script="")
        True
    """

    title: str
    parts: list[str] = field(default_factory=list)
    links: list[tuple[str, str]] = field(default_factory=list)
    plots: int = 0

    def html(self, text: str) -> None:
        """Add HTML as it is."""
        self.parts.append(text)

    def section(self, anchor: str, title: str, about: str = "") -> None:
        """Begin a section and link to it at the top of the page."""
        self.links.append((anchor, title))
        self.parts.append(f'<h2 id="{anchor}">{html.escape(title)}</h2>')
        self.text(about)

    def text(self, words: str, kind: str = "") -> None:
        """Add a paragraph."""
        if words:
            self.parts.append(f'<p class="{kind}">{html.escape(words)}</p>' if kind else f"<p>{html.escape(words)}</p>")

    def facts(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Add a list of facts."""
        lines = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in pairs)
        self.parts.append(f'<dl class="facts">{lines}</dl>')

    def plot(self, plot: dict[str, Any] | Sequence[dict[str, Any]], sentence: str) -> None:
        """Add an interactive figure, or several in a row, with a sentence below."""
        plots = [plot] if isinstance(plot, dict) else list(plot)
        places = []
        for figure in plots:
            self.plots += 1
            name = f"plot-{self.plots}"
            content = json.dumps(figure, ensure_ascii=False, allow_nan=False).replace("</", "<\\/")
            data = f'<script type="application/json" data-plot="{name}">{content}</script>'
            places.append(f'<div><div id="{name}"></div>{data}</div>')
        inside = "".join(places)
        inside = f'<div class="pair">{inside}</div>' if len(plots) > 1 else inside
        self.parts.append(f"<figure>{inside}<figcaption>{html.escape(sentence)}</figcaption></figure>")

    def source(self, command: str, config: str) -> None:
        """Add the command and the config of the content above."""
        content = f"<pre>{html.escape(command)}</pre><pre>{html.escape(config)}</pre>"
        self.parts.append(f"<details><summary>Command and config</summary>{content}</details>")

    def render(self, script: str) -> str:
        """The whole file; ``script`` is plotly.js."""
        links = " ".join(f'<a href="#{anchor}">{html.escape(title)}</a>' for anchor, title in self.links)
        head, *rest = self.parts or [""]
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{html.escape(self.title)}</title><style>{_file('page.css')}</style>"
            f"<script>{script}</script></head><body><main><h1>{html.escape(self.title)}</h1>{head}<nav>{links}</nav>"
            f"{''.join(rest)}</main><script>{_file('draw.js')}</script></body></html>\n"
        )


def _file(name: str) -> str:
    return (resources.files("crossclr.studies") / name).read_text(encoding="utf-8")
