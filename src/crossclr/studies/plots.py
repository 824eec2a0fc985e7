"""Figures as data for plotly.js."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

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
    metrics = list(rows[0][2])
    data, layout = [], _layout(height=80 + 32 * len(rows))
    layout["margin"]["b"] = 80
    width = 1 / len(metrics)
    for number, metric in enumerate(metrics):
        axis = "" if number == 0 else str(number + 1)
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [row[2][metric][0] for row in rows],
                "y": [row[0] for row in rows],
                "error_x": {"type": "data", "array": [row[2][metric][1] for row in rows], "thickness": 1.5},
                "marker": {"size": 9, "color": [COLOURS[1] if row[1] else COLOURS[0] for row in rows]},
                "xaxis": f"x{axis}",
                "yaxis": "y",
                "hovertemplate": "%{y}: %{x:.2f}<extra></extra>",
                "showlegend": False,
            }
        )
        domain = [number * width + (0.02 if number else 0), (number + 1) * width]
        layout[f"xaxis{axis}"] = {
            "title": {"text": metric, "standoff": 8},
            "domain": domain,
            "anchor": "y",
            "zeroline": False,
        }
    layout["yaxis"] = {"autorange": "reversed", "automargin": True}
    return {"data": data, "layout": layout}


def curve(found: Curve) -> Plot:
    """A sweep: lines with bands of one standard deviation, a panel for each metric."""
    positive = [value for value in found.values if value > 0]
    logarithmic = bool(positive) and max(positive) / min(positive) > LOG and len(positive) == len(found.values)
    x = list(found.values)
    metrics = list(dict.fromkeys(name.rpartition(" ")[2] for name in found.means))
    layout = _layout(height=340)
    data: list[dict[str, Any]] = []
    layout["shapes"] = []
    for panel, metric in enumerate(metrics):
        axis = "" if panel == 0 else str(panel + 1)
        domain = [panel / len(metrics) + (0.04 if panel else 0), (panel + 1) / len(metrics) - 0.02]
        layout[f"xaxis{axis}"] = {
            "title": {"text": found.title},
            "type": "log" if logarithmic else "linear",
            "domain": domain,
            "anchor": f"y{axis}",
            "zeroline": False,
        }
        layout[f"yaxis{axis}"] = {"title": {"text": f"{metric} (%)"}, "anchor": f"x{axis}"}
        lines = [name for name in found.means if name.rpartition(" ")[2] == metric]
        for number, name in enumerate(lines):
            means, stds, colour = found.means[name], found.stds[name], COLOURS[number]
            upper = [mean + std for mean, std in zip(means, stds, strict=True)]
            lower = [mean - std for mean, std in zip(means, stds, strict=True)]
            place = {"type": "scatter", "xaxis": f"x{axis}", "yaxis": f"y{axis}"}
            band = {"x": x + x[::-1], "y": upper + lower[::-1], "fill": "toself", "fillcolor": colour, "opacity": 0.15}
            data.append(
                {**place, **band, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
            )
            shown = {"x": x, "y": means, "mode": "lines+markers", "line": {"color": colour}}
            title = name.rpartition(" ")[0]
            hover = f"{name} at %{{x:g}}: %{{y:.2f}}<extra></extra>"
            data.append({**place, **shown, "name": title, "showlegend": panel == 0, "hovertemplate": hover})
        if found.chosen is not None and (found.chosen > 0 or not logarithmic):
            layout["shapes"].append(
                {
                    **{"type": "line", "x0": found.chosen, "x1": found.chosen, "y0": 0, "y1": 1},
                    **{"xref": f"x{axis}", "yref": f"y{axis} domain"},
                    "line": {"color": "#555555", "dash": "dot", "width": 1},
                }
            )
    return {"data": data, "layout": layout}


def histograms(found: Sequence[PairCosines]) -> Plot:
    """Positive pairs on the left, negative ones on the right."""
    edges = np.linspace(-1, 1, BINS + 1)
    centres = ((edges[1:] + edges[:-1]) / 2).tolist()
    data = []
    for number, one in enumerate(found):
        for axis, histogram in (("", one.positive), ("2", one.negative)):
            name = one.loss
            summary = f"mean {histogram.mean:.2f}, variance {histogram.variance:.3f}"
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "fill": "tozeroy",
                    "x": centres,
                    "y": histogram.density,
                    "xaxis": f"x{axis}",
                    "yaxis": f"y{axis}",
                    "name": name,
                    "legendgroup": name,
                    "showlegend": axis == "",
                    "line": {"color": COLOURS[number], "width": 2, "shape": "hvh"},
                    "hovertemplate": f"{name}: {summary}<extra></extra>",
                    "opacity": 0.75,
                }
            )
    layout = _layout(height=360)
    for axis, title, domain in (
        ("", "cosine of positive pairs", [0, 0.48]),
        ("2", "cosine of negative pairs", [0.52, 1]),
    ):
        layout[f"xaxis{axis}"] = {"title": {"text": title}, "domain": domain, "range": [-0.6, 1], "anchor": f"y{axis}"}
        layout[f"yaxis{axis}"] = {"anchor": f"x{axis}", "title": {"text": "density" if not axis else ""}}
    return {"data": data, "layout": layout}


def space(found: Map, image: Callable[[str], str]) -> Plot:
    """A map; clips with images show them instead of marks."""
    colours = {group: COLOURS[number % len(COLOURS)] for number, group in enumerate(dict.fromkeys(found.groups))}
    uris = [image(key) for key in found.keys]
    shown = any(uris)
    data = []
    for group, colour in colours.items():
        members = [number for number, label in enumerate(found.groups) if label == group]
        for what, places, mark in (
            ("clip", found.clips, {"symbol": "circle", "size": 6, "opacity": 0.05 if shown else 0.85}),
            ("text", found.sentences, {"symbol": "circle-open", "size": 7}),
        ):
            texts = [f"{what} {found.keys[number]}<br>{found.texts[number]}" for number in members]
            marks = _marks(places[members], texts, {**mark, "color": colour}, group)
            data.append({**marks, "legendgroup": group, "showlegend": what == "text"})
    layout = _layout(height=600)
    everything = np.concatenate([found.clips, found.sentences])
    size = float(np.ptp(everything, axis=0).max()) / 34
    layout["images"] = [
        {
            **{"source": uri, "x": float(x), "y": float(y), "sizex": size, "sizey": size},
            **{"xref": "x", "yref": "y", "xanchor": "center", "yanchor": "middle", "layer": "below"},
        }
        for uri, (x, y) in zip(uris, found.clips, strict=True)
        if uri
    ]
    layout["xaxis"], layout["yaxis"] = dict(HIDDEN), dict(HIDDEN)
    layout["title"] = {"text": found.loss, "font": {"size": 15}, "x": 0.5}
    layout["legend"] = {"orientation": "h", "y": -0.02, "yanchor": "top"}
    layout["margin"] = {"l": 10, "r": 10, "t": 40, "b": 20}
    return {"data": data, "layout": layout}


def network(found: ConnectivityGraph) -> Plot:
    """The connectivity graph; influential samples are red and larger."""
    x, y = found.places.round(3).T.tolist()
    line_x = [place for first, second in found.links for place in (x[first], x[second], None)]
    line_y = [place for first, second in found.links for place in (y[first], y[second], None)]
    thin = {"mode": "lines", "line": {"color": GREY, "width": 0.7}, "hoverinfo": "skip", "showlegend": False}
    data: list[dict[str, Any]] = [{"type": "scatter", "x": line_x, "y": line_y, **thin}]
    for marked, colour, name in ((False, COLOURS[0], "other samples"), (True, COLOURS[1], "influential samples")):
        members = [n for n, is_influential in enumerate(found.influential) if is_influential == marked]
        texts = [f"{found.texts[n]}<br>C {found.connectivity[n]:.3f}, {found.degrees[n]} links" for n in members]
        sizes = [5 + min(12, found.degrees[n] / 2) for n in members]
        data.append(_marks(found.places[members], texts, {"color": colour, "size": sizes}, name))
    layout = _layout(height=620)
    layout["xaxis"], layout["yaxis"] = dict(HIDDEN), dict(HIDDEN)
    return {"data": data, "layout": layout}


def _marks(places: npt.NDArray[np.float64], texts: list[str], marker: Plot, name: str) -> Plot:
    """Points with a text that shows on hovering."""
    x, y = places.round(3).T.tolist()
    hover = {"text": texts, "hovertemplate": "%{text}<extra></extra>"}
    return {"type": "scatter", "mode": "markers", "x": x, "y": y, **hover, "marker": marker, "name": name}


def _layout(height: int) -> Plot:
    return {
        "height": height,
        "margin": {"l": 60, "r": 20, "t": 30, "b": 60},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#222222"},
        "hovermode": "closest",
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "#9aa3ab", "activecolor": "#2a6f97"},
    }
