"""SGLang's table of steps per second for its dspark scheduler, in either form, as it is written and read there."""

from __future__ import annotations

import os

from specplan.errors import FileError
from specplan.interop.rows import Row, read_object
from specplan.interop.timings import Timing, Timings

__all__ = ["read_sglang_sps"]

_MS_PER_S = 1000.0


def read_sglang_sps(path: str | os.PathLike[str]) -> Timings:
    """A timing at each probe, in milliseconds.

    * By tokens: `sample_batch_tokens`, `sample_steps_per_sec`. SGLang reads it downwards: the next smaller probe's.
    * Additive, told by `bias_seconds`: bias + alpha(requests) + theta(tokens), at all pairs of `bs_probes` and
      `m_probes` that a step can be. Between probes SGLang interpolates.

    Either prices whole steps, and as a verify pass here: what is left of them cannot be told apart.
    """
    table = read_object(path)
    additive = "bias_seconds" in table
    return Timings(
        label="SGLang dspark sps table" + (", additive" if additive else ""),
        timing_scope="whole steps by the clock of the table's profiler, all of it counted as verify; where its server "
        "drafted, drafting is in it, and cannot be told apart",
        timings=_additive(table) if additive else _by_tokens(table),
    )


def _by_tokens(table: Row) -> list[Timing]:
    tokens = table.counts("sample_batch_tokens")
    rates = table.numbers("sample_steps_per_sec", beside="sample_batch_tokens")
    return [
        Timing(
            place=f"{table.place}: sample_steps_per_sec[{index}]", num_tokens=size, repetitions_ms=(_MS_PER_S / rate,)
        )
        for index, (size, rate) in enumerate(zip(tokens, rates, strict=True))
    ]


def _additive(table: Row) -> list[Timing]:
    bias_s = table.number("bias_seconds")
    requests, tokens = table.counts("bs_probes"), table.counts("m_probes")
    alpha_s = table.numbers("alpha_seconds", beside="bs_probes", least=-1e6)
    theta_s = table.numbers("theta_seconds", beside="m_probes", least=-1e6)
    timings = [
        Timing(
            place=f"{table.place}: {num_reqs} requests, {num_tokens} tokens",
            num_reqs=num_reqs,
            num_tokens=num_tokens,
            repetitions_ms=((bias_s + alpha + theta) * _MS_PER_S,),
        )
        for num_reqs, alpha in zip(requests, alpha_s, strict=True)
        for num_tokens, theta in zip(tokens, theta_s, strict=True)
        if num_tokens >= num_reqs
    ]
    if not timings:
        raise FileError(
            f"{table.place}: no m_probes ({tokens[-1]} at most) holds the requests of any bs_probes ({requests[0]} at "
            "least)",
            "is this the table that the engine reads?",
        )
    return timings
