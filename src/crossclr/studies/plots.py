"""Figures of a report by plotly, as data for plotly.js."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from crossclr.extras import requires_extra
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
