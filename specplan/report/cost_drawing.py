"""Panels drawn with matplotlib, which is imported where a picture is drawn and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from textwrap import fill
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

from specplan.report.cost_panels import Measured, Panel, Series, Step

__all__ = ["draw_panel", "key_lines"]

COLORS: Final = ("#D55E00", "#009E73", "#0072B2")  # by rank; of Okabe and Ito's, which the colour-blind tell apart
GREY: Final = "#555555"
SHADE: Final = "#EAEAEA"
DASHES: Final = (0, (3, 2))
LOG_FROM: Final = 16.0  # an axis whose ends are this many times apart is logarithmic
LINE_HEIGHT: Final = 0.08  # of a label, as a share of the axes


def draw_panel(axes: Axes, panel: Panel, *, columns: int) -> None:
    """`columns`: how many characters of a title are as wide as the panel."""
    axes.set_title(fill(panel.title, columns))
    scale_x(axes, panel, most_ticks=columns // 5)
    scale_y(axes, panel)
    shade(axes, panel.series)
    if panel.baseline:
        axes.axhline(panel.baseline, color=GREY, linewidth=0.8, zorder=1)
    for line in panel.series:
        draw_series(axes, line)
    label_ends(axes, [line for line in panel.series if not line.is_faint])
    if panel.capture_limit:
        mark_capture_limit(axes, panel.capture_limit)
    if panel.step is not None:
        explain_step(axes, panel.step)
    if panel.note:
        axes.text(0.03, 0.97, panel.note, transform=axes.transAxes, va="top", color=GREY)


def scale_x(axes: Axes, panel: Panel, most_ticks: int) -> None:
    sizes = [line.size for line in panel.series]
    sizes += [measured.size for line in panel.series for measured in line.measured]
    if panel.capture_limit:
        sizes.append(np.array([panel.capture_limit]))
    low, high = ends(sizes)
    if low > 0 and high >= LOG_FROM * low:
        pad = (high / low) ** 0.02
        axes.set_xscale("log", base=2)
        axes.set_xlim(low / pad, high * pad)
        ticks = [2**power for power in range(64) if low / pad <= 2**power <= high * pad]
        axes.xaxis.set_major_locator(FixedLocator(ticks[:: 1 + (len(ticks) - 1) // most_ticks]))
    else:
        pad = 0.02 * (high - low) or 0.5
        axes.set_xlim(low - pad, high + pad)
        axes.xaxis.set_major_locator(MaxNLocator(most_ticks, integer=True, min_n_ticks=1))
    show_scale(axes.xaxis, panel.x_label)


def scale_y(axes: Axes, panel: Panel) -> None:
    values = [line.value for line in panel.series]
    for measured in (measured for line in panel.series for measured in line.measured):
        values += [measured.low_ms, measured.high_ms]
    low, high = ends(values)
    head = 0.3 if panel.note or panel.step is not None else 0.12  # room for what is written above the lines
    if low > 0 and high >= LOG_FROM * low:
        axes.set_yscale("log")
        axes.set_ylim(low / (high / low) ** 0.1, high * (high / low) ** head)
        first, last = (int(np.floor(np.log10(end))) for end in (low, high))
        parts = (1, 2, 5) if last - first < 3 else (1,)
        axes.yaxis.set_major_locator(FixedLocator([part * 10.0**n for n in range(first, last + 2) for part in parts]))
    else:
        low = min(low, panel.baseline)
        span = max(high - low, 0.1 * panel.baseline)
        axes.set_ylim(low - (0.06 * span if panel.baseline else 0.0), high + head * span)
    show_scale(axes.yaxis, panel.y_label)


def show_scale(axis: XAxis | YAxis, label: str) -> None:
    axis.set_label_text(label + (" (log scale)" if axis.get_scale() == "log" else ""))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 10 else f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def ends(arrays: Sequence[NDArray[np.int64] | NDArray[np.float64]]) -> tuple[float, float]:
    joined = np.concatenate(arrays)
    return float(joined.min()), float(joined.max())


def shade(axes: Axes, series: Sequence[Series]) -> None:
    """The sizes at which a line rests on extrapolation, and the name of that where it fits."""
    spans = [span for line in series for span in extrapolated_spans(line)]
    for first, last in spans:
        axes.axvspan(first, last, color=SHADE, linewidth=0, zorder=0, label="extrapolated")
    shares = [(across(axes, first), across(axes, last)) for first, last in spans]
    left, right = max(shares, key=lambda share: share[1] - share[0], default=(0.0, 0.0))
    if right - left > 0.15:
        axes.text(
            (left + right) / 2, 0.12, "extrapolated", transform=axes.transAxes, ha="center", color=GREY, style="italic"
        )


def extrapolated_spans(line: Series) -> Iterator[tuple[int, int]]:
    """From the size before the first such cell to the last one, or to the size after where the line begins so."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], line.is_extrapolated, [False]])))
    for start, end in edges.reshape(-1, 2).tolist():
        last = min(end, len(line.size) - 1) if start == 0 else end - 1
        yield int(line.size[max(start - 1, 0)]), int(line.size[last])


