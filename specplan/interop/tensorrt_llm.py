"""TensorRT-LLM's cost table for its dspark scheduler: the additive form of old, and exact cells (schema version 2)."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator

from specplan.errors import ConfigError, FileError
from specplan.interop.rows import Row, read_object, shown
from specplan.interop.timings import Facts, Timing, Timings

__all__ = ["read_tensorrt_llm"]

_SCOPE = "whole steps by the engine's clock, all of it counted as verify: drafting and the host are in it"


def read_tensorrt_llm(path: str | os.PathLike[str], *, num_speculative_tokens: int | None = None) -> Timings:
    """Timings of whole steps of R requests and M = R (1 + verified drafts) tokens.

    * Additive: fixed + overhead(R) + time(M), where the time of M is that of the largest of `token_counts` up to it.
      Both ends of each tread of this staircase are timings, for every R of `batch_sizes`, from R to R (1 + K) tokens.
    * Exact, told by `schema_version`: cells of G requests and V tokens of a captured graph. V = 0 is a full step,
      G (1 + K) tokens; a cell of as many tokens in ragged form is left out beside it, as the engine never chooses it.

    Args:
        num_speculative_tokens: K, which the additive form does not tell.
    """
    table = read_object(path)
    if "schema_version" not in table:
        return Timings(
            label="TensorRT-LLM dspark cost table",
            timing_scope=_SCOPE,
            timings=list(_additive(table, num_speculative_tokens)),
        )
    if table.value("schema_version") != 2:
        raise FileError(
            f"{table.place}: schema_version is {shown(table.value('schema_version'))}, expected 2, or none for the old "
            "form",
            "give a table of one of these, or its steps: --format tensorrt-llm-steps",
        )
    fingerprint = table.child("engine_fingerprint")
    num_drafts = fingerprint.count("max_draft_len")
    return Timings(
        label="TensorRT-LLM dspark cost table, schema 2",
        timing_scope=_SCOPE,
        timings=list(_exact(table.child("cost_tables"), num_drafts)),
        told=Facts(device=shown(fingerprint.value("gpu")), num_speculative_tokens=num_drafts),
        graph_kind="cuda-graph",
    )


def _additive(table: Row, num_speculative_tokens: int | None) -> Iterator[Timing]:
    if num_speculative_tokens is None:
        raise ConfigError(
            f"{table.place}: the table does not say how many tokens are drafted, which bounds what it is asked",
            "give --num-speculative-tokens K, the most drafts per request and step",
        )
    tokens = table.counts("token_counts", least=0)
    times_ms = table.numbers("step_time_ms", beside="token_counts")
    requests = table.counts("batch_sizes")
    overheads_ms = table.numbers("batch_overhead_ms", beside="batch_sizes", least=0)
    fixed_ms = table.at_least_0("fixed_overhead_ms")
    ends = {size - 1 for size in tokens[1:]}
    for num_reqs, overhead_ms in zip(requests, overheads_ms, strict=True):
        full = num_reqs * (1 + num_speculative_tokens)
        sizes = {size for size in ends.union(tokens) if num_reqs <= size <= full}
        for size in sorted(sizes | {num_reqs, full}):
            time_ms = times_ms[max(bisect_right(tokens, size) - 1, 0)]
            yield Timing(
                place=f"{table.place}: {num_reqs} requests, {size} tokens",
                num_reqs=num_reqs,
                num_tokens=size,
                repetitions_ms=(fixed_ms + overhead_ms + time_ms,),
            )


def _exact(tables: Row, num_drafts: int) -> Iterator[Timing]:
    for name in tables.fields:
        cells = tables.child(name)
        num_reqs = Row(place=tables.place, fields={"a graph's requests": name}).count("a graph's requests")
        full = num_reqs * (1 + num_drafts)
        tokens = cells.counts("token_counts", least=0, most=full)
        times_ms = cells.numbers("step_time_ms", beside="token_counts")
        for size, time_ms in zip(tokens, times_ms, strict=True):
            if size == full and tokens[0] == 0:
                continue
            yield Timing(
                place=f"{cells.place}: {size} tokens",
                mode="graph",
                num_reqs=num_reqs,
                num_tokens=size or full,
                repetitions_ms=(time_ms,),
            )
