"""How commands speak: results on stdout, progress and remarks on stderr."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["INTERRUPTED", "NOT_GOOD", "JsonOption", "Report", "print_json", "remark", "show", "show_progress"]

JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout, and nothing else there.")]
NOT_GOOD = 1  # no error: what was asked about is not as whoever asked wants it
INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
# What the widest table needs. A narrower terminal wraps its lines, where rich would squeeze columns to nothing; a file
# or a pipe has no width of its own.
LEAST_WIDTH = 132


class Report(Protocol):
    """Tells a progress bar how far the work is, from 0 to 1, and what it is at."""

    def __call__(self, fraction: float, doing: str) -> None: ...


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    made = Console(stderr=stderr, highlight=False)
    if stderr or made.width >= LEAST_WIDTH:
        return made
    return Console(highlight=False, width=LEAST_WIDTH)


def show(*renderables: RenderableType) -> None:
    """Prints to stdout."""
    for renderable in renderables:
        console().print(renderable, markup=False)


def remark(text: str) -> None:
    """Says something about the run, on stderr."""
    typer.echo(text, err=True)


def print_json(result: bytes | dict[str, Any]) -> None:
    """One JSON document on stdout: a file's own bytes, or a command's summary."""
    import msgspec

    if isinstance(result, dict):
        result = msgspec.json.format(msgspec.json.encode(result), indent=2)
    typer.echo(result.decode().rstrip())


@contextmanager
def show_progress(task: str) -> Iterator[Report]:
    """A bar with the time left on stderr; on anything but a terminal, a line for every tenth of the way."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    on_stderr = console(stderr=True)
    if not on_stderr.is_terminal:
        yield line_report(task)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.fields[doing]}"),
    )
    with Progress(*columns, console=on_stderr) as progress:
        bar = progress.add_task(task, total=1.0, doing="")
        yield lambda fraction, doing: progress.update(bar, completed=fraction, doing=doing)


def in_words(duration_s: float) -> str:
    return f"{round(duration_s)} s" if duration_s < 100 else f"{round(duration_s / 60)} min"


def line_report(task: str) -> Report:
    tenths_told = 0
    start_s = time.monotonic()

    def report(fraction: float, doing: str) -> None:
        nonlocal tenths_told
        if int(fraction * 10) > tenths_told:
            tenths_told = int(fraction * 10)
            left_s = (time.monotonic() - start_s) * (1 / fraction - 1)
            left = f"; about {in_words(left_s)} left" if fraction < 1 else ""
            remark(f"{task}: {tenths_told * 10}% ({doing}{left})")

    return report
