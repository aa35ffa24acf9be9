"""The command line: each command parses, calls one function and renders what it returns.

This package is the only place that prints, and the one place where an expected error becomes output. Nothing heavy is
imported before a command needs it, so that `specplan --help` answers at once.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from specplan import __version__
from specplan.cli.cmd_check import check
from specplan.cli.cmd_compare import compare
from specplan.cli.cmd_doctor import doctor
from specplan.cli.cmd_import_costs import import_costs
from specplan.cli.cmd_import_trace import import_trace
from specplan.cli.cmd_profile import profile
from specplan.cli.cmd_record import record
from specplan.cli.cmd_simulate import simulate
from specplan.cli.cmd_tables import tables
from specplan.cli.cmd_validate import validate
from specplan.cli.output import INTERRUPTED
from specplan.errors import SpecplanError

__all__ = ["app", "main"]

# What the parser raises. Which click typer builds on, its own or the installed one, depends on its version.
UsageError: Any = typer.BadParameter.__base__


def fail(message: str, hint: str, exit_code: int) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    typer.echo(f"hint: {hint}", err=True)
    raise typer.Exit(exit_code)


@contextmanager
def boundary() -> Iterator[None]:
    """Turns expected errors into two lines on stderr and an exit code; all else is a bug and keeps its traceback."""
    try:
        yield
    except SpecplanError as error:
        fail(error.message, error.hint, error.exit_code)
    except UsageError as error:
        fail(error.format_message(), f"see {error.ctx.command_path} --help", error.exit_code)
    except KeyboardInterrupt:
        typer.echo("interrupted; a file is written whole or not at all", err=True)
        raise typer.Exit(INTERRUPTED) from None


class BoundedGroup(TyperGroup):
    """Its own options are parsed in `make_context`, a command's when it is invoked: one boundary around both."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with boundary():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with boundary():
            return super().invoke(ctx)


app = typer.Typer(
    cls=BoundedGroup,
    help="How many draft tokens to verify, on this device, under this traffic, and what that is worth.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (profile, tables, record, simulate, validate, check, compare, doctor):
    app.command()(command)
imports = typer.Typer(
    help="Use what others have recorded or timed: traces, costs.", no_args_is_help=True, rich_markup_mode=None
)
imports.command("trace")(import_trace)
imports.command("costs")(import_costs)
app.add_typer(imports, name="import")


def show_version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """How many draft tokens to verify, on this device, under this traffic, and what that is worth."""


def main() -> None:
    """The `specplan` script."""
    signal.signal(signal.SIGINT, on_interrupt)
    try:
        sys.exit(app())
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is said: to be impatient would only bring a traceback


def on_interrupt(signum: int, frame: FrameType | None) -> None:
    """As Python's own, but in the middle of an import it ends the process: raised there, it is lost or breaks it."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt
