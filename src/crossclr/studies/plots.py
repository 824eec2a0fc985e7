"""Figures of a report by plotly, the self-contained HTML page that shows them, and their files as SVG and PDF."""

import html
import json
import math
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

from crossclr.extras import requires_extra
from crossclr.storage import write_file
from crossclr.studies.loss_experiments import Curve
from crossclr.studies.maps import BINS, ConnectivityGraph, Map, PairCosines

Plot = dict[str, Any]
COLOURS = (
    *("#2a6f97", "#d1495b", "#66a182", "#edae49", "#7b5ea7", "#00798c", "#b5651d", "#8d99ae", "#e07a5f", "#3d405b"),
    *("#81b29a", "#c9ada7", "#999999"),
)
GREY = "#d9dde1"
HIDDEN = {"showgrid": False, "zeroline": False, "showticklabels": False}  # axes
LOG = 10.0  # an option whose values span more than this factor is drawn on a logarithmic axis


def scores(rows: Sequence[tuple[str, bool, dict[str, tuple[float, float]]]]) -> Plot:
    """Mean and standard deviation of some metrics, as marks with whiskers.

    Each row has the name of a loss, whether it is ours, and (mean, std) by metric.
    """
    names, metrics = [row[0] for row in rows], list(rows[0][2])
    figure = _panels(len(metrics), 80 + 32 * len(rows), horizontal_spacing=0.02, shared_yaxes=True)
    marker = {"size": 9, "color": [COLOURS[1] if row[1] else COLOURS[0] for row in rows]}
    for panel, metric in enumerate(metrics, 1):
        means, stds = zip(*(row[2][metric] for row in rows), strict=True)
        spread = {"type": "data", "array": [0.0 if math.isnan(std) else std for std in stds], "thickness": 1.5}
        hover = "%{y}: %{x:.2f}<extra></extra>"
        shown = {"mode": "markers", "marker": marker, "error_x": spread, "hovertemplate": hover, "showlegend": False}
        figure.add_scatter(x=means, y=names, row=1, col=panel, **shown)
        figure.update_xaxes(title={"text": metric, "standoff": 8}, zeroline=False, row=1, col=panel)
    figure.update_yaxes(autorange="reversed", automargin=True)
    return _plain(figure)


def curve(sweep: Curve) -> Plot:
    """A sweep: lines with bands of one standard deviation, a panel for each metric."""
    positive = [value for value in sweep.values if value > 0]
    logarithmic = bool(positive) and max(positive) / min(positive) > LOG and len(positive) == len(sweep.values)
    metrics = list(dict.fromkeys(name.rpartition(" ")[2] for name in sweep.means))
    figure = _panels(len(metrics), 340)
    for panel, metric in enumerate(metrics, 1):
        cell = {"row": 1, "col": panel}
        lines = [name for name in sweep.means if name.rpartition(" ")[2] == metric]
        for name, colour in zip(lines, COLOURS, strict=False):
            _add_band(figure, list(sweep.values), sweep.means[name], sweep.stds[name], colour, cell)
            hover = f"{name} at %{{x:g}}: %{{y:.2f}}<extra></extra>"
            line: Plot = {"mode": "lines+markers", "line": {"color": colour}, "name": name.rpartition(" ")[0]}
            line |= {"showlegend": panel == 1, "hovertemplate": hover}
            figure.add_scatter(x=list(sweep.values), y=sweep.means[name], **line, **cell)
        figure.update_xaxes(title=sweep.title, type="log" if logarithmic else "linear", zeroline=False, **cell)
        figure.update_yaxes(title=f"{metric} (%)", **cell)
        if sweep.chosen is not None and (sweep.chosen > 0 or not logarithmic):
            figure.add_vline(x=sweep.chosen, line={"color": "#555555", "dash": "dot", "width": 1}, **cell)
    return _plain(figure)


def _add_band(
    figure: Any, x: list[float], means: Sequence[float], stds: Sequence[float], colour: str, cell: dict[str, int]
) -> None:
    upper = [mean + std for mean, std in zip(means, stds, strict=True)]
    lower = [mean - std for mean, std in zip(means, stds, strict=True)]
    hidden = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    filled = {"fill": "toself", "fillcolor": colour, "opacity": 0.15}
    figure.add_scatter(x=x + x[::-1], y=upper + lower[::-1], **filled, **hidden, **cell)


def histograms(compared: Sequence[PairCosines]) -> Plot:
    """Positive pairs on the left, negative ones on the right."""
    edges = np.linspace(-1, 1, BINS + 1)
    centres = ((edges[1:] + edges[:-1]) / 2).tolist()
    figure = _panels(2, 360)
    for panel, title in enumerate(("cosine of positive pairs", "cosine of negative pairs"), 1):
        for cosines, colour in zip(compared, COLOURS, strict=False):
            histogram = cosines.positive if panel == 1 else cosines.negative
            summary = f"{cosines.loss}: mean {histogram.mean:.2f}, variance {histogram.variance:.3f}<extra></extra>"
            line: Plot = {"mode": "lines", "fill": "tozeroy", "line": {"color": colour, "width": 2, "shape": "hvh"}}
            line |= {"name": cosines.loss, "legendgroup": cosines.loss, "showlegend": panel == 1, "opacity": 0.75}
            figure.add_scatter(x=centres, y=histogram.density, hovertemplate=summary, row=1, col=panel, **line)
        figure.update_xaxes(title=title, range=[-0.6, 1], row=1, col=panel)
    figure.update_yaxes(title="density", row=1, col=1)
    return _plain(figure)


