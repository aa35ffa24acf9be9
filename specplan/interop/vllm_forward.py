"""`vllm bench forward --output-json`: passes of exact batches, each replayed as a graph of its own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from specplan.errors import FileError
from specplan.interop.rows import Row, read_table, shown
from specplan.interop.timings import Timing, Timings
from specplan.shapes import Lengths

__all__ = ["read_vllm_forward"]

_MOST_CONTEXT = 2**31
_US_PER_MS = 1000.0


def read_vllm_forward(
    path: str | os.PathLike[str], *, drafters: Mapping[int, str | os.PathLike[str]] | None = None
) -> Timings:
    """Verify passes from a run with `--exclude-drafter`, and drafting from runs without it, by difference.

    Of several ranks the slowest counts. A case whose prompts are not whole ones (a prefix in the cache, one chunk of
    several) is no step that a profile holds, and is left out.

    Args:
        drafters: By its `num_speculative_tokens`, a run with the drafter of cases that are also in `path`. What
            drafting takes is the difference of the two medians: one repetition.
    """
    cases = [_case(row) for row in read_table(path)]
    steps = [case for case in cases if case.is_step]
    timings = [_verify(case) for case in steps]
    if timings and not any(timing.lengths == "even" for timing in timings):
        raise FileError(
            f"{path}: in every case contexts or queries differ from request to request, expected even ones, which are "
            "what tables price",
            "run vllm bench forward with --kv-len-jitter 0",
        )
    for k, with_drafter in (drafters or {}).items():
        timings += _drafts(k, with_drafter, cases)
    left_out = len(cases) - len(steps)
    return Timings(
        label="vllm bench forward",
        timing_scope="verify: graph replay of the target's forward alone; lm_head, sampling, rejection, input "
        "preparation and the host are left out; draft: a replay with the drafter, less one without",
        timings=timings,
        graph_kind="cuda-graph",
        is_unpadded=True,
        notes=(f"{Path(path).name}: cases left out, as they run parts of prompts: {left_out}",) if left_out else (),
    )


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class _Request:
    query_len: int
    kv_len: int  # the query included, as vLLM counts
    num_drafts: int

    @property
    def context_len(self) -> int:
        return self.kv_len - self.query_len

    @property
    def is_prefill(self) -> bool:
        """More tokens than one and its drafts are a prompt's, and so is a token with none before it."""
        return self.query_len > 1 + self.num_drafts or self.kv_len == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """One of the batches that were timed."""

    name: str
    place: str
    requests: tuple[_Request, ...]  # sorted
    repetitions_ms: tuple[float, ...]

    @property
    def prompts(self) -> list[_Request]:
        return [request for request in self.requests if request.is_prefill]

    @property
    def verifying(self) -> list[_Request]:
        return [request for request in self.requests if not request.is_prefill]

    @property
    def context_len(self) -> int:
        return round(fmean(request.context_len for request in self.verifying)) if self.verifying else 0

    @property
    def is_step(self) -> bool:
        """Its prompts are whole; and beside prompts it has a whole number of drafts per request, as a mixed sample."""
        if not self.prompts:
            return True
        num_drafts = sum(request.num_drafts for request in self.verifying)
        is_whole = not self.verifying or num_drafts % len(self.verifying) == 0
        return is_whole and all(not prompt.context_len for prompt in self.prompts)

    @property
    def lengths(self) -> Lengths:
        """Even where no two differ by more than the token that an even split leaves over."""
        if _spread(request.query_len for request in self.verifying) > 1:
            return "ragged"
        return "spread" if _spread(request.context_len for request in self.verifying) > 1 else "even"


def _spread(values: Iterable[int]) -> int:
    values = list(values)
    return max(values) - min(values) if values else 0


def _case(row: Row) -> _Case:
    ranks = row.children("ranks") if "ranks" in row else []
    slowest = max(map(_repetitions_ms, ranks), key=median) if ranks else (row.number("median_us") / _US_PER_MS,)
    return _Case(
        name=shown(row.value("case")),
        place=row.place,
        requests=tuple(sorted(map(_request, row.children("requests")))),
        repetitions_ms=slowest,
    )


def _request(row: Row) -> _Request:
    query_len = row.count("query_len")
    return _Request(
        query_len=query_len,
        kv_len=row.count("kv_len", least=query_len, most=_MOST_CONTEXT),
        num_drafts=row.count("num_draft_tokens", least=0, most=query_len - 1) if "num_draft_tokens" in row else 0,
    )


def _repetitions_ms(rank: Row) -> tuple[float, ...]:
    latency = rank.child("latency_us")
    name = "samples_us" if "samples_us" in latency else "median"
    numbers = latency.numbers(name) if name == "samples_us" else [latency.number(name)]
    return tuple(us / _US_PER_MS for us in numbers)


def _verify(case: _Case) -> Timing:
    return Timing(
        place=case.place,
        mode="eager" if case.prompts else "graph",  # as a profile calls every step with prompts
        num_reqs=len(case.requests),
        num_tokens=sum(request.query_len for request in case.requests),
        context_len=case.context_len,
        lengths=case.lengths,
        num_prefilling=len(case.prompts),
        num_prompt_tokens=sum(prompt.query_len for prompt in case.prompts),
        repetitions_ms=case.repetitions_ms,
    )


def _drafts(k: int, path: str | os.PathLike[str], without: Sequence[_Case]) -> Iterator[Timing]:
    alone = {case.requests: case for case in without}
    for case in map(_case, read_table(path)):
        if case.prompts:
            raise FileError(
                f"{case.place}: case {case.name} runs prompts, which the drafter runs too, expected none",
                "time drafting in cases without prompts",
            )
        if case.requests not in alone:
            raise FileError(
                f"{case.place}: the requests of case {case.name} are in no case without the drafter",
                "run the same cases with --exclude-drafter, and give that file first",
            )
        with_ms, without_ms = median(case.repetitions_ms), median(alone[case.requests].repetitions_ms)
        if with_ms <= without_ms:
            raise FileError(
                f"{case.place}: case {case.name} took {with_ms:g} ms with the drafter, expected more than the "
                f"{without_ms:g} ms without it",
                "is this the run with the drafter, and the other the one with --exclude-drafter?",
            )
        yield Timing(
            place=case.place,
            model="draft",
            mode="graph",
            num_reqs=len(case.requests),
            num_tokens=sum(request.query_len for request in case.requests),
            context_len=case.context_len,
            k=k,
            repetitions_ms=(with_ms - without_ms,),
        )
