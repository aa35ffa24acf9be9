"""Samples of vLLM's step timing (`StepTimingSample`), as its adaptive verification takes them when it starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from specplan.errors import FileError
from specplan.interop.rows import Row, read_table, shown
from specplan.interop.timings import Timing, Timings

__all__ = ["read_vllm_steps"]


def read_vllm_steps(path: str | os.PathLike[str], *, num_speculative_tokens: int | None) -> Timings:
    """Rows of `forward_ms`, `drafter_ms`, `num_target_tokens`, `num_reqs` and `full_cudagraph`.

    Drafting is taken from full graphs alone, as vLLM takes it: beside an eager target the drafter's interval holds what
    launching costs. A row without `drafter_ms` is one of a target alone.

    Args:
        num_speculative_tokens: What vLLM drafted, which the rows do not tell.
    """
    rows = read_table(path)
    timings = [timing for row in rows for timing in _timings(row, num_speculative_tokens)]
    eager = sum("drafter_ms" in row and not _is_full_graph(row) for row in rows)
    left_out = f"{Path(path).name}: rows whose drafting is left out, as they are not full graphs: {eager}"
    return Timings(
        label="vLLM step timing samples",
        timing_scope="verify: the target's forward or graph replay, CUDA events; draft: the drafter's proposal, CUDA "
        "events; lm_head, sampling, rejection, input preparation and the host are left out",
        timings=timings,
        graph_kind="cuda-graph",
        notes=(left_out,) if eager else (),
    )


def _timings(row: Row, num_speculative_tokens: int | None) -> Iterator[Timing]:
    num_reqs, num_tokens = row.count("num_reqs"), row.count("num_target_tokens")
    is_graph = _is_full_graph(row)
    yield Timing(
        place=row.place,
        mode="graph" if is_graph else "eager",
        num_reqs=num_reqs,
        num_tokens=num_tokens,
        repetitions_ms=(row.number("forward_ms"),),
    )
    if is_graph and "drafter_ms" in row:
        yield Timing(
            place=row.place,
            model="draft",
            mode="graph",
            num_reqs=num_reqs,
            num_tokens=num_tokens,
            k=num_speculative_tokens,
            repetitions_ms=(row.number("drafter_ms"),),
        )


def _is_full_graph(row: Row) -> bool:
    told = row.value("full_cudagraph")
    is_graph = told if isinstance(told, bool) else {"true": True, "false": False}.get(str(told).lower())  # of a CSV
    if is_graph is None:
        raise FileError(
            f"{row.place}: full_cudagraph is {shown(told)}, expected true or false", "correct it there, or leave it out"
        )
    return is_graph
