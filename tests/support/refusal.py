"""How a command refuses, held to the form that all refusals have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from typer.testing import Result


def refused(run: Callable[..., Result], exit_code: int, message: str, *args: str | Path) -> str:
    """Runs a command that must fail: stdout stays empty, stderr holds an error and a hint of one line each."""
    result = run(*args)
    assert result.exit_code == exit_code, result.output
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["error", "hint"], lines
    assert message in lines[0]
    return lines[1]
