"""Commands of another engine's bench, as a shell script that tells what it does not do."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from specplan.interop.vllm_commands import BenchCommands

__all__ = ["bench_script"]


def bench_script(commands: BenchCommands) -> Iterator[str]:
    """The lines of it, one option a line."""
    unfilled = sum(commands.unfilled.values())
    yield f"# {len(commands.runs)} runs fill {commands.num_filled} of {commands.num_filled + unfilled} points."
    yield "# Add to each what your engine is told besides: --tensor-parallel-size, the drafter's method."
    yield "# Steps past the capture limit are replayed graphs here, without what launching them costs."
    for why, count in commands.unfilled.items():
        yield f"# not filled, {count}: {why}"
    for command in (*commands.runs, commands.importing):
        yield from _lines(command)


def _lines(command: Sequence[str]) -> Iterator[str]:
    """With each option and its value on a line of its own."""
    line = ""
    for part in command:
        if part.startswith("-") and line:
            yield f"{line} \\"
            line = "   "
        line += f"{' ' if line else ''}{shlex.quote(part)}"
    yield line
