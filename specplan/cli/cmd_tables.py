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
    json: JsonOption = False,
) -> None:
    """Price every batch size: padded up to the capture limit, smooth above it.

    Example: specplan tables profile.json -o tables.json

    Where the profile timed both layouts, the tables also show how many times as long batch expansion takes.
    """
    from specplan.costs import tables_from_profile
    from specplan.files import Profile, require_writable
    from specplan.report.tables import tables_report

    if output is not None:
        require_writable(output, profile)
    built = tables_from_profile(Profile.read(profile), monotone=monotone.value)
    if output is not None:
        built.write(output)
    if json:
        print_json(built.to_json())
        return
    show(*tables_report(built))
    if output is not None:
        typer.echo(f"wrote {output}")
