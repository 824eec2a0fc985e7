"""The report as one self-contained HTML file with styles, tables, figures and plotly.js; figures as SVG and PDF."""

import html
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote

from crossclr.storage import write_file


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
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)  # by name, in the order of the page

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
            anchor = self.links[-1][0] if self.links else "figure"
            count = sum(name.rpartition("-")[0] == anchor for name in self.figures)
            name = f"{anchor}-{count + 1}"
            self.figures[name] = figure
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


BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTH = 900  # pixels of a figure in a file
DRAW = """(async () => {
  for (const [name, plot] of Object.entries(JSON.parse(document.getElementById("figures").textContent))) {
    const size = {format: "svg", width: WIDTH, height: plot.layout.height};
    const place = document.createElement("pre");
    place.id = name;
    place.textContent = await Plotly.toImage(plot, size);
    document.body.append(place);
  }
})();"""


def save_figures(figures: Mapping[str, dict[str, Any]], folder: Path, script: str) -> list[Path]:
    """Write each figure as ``<name>.svg``, and all of them into ``figures.pdf``, a page each.

    Chromium draws them. Without it, nothing is written and the result is empty. ``script`` is plotly.js.
    """
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None or not figures:
        return []
    content = json.dumps(figures, ensure_ascii=False, allow_nan=False).replace("</", "<\\/")
    data = f'<script type="application/json" id="figures">{content}</script>'
    drawn = f"{HEAD}<script>{script}</script><body>{data}<script>{DRAW.replace('WIDTH', str(WIDTH))}</script></body>"
    with TemporaryDirectory() as temporary:
        place = Path(temporary)
        found = re.findall(
            r'<pre id="([^"]+)">data:image/svg\+xml,(.*?)</pre>',
            _run_browser(browser, place, drawn, "--virtual-time-budget=60000", "--dump-dom"),
            re.DOTALL,
        )
        svgs = {name: unquote(svg) for name, svg in found}
        heights = {name: figures[name]["layout"]["height"] for name in svgs}
        sizes = [f"@page {name} {{ size: {WIDTH}px {height}px; margin: 0; }}" for name, height in heights.items()]
        style = f"<style>{' '.join(sizes)} body {{ margin: 0; }} svg {{ display: block; }}</style>"
        pages = "".join(f'<div style="page: {name}">{svg}</div>' for name, svg in svgs.items())
        pdf = place / "figures.pdf"
        _run_browser(browser, place, HEAD + style + pages, f"--print-to-pdf={pdf}", "--no-pdf-header-footer")
        if not (svgs and pdf.is_file()):
            return []
        folder.mkdir(parents=True, exist_ok=True)
        for name, svg in svgs.items():
            write_file(folder / f"{name}.svg", svg)
        write_file(folder / pdf.name, pdf.read_bytes())
    return [*(folder / f"{name}.svg" for name in svgs), folder / pdf.name]


HEAD = '<!doctype html><meta charset="utf-8">'


def _run_browser(browser: str, folder: Path, page: str, *options: str) -> str:
    (folder / "page.html").write_text(page, encoding="utf-8")
    flags = ["--headless=new", "--disable-gpu", "--no-first-run", f"--user-data-dir={folder / 'profile'}"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:  # Chromium's sandbox refuses root; the page is ours
        flags.append("--no-sandbox")
    words = [browser, *flags, *options, (folder / "page.html").as_uri()]
    try:
        done = subprocess.run(words, capture_output=True, text=True, encoding="utf-8", timeout=600, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):  # the report is complete without these files
        return ""
    return done.stdout


def _file(name: str) -> str:
    return (resources.files("crossclr.studies") / name).read_text(encoding="utf-8")
