"""`specplan doctor`: what about this machine will spoil a measurement."""

from __future__ import annotations

from typing import Annotated

import typer

from specplan.cli.output import NOT_GOOD, JsonOption, print_json

__all__ = ["doctor"]


def doctor(
    device: Annotated[str, typer.Option(help="What is to be measured: auto, cpu, cuda or cuda:N.")] = "auto",
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 where there is a warning.")] = False,
    json: JsonOption = False,
) -> None:
    """Say what about this machine will spoil a measurement, before one is taken; a few seconds.

    Example: specplan doctor --strict && specplan profile --target tiny --draft tiny -o profile.json

    What nobody knows is said to be unknown, and is no warning.
    """
    import msgspec

    from specplan.measure.doctor import examine
    from specplan.measure.environment import pick_device
    from specplan.report.doctor import diagnosis_lines

    found = examine(pick_device(device))
    if json:
        print_json(msgspec.to_builtins(found))
    else:
        for line in diagnosis_lines(found.device, found.findings, found.unknown, found.fine):
            typer.echo(line)
    if strict and found.has_warnings:
        raise typer.Exit(NOT_GOOD)
