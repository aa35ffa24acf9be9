"""The picture of cost tables: one figure, and the file it goes to."""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from specplan.errors import ConfigError
from specplan.files import CostTables, Profile
from specplan.files._atomic import write_atomically
from specplan.report.cost_page import cost_page

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

__all__ = ["PLOT_SUFFIXES", "cost_figure", "require_plot_suffix", "write_plot"]

PLOT_SUFFIXES: Final = (".html", ".png", ".svg")
# On top of matplotlib's own defaults: a picture is the same whatever style its user has set. Names come from files, and
# a $ in them is no mathematics. The salt makes the ids of an SVG the same in every run.
STYLE: Final[dict[str, Any]] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "text.parse_math": False,
    "svg.hashsalt": "specplan",
}
WIDTH_IN: Final = 13.0
HEIGHTS_IN: Final = (0.8, 4.4, 3.4)  # of the head, the first panel, and the row of the others
COLUMNS: Final = 130  # characters of a title
DPI: Final = 130
NAME_WIDTH: Final = 40  # characters of a name in the title


def cost_figure(profile: Profile, tables: CostTables) -> Figure:
    """What steps cost by `tables`, which were made from `profile`, beside what was measured.

    The verify pass by tokens on top; below it, where they were measured, how much dearer drafts make a step, drafting,
    and steps that run prompts.
    """
    from matplotlib import style
    from matplotlib.figure import Figure

    from specplan.report.cost_drawing import draw_panel, key_lines
    from specplan.report.cost_panels import cost_panels

    panels = cost_panels(profile, tables)
    top, below = panels[0], panels[1:]
    points = "measured" if profile.is_measured else "imported"
    graph = "static padded step" if profile.environment.graph_kind == "static" else "graph replay"
    line = "cost in the tables" + (", kept from falling" if tables.monotone == "running-max" else "")
    with style.context(["default", STYLE]):
        figure = Figure(figsize=(WIDTH_IN, sum(HEIGHTS_IN[: 3 if below else 2])), layout="constrained")
        rows = figure.add_gridspec(3 if below else 2, max(len(below), 1), height_ratios=HEIGHTS_IN[: 3 if below else 2])
        key = key_lines(panels, line=line, points=points, graph=graph)
        draw_head(figure.add_subplot(rows[0, :]), profile, key)
        draw_panel(figure.add_subplot(rows[1, :]), top, columns=COLUMNS)
        for column, panel in enumerate(below):
            draw_panel(figure.add_subplot(rows[2, column]), panel, columns=COLUMNS // len(below))
    return figure


def draw_head(axes: Axes, profile: Profile, key: list[Line2D]) -> None:
    names = [drawable(model.name) for model in (profile.target, profile.draft) if model is not None]
    where = [drawable(part) for part in (profile.environment.device, profile.environment.dtype) if part]
    axes.set_axis_off()
    axes.text(0, 1, f"What a step costs: {' with drafts of '.join(names)}", va="top", size=13, weight="bold")
    axes.text(0, 0.62, ", ".join(where), va="top")
    legend = axes.legend(handles=key, loc="lower left", ncols=len(key), borderaxespad=0, borderpad=0, columnspacing=1.5)
    legend.set_in_layout(False)  # a long one must not push the panels aside


def drawable(name: str) -> str:
    """A name from a file, cut, and without what the picture's font has no glyph for."""
    from matplotlib.font_manager import findfont, get_font

    font = get_font(findfont("DejaVu Sans"))
    known = "".join(char if font.get_char_index(ord(char)) else "?" for char in name)
    return known if len(known) <= NAME_WIDTH else f"{known[: NAME_WIDTH - 1]}…"


def require_plot_suffix(path: str | os.PathLike[str]) -> str:
    """The suffix of `path`, where it is that of a picture."""
    suffix = Path(path).suffix.lower()
    if suffix not in PLOT_SUFFIXES:
        raise ConfigError(
            f"cannot draw to {path}: a picture is written as {', '.join(PLOT_SUFFIXES[:-1])} or {PLOT_SUFFIXES[-1]}",
            "name the file costs.html for a page that explains the picture",
        )
    return suffix


def write_plot(path: str | os.PathLike[str], profile: Profile, tables: CostTables) -> None:
    """PNG, SVG or a page of HTML that needs no other file, as the suffix of `path` says."""
    suffix = require_plot_suffix(path)
    figure = cost_figure(profile, tables)
    if suffix == ".png":
        picture = rendered(figure, "png")
    else:
        picture = rendered(figure, "svg")
        if suffix == ".html":
            picture = cost_page(profile, tables, picture.decode()).encode()
    write_atomically(path, picture)


def rendered(figure: Figure, kind: str) -> bytes:
    """Without a date or a version, so that the same figure is the same bytes."""
    from matplotlib import style

    keys = ("Date", "Creator", "Format", "Type") if kind == "svg" else ("Software",)
    buffer = BytesIO()
    with style.context(["default", STYLE]):
        figure.savefig(buffer, format=kind, dpi=DPI, metadata=dict.fromkeys(keys))
    return buffer.getvalue()
