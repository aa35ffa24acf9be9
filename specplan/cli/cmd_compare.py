"""`specplan compare`: what got faster or slower between two profiles, or two sets of cost tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specplan.cli.output import NOT_GOOD, JsonOption, print_json, show

__all__ = ["compare"]


def compare(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="Profile or cost tables to compare with.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The same kind of file, measured later or otherwise.")],
    margin: Annotated[float, typer.Option(help="The change that counts as none, as a fraction: 0.01 is 1%.")] = 0.01,
    across: Annotated[
        bool,
        typer.Option("--across", help="Compare costs of different devices, models or ways of measuring all the same."),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Say what got faster or slower, region by region: slower, faster, same or too close to call.

    Example: specplan compare old.json new.json

    Exit code 1: a region is slower. 0: none is known to be.
    """
    import msgspec

    from specplan.costs.compare import compare_costs
    from specplan.files import read_costs
    from specplan.report.compare import comparison_report, comparison_sentence

    comparison = compare_costs(read_costs(old), read_costs(new), margin=margin, across=across)
    if json:
        print_json(msgspec.to_builtins(comparison))
    else:
        show(*comparison_report(comparison))
        typer.echo(comparison_sentence(comparison))
    if comparison.slower:
        raise typer.Exit(NOT_GOOD)
