"""What batches meet that are larger than any graph, or than what was measured; and sizes that graphs are missing at."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from specplan.files.tables import CostTables, Finding, Source
from specplan.shapes import padded_size

__all__ = ["judge_limits"]

_GAP = 0.05  # of a step's cost, paid for padding alone
_MOST_REQUESTS = 512  # looked at: larger batches pad little


def judge_limits(tables: CostTables) -> list[Finding]:
    """Of tables that say which K they are for, and that hold measured sizes."""
    if tables.num_speculative_tokens is None or not tables.capture_limit:
        return []
    return [*_above_limit(tables), *_gaps(tables, 1 + tables.num_speculative_tokens)]


def _measured(tables: CostTables) -> NDArray[np.int64]:
    """Sizes that some batch was measured at."""
    known = (tables.verify_source == Source.MEASURED).any(axis=(0, 1))
    return np.flatnonzero(known)


def _above_limit(tables: CostTables) -> Iterator[Finding]:
    limit, most = tables.capture_limit, tables.max_num_reqs
    full = min(most * (1 + (tables.num_speculative_tokens or 0)), tables.max_num_tokens)
    if full <= limit:
        return
    row, past = tables.verify_row(most, tables.contexts[-1]), _measured(tables)
    first = int(min(past[past > limit], default=limit + 1))
    jump = row[first] / row[limit] - 1
    what = f"a full batch of {most} requests, {full} tokens, is past the largest graph ({limit})"
    if not (past > limit).any():
        yield Finding(
            code="no-point-above-limit",
            severity="warning",
            place="verify",
            message=f"{what}, and nothing past it was measured: it is priced as if a graph held it",
            hint=f"measure it: specplan profile --max-num-seqs {most} --max-num-batched-tokens {2 * full}",
        )
        return
    yield Finding(
        code="above-capture-limit",
        severity="note",
        place="verify",
        message=f"{what}: it runs eagerly, in {row[full]:.3g} ms; {first} tokens cost {jump:+.0%} over the graph",
        hint=f"capture up to {full} tokens if memory allows, or trim below the limit: specplan check FILE "
        "--max-num-seqs N -k K",
    )


def _gaps(tables: CostTables, query_len: int) -> Iterator[Finding]:
    """Batches in which everyone has all their drafts, and that pay for padding: the line between the two captured sizes
    around them is what a graph of their own would cost."""
    sizes = np.array(tables.capture_sizes)
    worst, where = _GAP, (0, 0)
    for num_reqs in range(1, min(tables.max_num_reqs, _MOST_REQUESTS) + 1):
        num_tokens = num_reqs * query_len
        if (
            num_tokens > min(tables.capture_limit, tables.max_num_tokens)
            or num_tokens in tables.capture_sizes
            or num_tokens < sizes[0]
        ):
            continue
        row = tables.verify_row(num_reqs, tables.contexts[-1])
        high = min(padded_size(num_tokens, tables.capture_sizes), tables.max_num_tokens)
        low = int(sizes[sizes < num_tokens][-1])
        own = row[low] + (row[high] - row[low]) * (num_tokens - low) / (high - low)
        if np.isfinite(own) and row[high] / own - 1 > worst:
            worst, where = float(row[high] / own - 1), (num_reqs, high)
    if where[0]:
        num_reqs, high = where
        yield Finding(
            code="capture-gap",
            severity="note",
            place=f"verify, {num_reqs} requests",
            message=f"no graph is of {num_reqs * query_len} tokens, which {num_reqs} requests with all their drafts "
            "bring: "
            f"they run at {high}, for {worst:.0%} more than between the sizes around",
            hint=f"capture {num_reqs * query_len} tokens as well, or compare: specplan tables --compare-semantics",
        )
