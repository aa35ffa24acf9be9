"""`specplan tables`: build, check and show cost tables."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, get_args

import typer

from specplan.cli.output import JsonOption, print_json, show

__all__ = ["tables"]


class Monotone(StrEnum):
    RUNNING_MAX = "running-max"
    PAD_UP = "pad-up"
    NONE = "none"


class SemanticsName(StrEnum):
    PADDED = "padded"
    LINEAR = "linear"
    EXACT = "exact"
    FLOOR = "floor"


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
    semantics: Annotated[
        SemanticsName,
        typer.Option(
            help="What a verify pass of a size that was not measured costs. padded: what the next captured size does. "
            "linear: between its neighbours. floor: what the size below does, as engines that round down believe. "
            "exact: nothing; such tables plan, and do not charge."
        ),
    ] = SemanticsName.PADDED,
    compare_semantics: Annotated[
        bool, typer.Option("--compare-semantics", help="Show what planning by one and running another would lose.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Picture of the costs to write: a page (.html), .png or .svg.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Price every batch size: padded up to the capture limit, smooth above it.

    Example: specplan tables profile.json -o tables.json

    To see them: specplan tables profile.json --plot costs.html

    Where the profile timed both layouts, the tables also show how many times as long batch expansion takes.
    --compare-semantics draws batches of confidences, and with --json prints the comparison alone.
    """
    import msgspec

    from specplan.costs import tables_from_profile
    from specplan.errors import ConfigError
    from specplan.files import Profile, require_writable
    from specplan.files.tables import Semantics
    from specplan.report.cost_plot import require_plot_suffix, write_plot
    from specplan.report.tables import semantics_report, tables_report

    if output is not None:
        require_writable(output, profile)
    if plot is not None:
        require_plot_suffix(plot)
        require_writable(plot, profile)
        if output is not None and plot.resolve() == output.resolve():
            raise ConfigError(f"--output and --plot both name {plot}", "give each a file of its own")
    measured = Profile.read(profile)
    built = tables_from_profile(measured, monotone=monotone.value, semantics=semantics.value)
    compared = None
    if compare_semantics:
        from specplan.planning.semantics import compare_semantics as compare

        names = get_args(Semantics)
        compared = compare(
            {name: tables_from_profile(measured, monotone=monotone.value, semantics=name) for name in names}
        )
    if plot is not None:
        write_plot(plot, measured, built)
    if output is not None:
        built.write(output)
    if json and compared is not None:
        print_json(msgspec.to_builtins(compared))
        return
    if json:
        print_json(built.to_json())
        return
    show(*tables_report(built))
    if compared is not None:
        show(*semantics_report(compared))
    for written in filter(None, (output, plot)):
        typer.echo(f"wrote {written}")
