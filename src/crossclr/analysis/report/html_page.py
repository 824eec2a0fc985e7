"""The report as one self-contained HTML file with styles, tables, figures and plotly.js."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

STYLE = """
:root { --ink: #1c2126; --dim: #5c6670; --line: #dfe3e8; --soft: #f6f7f9; --mark: #b23a48; }
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: #fff; font: 16px/1.55 system-ui, "Segoe UI", sans-serif; }
main { max-width: 1280px; margin: 0 auto; padding: 2rem 1.5rem 5rem; }
h1 { font-size: 2rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.45rem; margin: 3.2rem 0 .4rem; padding-top: .6rem; border-top: 2px solid var(--ink); }
h3 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { max-width: 52rem; margin: .5rem 0; }
.dim, figcaption, .caption { color: var(--dim); }
nav { margin: 1.2rem 0; } nav a { margin-right: 1.1rem; color: #2a6f97; text-decoration: none; white-space: nowrap; }
nav a:hover { text-decoration: underline; }
dl.facts { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1.2rem; margin: 1rem 0; }
dl.facts dt { color: var(--dim); } dl.facts dd { margin: 0; }
.scroll { overflow-x: auto; margin: .8rem 0 .3rem; }
table { border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .5rem; text-align: right; white-space: nowrap; }
tbody th { text-align: left; font-weight: 500; } thead th { font-weight: 600; border-bottom: 1px solid var(--ink); }
thead th:first-child { text-align: left; }
thead .groups th { text-align: center; border-bottom: 1px solid var(--line); color: var(--dim); font-weight: 500; }
tbody tr:nth-child(even) { background: var(--soft); } td small { color: var(--dim); }
td.best { font-weight: 700; } td.best small { font-weight: 400; }
table.words td, table.words th { white-space: normal; text-align: left; vertical-align: top; }
figure { margin: 1.4rem 0; } figcaption { max-width: 52rem; font-size: .95rem; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); gap: 1rem; }
details { margin: .4rem 0 1rem; font-size: .88rem; } summary { cursor: pointer; color: var(--dim); }
pre { background: var(--soft); padding: .8rem 1rem; overflow-x: auto; font-size: .82rem; line-height: 1.4; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(330px, 1fr)); gap: 1rem; margin: 1rem 0; }
.card { border: 1px solid var(--line); border-radius: 8px; padding: .8rem 1rem; }
.card .query { font-weight: 600; display: flex; align-items: center; gap: .6rem; margin-bottom: .4rem; }
.card ol { margin: 0; padding-left: 1.3rem; font-size: .92rem; } .card li { margin: .3rem 0; }
.card img { width: 36px; height: 36px; vertical-align: middle; margin-right: .5rem; }
.tag { font-size: .75rem; border-radius: 4px; padding: .05rem .4rem; margin-left: .4rem; }
.tag.own { background: #e3efe8; color: #22633f; }
.tag.shared { background: #e6eef7; color: #21527a; }
@media print { nav, details { display: none; } h2 { break-before: page; } }
"""
DRAW = """
for (const place of document.querySelectorAll("script[data-plot]")) {
  const target = document.getElementById(place.dataset.plot), plot = JSON.parse(place.textContent);
  Plotly.newPlot(target, plot.data, plot.layout, {responsive: true, displaylogo: false, displayModeBar: "hover"});
}
"""


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
        for one in plots:
            self.plots += 1
            name = f"plot-{self.plots}"
            content = json.dumps(one, ensure_ascii=False, allow_nan=False).replace("</", "<\\/")
            data = f'<script type="application/json" data-plot="{name}">{content}</script>'
            places.append(f'<div><div id="{name}"></div>{data}</div>')
        inside = "".join(places)
        inside = f'<div class="pair">{inside}</div>' if len(plots) > 1 else inside
        self.parts.append(f"<figure>{inside}<figcaption>{html.escape(sentence)}</figcaption></figure>")

    def source(self, command: str, config: str) -> None:
        """Add the command and the config of the content above."""
        told = f"<pre>{html.escape(command)}</pre><pre>{html.escape(config)}</pre>"
        self.parts.append(f"<details><summary>Command and config</summary>{told}</details>")

    def render(self, script: str) -> str:
        """The whole file.

        Args:
            script: plotly.js.
        """
        links = " ".join(f'<a href="#{anchor}">{html.escape(title)}</a>' for anchor, title in self.links)
        head, *rest = self.parts or [""]
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{html.escape(self.title)}</title><style>{STYLE}</style>"
            f"<script>{script}</script></head><body><main><h1>{html.escape(self.title)}</h1>{head}<nav>{links}</nav>"
            f"{''.join(rest)}</main><script>{DRAW}</script></body></html>\n"
        )
