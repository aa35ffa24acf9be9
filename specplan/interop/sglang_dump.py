"""Step records of SGLang's dspark dump (`SGLANG_DSPARK_DEBUG_DUMP`, `DsparkInfoDumper`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from specplan.errors import FileError
from specplan.interop.rows import Row, read_table, shown
from specplan.interop.timings import Facts, Mode, Timing, Timings

__all__ = ["read_sglang_dump"]

_MOST_CONTEXT, _MOST_TOKENS = 2**31, 2**20
_KEY = "verify_tokens_graph_key"
_NO_GRAPH = -1  # as SGLang writes it


def read_sglang_dump(path: str | os.PathLike[str], *, num_speculative_tokens: int | None = None) -> Timings:
    """Records, a line each or a list; or the whole of `/server_info`, or of its `dspark_info_record`.

    Where the dump holds `target_verify_gpu_ms` that is the verify pass, and `draft_gpu_ms` drafting; otherwise the
    whole step (`step_gpu_ms`, else `step_cpu_ms`) counts as verify. A record without the time that the others have,
    such as a run's first, is left out.

    A record without `verify_tokens_graph_key` does not tell a replay from an eager step.

    Serving moves through contexts. All of a dump counts as one, the mean over its steps' requests, where it holds
    requests; prices by every step's own would have as many contexts as steps.

    Args:
        num_speculative_tokens: What was drafted for each request, where records come without the head that tells.
    """
    dumps = list(_dumps(path))
    records = [(row, dump) for dump in dumps for row in dump.records]
    clock = _clock([row for row, _ in records], path)
    context_len = _context_len([row for row, _ in records])
    timed = [(row, dump) for row, dump in records if clock.field in row]
    gammas = {dump.num_drafts for dump in dumps if dump.num_drafts is not None}
    timings = [
        timing
        for row, dump in timed
        for timing in _timings(row, clock, dump.num_drafts or num_speculative_tokens, context_len)
    ]
    left_out = f"{Path(path).name}: records left out, as they have no {clock.field}: {len(records) - len(timed)}"
    return Timings(
        label="SGLang dspark step dump",
        timing_scope=clock.scope,
        timings=timings,
        told=Facts(num_speculative_tokens=max(gammas, default=None)),
        graph_kind="cuda-graph",
        notes=(left_out,) if len(timed) < len(records) else (),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clock:
    field: str
    scope: str


_VERIFY = _Clock(
    field="target_verify_gpu_ms",
    scope="verify: the target's verify segment, CUDA events; draft: the draft segment, CUDA events; the rest of the "
    "step and the host are left out",
)
_WHOLE = (
    _Clock(
        field="step_gpu_ms",
        scope="whole steps on the GPU, CUDA events, all of it counted as verify: drafting is in it",
    ),
    _Clock(
        field="step_cpu_ms",
        scope="whole steps, from one to the next by the host's clock, all of it counted as verify: drafting and the "
        "host are in it",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dump:
    num_drafts: int | None  # gamma, where the dump's head is there
    records: list[Row]


def _dumps(path: str | os.PathLike[str]) -> Iterator[_Dump]:
    """One for each rank of `/server_info`; bare records are one dump."""
    rows = read_table(path)
    bare = [row for row in rows if "forward_ct" in row]
    if bare:
        yield _Dump(num_drafts=None, records=bare)
        return
    for row in rows:
        states = row.children("internal_states") if "internal_states" in row else [row]
        for state in states:
            info = state.child("dspark_info_record") if "dspark_info_record" in state else state
            yield _Dump(
                num_drafts=info.count("gamma") if "gamma" in info else None,
                records=info.children("records"),
            )


def _clock(records: list[Row], path: str | os.PathLike[str]) -> _Clock:
    for clock in (_VERIFY, *_WHOLE):
        if any(clock.field in record for record in records):
            return clock
    raise FileError(
        f"{path}: no record has a time ({', '.join(clock.field for clock in (_VERIFY, *_WHOLE))})",
        "dump them: SGLANG_DSPARK_DEBUG_DUMP=core,reqs,draft_gpu_time,target_verify_gpu_time",
    )


def _context_len(records: list[Row]) -> int | None:
    contexts = [
        request.count("prefix_len", least=0, most=_MOST_CONTEXT)
        for record in records
        if "reqs" in record
        for request in record.children("reqs")
    ]
    return round(fmean(contexts)) if contexts else None


def _timings(record: Row, clock: _Clock, num_drafts: int | None, context_len: int | None) -> Iterator[Timing]:
    num_reqs, num_tokens = record.count("bs"), record.count("num_verify_tokens")
    key = record.value(_KEY) if _KEY in record else None
    if key not in (None, _NO_GRAPH) and not (type(key) is int and num_tokens <= key <= _MOST_TOKENS):
        raise FileError(
            f"{record.place}: {_KEY} is {shown(key)}, expected at least the {num_tokens} tokens, or "
            f"{_NO_GRAPH} for no graph",
            "correct it there, or leave it out",
        )
    mode: Mode | None = None if key is None else "eager" if key == _NO_GRAPH else "graph"
    yield Timing(
        place=record.place,
        mode=mode,
        num_reqs=num_reqs,
        num_tokens=num_tokens,
        executed_num_tokens=key if mode == "graph" else num_tokens,
        context_len=context_len,
        repetitions_ms=(record.number(clock.field),),
    )
    if clock is _VERIFY and "draft_gpu_ms" in record:
        yield Timing(
            place=record.place,
            model="draft",
            mode=mode,
            num_reqs=num_reqs,
            num_tokens=num_tokens,
            context_len=context_len,
            k=num_drafts,
            repetitions_ms=(record.number("draft_gpu_ms"),),
        )
