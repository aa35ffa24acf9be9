"""Steps as TensorRT-LLM's cost profiler writes them down, a JSON line each."""

from __future__ import annotations

import os

from specplan.interop.rows import Row, json_lines
from specplan.interop.timings import Timing, Timings

__all__ = ["read_tensorrt_llm_steps"]


def read_tensorrt_llm_steps(path: str | os.PathLike[str]) -> Timings:
    """Lines of `batch_size` R, `verify_len` L, `step_time_ms` and `iteration`: steps of R (L + 1) tokens.

    Nothing is cut off as warm-up, which the lines do not tell; a median bears a few.
    """
    rows = json_lines(path)
    return Timings(
        label="TensorRT-LLM step timings",
        timing_scope="whole steps by the engine's clock, all of it counted as verify: drafting and the host are in it",
        timings=[_timing(row) for row in sorted(rows, key=lambda row: row.count("iteration", least=0, most=2**62))],
    )


def _timing(row: Row) -> Timing:
    num_reqs, verify_len = row.count("batch_size"), row.count("verify_len", least=0)
    return Timing(
        place=row.place,
        num_reqs=num_reqs,
        num_tokens=num_reqs * (1 + verify_len),
        repetitions_ms=(row.number("step_time_ms"),),
    )