def space(drawn: Map, image: Callable[[str], str]) -> Plot:
    """A map; clips with images show them instead of marks."""
    colours = {group: COLOURS[number % len(COLOURS)] for number, group in enumerate(dict.fromkeys(drawn.groups))}
    uris = [image(key) for key in drawn.keys]
    clip_mark = {"symbol": "circle", "size": 6, "opacity": 0.05 if any(uris) else 0.85}
    figure = _panels(1, 600)
    for group, colour in colours.items():
        members = [number for number, label in enumerate(drawn.groups) if label == group]
        for what, places, mark in (
            ("clip", drawn.clips, clip_mark),
            ("text", drawn.sentences, {"symbol": "circle-open", "size": 7}),
        ):
            texts = [f"{what} {drawn.keys[number]}<br>{drawn.texts[number]}" for number in members]
            shown = {"legendgroup": group, "showlegend": what == "text"}
            _add_marks(figure, places[members], texts, {**mark, "color": colour}, group, **shown)
    size = float(np.ptp(np.concatenate([drawn.clips, drawn.sentences]), axis=0).max()) / 34
    for uri, (x, y) in zip(uris, drawn.clips, strict=True):
        if uri:
            position = {"x": float(x), "y": float(y), "sizex": size, "sizey": size, "xref": "x", "yref": "y"}
            figure.add_layout_image(source=uri, xanchor="center", yanchor="middle", layer="below", **position)
    figure.update_layout(
        title={"text": drawn.loss, "font": {"size": 15}, "x": 0.5},
        legend={"orientation": "h", "y": -0.02, "yanchor": "top"},
        margin={"l": 10, "r": 10, "t": 40, "b": 20},
        xaxis=HIDDEN,
        yaxis=HIDDEN,
    )
    return _plain(figure)


def network(graph: ConnectivityGraph) -> Plot:
    """The connectivity graph; influential samples are red and larger."""
    x, y = graph.places.round(3).T.tolist()
    line_x = [value for first, second in graph.links for value in (x[first], x[second], None)]
    line_y = [value for first, second in graph.links for value in (y[first], y[second], None)]
    thin = {"mode": "lines", "line": {"color": GREY, "width": 0.7}, "hoverinfo": "skip", "showlegend": False}
    figure = _panels(1, 620)
    figure.add_scatter(x=line_x, y=line_y, **thin)
    for marked, colour, name in ((False, COLOURS[0], "other samples"), (True, COLOURS[1], "influential samples")):
        members = [n for n, is_influential in enumerate(graph.influential) if is_influential == marked]
        texts = [f"{graph.texts[n]}<br>C {graph.connectivity[n]:.3f}, {graph.degrees[n]} links" for n in members]
        sizes = [5 + min(12, graph.degrees[n] / 2) for n in members]
        _add_marks(figure, graph.places[members], texts, {"color": colour, "size": sizes}, name)
    figure.update_layout(xaxis=HIDDEN, yaxis=HIDDEN)
    return _plain(figure)


def _add_marks(
    figure: Any, places: npt.NDArray[np.float64], texts: list[str], marker: Plot, name: str, **options: Any
) -> None:
    """Points with a text that shows on hovering."""
    x, y = places.round(3).T.tolist()
    hover = {"text": texts, "hovertemplate": "%{text}<extra></extra>", "mode": "markers"}
    figure.add_scatter(x=x, y=y, marker=marker, name=name, **hover, **options)


def _panels(count: int, height: int, **options: Any) -> Any:
    """A figure with panels in a row, in the style of the report."""
    with requires_extra("report", "A figure"):
        from plotly.subplots import make_subplots

    figure = make_subplots(1, count, **options)
    figure.update_layout(
        template=None,
        height=height,
        margin={"l": 60, "r": 20, "t": 30, "b": 60},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 13, "color": "#222222"},
        hovermode="closest",
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": "#9aa3ab", "activecolor": "#2a6f97"},
    )
    return figure


def _plain(figure: Any) -> Plot:
    plot: Plot = figure.to_plotly_json()
    return plot


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
    draw = DRAW.replace("WIDTH", str(WIDTH))
    drawn = f"{HEAD}<script>{SEEDED}</script><script>{script}</script><body>{data}<script>{draw}</script></body>"
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
        write_file(folder / pdf.name, re.sub(rb"\(D:[^)]*\)", _no_date, pdf.read_bytes()))
    return [*(folder / f"{name}.svg" for name in svgs), folder / pdf.name]


def _no_date(date: re.Match[bytes]) -> bytes:
    """The same number of bytes, because a PDF lists the positions of its parts; equal studies give equal files."""
    return b"(D:20000101000000Z".ljust(len(date[0]) - 1) + b")"


HEAD = '<!doctype html><meta charset="utf-8">'
# plotly.js draws the names of its parts at random
SEEDED = "let seed = 1; Math.random = () => (seed = seed * 16807 % 2147483647) / 2147483647;"


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
