"""Whether an engine's list of capture sizes is what it takes it for, and holds the sizes that batches bring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specplan.files.tables import Finding
from specplan.shapes import padded_size

__all__ = ["judge_capture_sizes"]

_MOST_REQUESTS = 2**20  # past which nobody serves, and a list of batches would take for ever


def judge_capture_sizes(
    sizes: Sequence[int],  # in the engine's order, positive
    *,
    max_num_seqs: int,
    num_speculative_tokens: int,
) -> Iterator[Finding]:
    """Disorder, repetition, and batches with all their drafts, n (1 + K) tokens, that no size is made for."""
    ascending = sorted(set(sizes))
    if list(sizes) != ascending:
        yield Finding(
            code="capture-sizes-unsorted",
            severity="warning",
            place="capture sizes",
            message=f"{len(sizes)} sizes from {sizes[0]} to {sizes[-1]} are not ascending and distinct: an engine that "
            f"takes the last one for the limit replays graphs up to {sizes[-1]} tokens, not {ascending[-1]}",
            hint=f"list each once, the smallest first: {','.join(map(str, ascending))}",
        )
    query_len = 1 + num_speculative_tokens
    reached = range(query_len, min(max_num_seqs, _MOST_REQUESTS) * query_len + 1, query_len)
    within = [tokens for tokens in reached if tokens <= ascending[-1]]
    missing = [tokens for tokens in within if tokens not in set(ascending)]
    if missing:
        worst = max(missing, key=lambda tokens: padded_size(tokens, ascending) / tokens)
        padded = padded_size(worst, ascending)
        yield Finding(
            code="capture-size-missing",
            severity="note",
            place="capture sizes",
            message=f"{len(missing)} of {len(within)} batches with all their drafts, n x {query_len} tokens, have no "
            "graph "
            f"of their own; the worst, {worst} tokens, runs at {padded}, {padded / worst - 1:.0%} more",
            hint="specplan check TABLES says what that costs (capture-gap)",
        )
