"""The charts of a report as PNG or SVG files, drawn by matplotlib."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from langgraph_amc.errors import ConfigurationError, MissingExtraError
from langgraph_amc.report.sections import Bars, Curves, Forest, Genealogy, Report, Role, Section, Stack

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Format = Literal["png", "svg", "pdf"]
_STYLE: Mapping[Role, dict[str, Any]] = {
    "main": {"linewidth": 2.2, "zorder": 4},
    "other": {"linewidth": 1.2, "color": "0.5", "zorder": 3},
    "faded": {"linewidth": 1.0, "color": "0.75", "zorder": 2},
    "reference": {"linewidth": 1.0, "color": "0.4", "linestyle": "--", "zorder": 1},
}
_MOST = 24
"""Bars that fit into a plot."""


def save_plots(report: Report, folder: str | Path, format: Format = "png") -> tuple[Path, ...]:
    """Draw every chart of a report into a folder, one file each; tables are in ``report.json``.

    Raises MissingExtraError without matplotlib, and ConfigurationError for another format.
    """
    if format not in ("png", "svg", "pdf"):
        raise ConfigurationError(f"plots are png, svg or pdf, got {format!r}")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("Plots", "plots") from error
    Path(folder).mkdir(parents=True, exist_ok=True)
    saved = []
    for number, section in enumerate(report.sections, start=1):
        draw = _DRAWN.get(type(section))
        if draw is None:
            continue
        figure = Figure(figsize=(8, _height(section)), layout="constrained")  # no global state, as pyplot has
        axes = figure.subplots()
        axes.set_title(section.title, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        draw(section, axes)
        file = Path(folder) / f"{number:02d}-{_slug(section.title)}.{format}"
        figure.savefig(file, dpi=150, metadata=_UNDATED.get(format))
        saved.append(file)
    return tuple(saved)


_UNDATED: Mapping[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""The same report gives the same file."""


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60]


def _height(section: Section) -> float:
    if isinstance(section, Genealogy):
        return max(3.0, 1.2 + 0.2 * max((s.lane for s in section.states), default=0))
    if isinstance(section, Forest):
        return 1.4 + 0.34 * len(section.rows)
    if isinstance(section, Bars):
        return 1.4 + 0.24 * min(_MOST, len(section.bars))
    return 4.0


def _genealogy(section: Genealogy, axes: Axes) -> None:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    by_id = {state.id: state for state in section.states}
    known = [state.value for state in section.states if state.value is not None]
    norm = Normalize(min(known, default=0.0), max(known, default=1.0))
    colours = colormaps["cividis"].reversed()
    alive = _alive(section)
    worth: dict[str, float | None] = {}
    for state in section.states:
        worth[state.id] = state.value if state.value is not None else worth.get(state.parent or "")
        if state.parent is None:
            continue
        parent, value = by_id[state.parent], worth[state.id]
        axes.plot(
            [parent.step, state.step],
            [parent.lane, state.lane],
            color="0.6" if value is None else colours(norm(value)),
            linewidth=1 + 8 * (state.share or 0) ** 0.75 + 1.5 * state.selected,
            alpha=1.0 if state.id in alive else 0.35,
            solid_capstyle="round",
        )
        if state.fate in ("pruned", "failed"):
            axes.plot(state.step, state.lane, marker="x", color="0.35", markersize=5)
        elif state.fate == "selected":
            axes.plot(state.step, state.lane, marker="*", color="black", markersize=13, zorder=5)
    for weighing in section.weighings:
        if weighing.offspring:
            axes.axvline(weighing.step, color="0.7", linewidth=0.8, linestyle=":", zorder=0)
    axes.invert_yaxis()
    axes.set_yticks([])
    axes.set_xlabel("step")
    if known:
        axes.figure.colorbar(ScalarMappable(norm, colours), ax=axes, label="value", shrink=0.7)


def _alive(section: Genealogy) -> set[str]:
    """States from which something descends that was not stopped."""
    found = set()
    for state in reversed(section.states):
        if state.id in found or state.fate in ("selected", "finished", "truncated", "running"):
            found.add(state.id)
            if state.parent is not None:
                found.add(state.parent)
    return found


def _curves(section: Curves, axes: Axes) -> None:
    for series in section.series:
        points = [(x, y) for x, y in zip(series.x, series.y, strict=True) if x is not None and y is not None]
        label = series.name if series.role in ("main", "reference") else None
        marks = {} if series.line else {"linestyle": "none", "marker": "o"}
        style = {**_STYLE[series.role], **marks}
        drawn = axes.plot([x for x, _ in points], [y for _, y in points], label=label, **style)
        if series.low:
            axes.fill_between(*_band(series.x, series.low, series.high), color=drawn[0].get_color(), alpha=0.15)
    for at, _ in section.marks:
        axes.axvline(at, color="0.7", linewidth=0.8, linestyle=":", zorder=0)
    if section.y_range is not None:
        axes.set_ylim(*section.y_range)
    axes.set_xlabel(section.x_label)
    axes.set_ylabel(section.y_label)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)


def _band(x: Any, low: Any, high: Any) -> tuple[list[float], list[float], list[float]]:
    rows = [row for row in zip(x, low, high, strict=True) if None not in row]
    return [r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows]


def _stack(section: Stack, axes: Axes) -> None:
    for at, shares, chosen in zip(section.x, section.shares, section.main, strict=True):
        parts = [(name == chosen, share) for name, share in zip(section.names, shares, strict=True) if share]
        bottom = 0.0
        for main, share in sorted(parts, reverse=True):
            colour = "tab:blue" if main else "0.75"
            axes.bar(at, share, bottom=bottom, color=colour, edgecolor="white", linewidth=0.5, width=0.7)
            bottom += share
    axes.set_xlabel(section.x_label)
    axes.set_ylabel("share of the weight")


def _bars(section: Bars, axes: Axes) -> None:
    bars = sorted(section.bars, key=lambda bar: (bar.role != "main", -sum(bar.parts)))[:_MOST]
    left = [0.0] * len(bars)
    for k, name in enumerate(section.parts):
        widths = [bar.parts[k] for bar in bars]
        axes.barh([bar.label for bar in bars], widths, left=left, label=name)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    if section.reference is not None:
        axes.axvline(section.reference[1], color="black", linewidth=1, linestyle="--", label=section.reference[0])
    axes.invert_yaxis()
    axes.set_xlabel(section.unit)
    axes.legend(frameon=False)


def _forest(section: Forest, axes: Axes) -> None:
    labels = [f"{row.group}: {row.label}" if row.group else row.label for row in section.rows]
    for at, row in enumerate(section.rows):
        if row.mean is None:
            continue
        if row.low is not None and row.high is not None:
            axes.plot([row.low, row.high], [at, at], color="0.4", linewidth=1.6)
        axes.plot(row.mean, at, marker="s", color="tab:blue", markersize=6)
    if section.zero is not None:
        axes.axvline(section.zero, color="0.4", linewidth=1, linestyle="--")
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlabel(section.x_label)


_DRAWN: Mapping[type[Section], Callable[[Any, Axes], None]] = {
    Genealogy: _genealogy,
    Curves: _curves,
    Stack: _stack,
    Bars: _bars,
    Forest: _forest,
}