def draw_series(axes: Axes, line: Series) -> None:
    color, drawstyle = COLORS[line.rank], "steps-pre" if line.is_stepped else "default"
    marker = "." if line.is_dotted else ""
    if line.is_faint:
        look, label = "" if line.is_dotted else "-", f"{line.name}, faint"
        axes.plot(
            line.size, line.value, color=color, ds=drawstyle, ls=look, marker=marker, lw=1, alpha=0.35, label=label
        )
        return
    beyond = line.is_extrapolated
    # With the cells on either side, so that nothing is missing between the two parts.
    dashed = beyond | np.append(beyond[1:], False) | np.append(False, beyond[:-1])
    for shown, style, label in ((~beyond, "-", line.name), (dashed, DASHES, f"{line.name}, extrapolated")):
        if shown.any():
            values = np.where(shown, line.value, np.nan)
            ls = "" if line.is_dotted else style
            axes.plot(line.size, values, color=color, ds=drawstyle, ls=ls, marker=marker, lw=1.4, label=label, zorder=3)
    for measured in line.measured:
        draw_measured(axes, measured, color, line.name)


def draw_measured(axes: Axes, measured: Measured, color: str, name: str) -> None:
    """Medians filled where a graph ran, hollow where not; bars over the middle half of the repetitions."""
    if len(measured.size):
        is_graph = measured.mode == "graph"
        axes.errorbar(
            measured.size,
            measured.median_ms,
            yerr=[measured.median_ms - measured.low_ms, measured.high_ms - measured.median_ms],
            fmt="o",
            markersize=3,
            markeredgewidth=0.7,
            color=color,
            markerfacecolor=color if is_graph else "white",
            elinewidth=0.7,
            label=f"{name}, {measured.mode}",
            zorder=4 if is_graph else 2,
        )


def label_ends(axes: Axes, series: Sequence[Series]) -> None:
    """Each line's name where it ends: beside it, apart from the others that end there; below it, if it ends alone."""
    for end in sorted({int(line.size[-1]) for line in series}):
        group = [line for line in series if line.size[-1] == end]
        places = [place(axes, end, float(line.value[-1])) for line in group]
        heights = [LINE_HEIGHT * len(line.name.splitlines()) for line in group]
        ends_alone = len(group) == 1 and places[0][0] < 0.9
        for line, (x, _), y in zip(group, places, apart([y for _, y in places], heights), strict=True):
            # Below, for what is to the right has more requests, and costs more.
            axes.annotate(
                line.name,
                xy=(x, y),
                xycoords="axes fraction",
                xytext=(4, -5) if ends_alone else (6, 0),
                textcoords="offset points",
                va="top" if ends_alone else "center",
                color=COLORS[line.rank],
            )


def place(axes: Axes, x: float, y: float) -> tuple[float, float]:
    """As shares of the axes' width and height."""
    right, up = (axes.transScale + axes.transLimits).transform((x, y))
    return float(right), float(up)


def across(axes: Axes, x: float) -> float:
    """As a share of the axes' width."""
    return place(axes, x, axes.get_ylim()[0])[0]


def apart(middles: Sequence[float], heights: Sequence[float]) -> list[float]:
    """The `middles`, moved so that things of these heights do not overlap: up where need be, then down from the top."""
    order = sorted(range(len(middles)), key=lambda index: middles[index])
    moved = list(middles)
    for below, above in pairwise(order):
        moved[above] = max(moved[above], moved[below] + (heights[below] + heights[above]) / 2)
    top = 1.0
    for index in reversed(order):
        moved[index] = min(moved[index], top - heights[index] / 2)
        top = moved[index] - heights[index] / 2
    return moved


def mark_capture_limit(axes: Axes, limit: int) -> None:
    axes.axvline(limit, color="black", linewidth=1, linestyle=":", zorder=1, label="capture limit")
    x = across(axes, limit)
    side, offset = ("right", -0.006) if x > 0.5 else ("left", 0.006)
    text = f"largest captured graph: {limit:,} tokens"
    axes.text(x + offset, 0.03, text, transform=axes.transAxes, ha=side)


def explain_step(axes: Axes, step: Step) -> None:
    middle = (step.first * step.last) ** 0.5
    x = across(axes, middle)
    on_the_left = x > 0.6
    axes.annotate(
        f"The staircase: {step.first:,} to {step.last:,} tokens cost the same, for all run\n"
        f"as {step.last:,}, the next size that a graph was captured for.",
        xy=(middle, step.ms),
        xytext=(x, 0.97),
        textcoords="axes fraction",
        ha="right" if on_the_left else "left",
        va="top",
        arrowprops={"arrowstyle": "->", "color": GREY, "relpos": (1.0 if on_the_left else 0.0, 0.0), "shrinkA": 0},
        bbox={"facecolor": "white", "linewidth": 0, "pad": 1},
    )


def key_lines(panels: Sequence[Panel], *, line: str, points: str, graph: str) -> list[Line2D]:
    """What the marks mean, of those that are there. `line`, `points` and `graph`: what these are in this picture."""
    series = [each for panel in panels for each in panel.series]
    modes = {measured.mode for each in series for measured in each.measured if len(measured.size)}
    key = [mark(line)]
    if "graph" in modes:
        key.append(mark(f"{points}, {graph}", marker="o", linestyle=""))
    if "eager" in modes:
        key.append(mark(f"{points}, eager", marker="o", linestyle="", markerfacecolor="white"))
    if modes:
        key.append(mark("middle half of repetitions", marker="|", linestyle=""))
    if any(each.is_extrapolated.any() for each in series if not each.is_faint):
        key.append(mark("extrapolated", linestyle=DASHES))
    return key + [mark(panel.faint_note, alpha=0.35) for panel in panels if panel.faint_note]


def mark(label: str, **look: Any) -> Line2D:
    return Line2D([], [], color=GREY, markersize=5, label=label, **look)
