"""`specplan tables`: build, check and show cost tables."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from specplan.cli.output import JsonOption, print_json, show

__all__ = ["tables"]


class Monotone(StrEnum):
    RUNNING_MAX = "running-max"
    PAD_UP = "pad-up"
    NONE = "none"


def tables(
    profile: Annotated[Path, typer.Argument(help="Profile written by `specplan profile`.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Cost tables to write (JSON).")] = None,
    monotone: Annotated[
        Monotone,
        typer.Option(
            help="running-max: never cheaper with more tokens. pad-up: the cheapest captured size that holds them. "
            "none: the data as measured."
        ),
    ] = Monotone.RUNNING_MAX,
    plot: Annotated[
        Path | None, typer.Option(help="Picture of the costs to write: a page (.html), .png or .svg.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Price every batch size: padded up to the capture limit, smooth above it.

    Example: specplan tables profile.json -o tables.json

    To see them: specplan tables profile.json --plot costs.html

    Where the profile timed both layouts, the tables also show how many times as long batch expansion takes.
    """
    from specplan.costs import tables_from_profile
    from specplan.errors import ConfigError
    from specplan.files import Profile, require_writable
    from specplan.report.cost_plot import require_plot_suffix, write_plot
    from specplan.report.tables import tables_report

    if output is not None:
        require_writable(output, profile)
    if plot is not None:
        require_plot_suffix(plot)
        require_writable(plot, profile)
        if output is not None and plot.resolve() == output.resolve():
            raise ConfigError(f"--output and --plot both name {plot}", "give each a file of its own")
    measured = Profile.read(profile)
    built = tables_from_profile(measured, monotone=monotone.value)
    if plot is not None:
        write_plot(plot, measured, built)
    if output is not None:
        built.write(output)
    if json:
        print_json(built.to_json())
        return
    show(*tables_report(built))
    for written in filter(None, (output, plot)):
        typer.echo(f"wrote {written}")
