"""Replay of a dense trace, step by step: the definition that the compiled replay is held to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from specplan.planning import EmaController, Policy, admit_by_survival, choose_draft_budget, survival_probability
from specplan.planning.prices import Region, StepPrices, StepSize
from specplan.simulation.scheduler import ClosedLoop, RunningRequest, ScheduledStep, num_to_finish

if TYPE_CHECKING:
    from specplan.files.trace import Trace

__all__ = ["ReplayCase", "ReplayTotals", "StepRecord", "Workload", "replay", "replay_steps"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workload:
    """The requests of a dense trace, as a replay reads them."""

    accepted_len: NDArray[np.int32]  # [rows], of K drafts
    first_row: NDArray[np.int64]  # [num_requests]; where position 1 of each request is (or would be)
    prompt_len: NDArray[np.int32]  # [num_requests]
    output_len: NDArray[np.int32]  # [num_requests]

    @classmethod
    def from_trace(cls, trace: Trace) -> Workload:
        return cls(
            accepted_len=trace.accepted_len.copy(),  # Parquet's is read-only, which numba would compile for once more
            first_row=trace.first_row,
            prompt_len=trace.prompt_len,
            output_len=trace.output_len,
        )

    @property
    def num_requests(self) -> int:
        return len(self.output_len)


@dataclass(frozen=True, kw_only=True, eq=False)
class ReplayCase:
    """One policy at one concurrency: everything a replay needs but the order of the requests."""

    workload: Workload
    concurrency: int
    max_num_batched_tokens: int
    num_drafts: int  # proposed per verifying request and step, which reserves tokens for as many
    is_ema: bool = False  # num_drafts are the most, and an EmaController says how many
    confidence: NDArray[np.float32] | None  # [rows, num_drafts], what a budget reads; None: every draft is verified
    lag: int
    prices: StepPrices  # what a step is charged
    planner_prices: StepPrices  # what a budget believes
    half_widths: StepPrices | None = None  # of the 95% intervals of `prices`; None: nobody asks

    @classmethod
    def of_policy(
        cls,
        policy: Policy,
        *,
        workload: Workload,
        concurrency: int,
        max_num_batched_tokens: int,
        num_speculative_tokens: int,
        confidence: NDArray[np.float32] | None,  # [rows, >= K]; read by `adaptive` alone
        lag: int,
        prices: StepPrices,
        planner_prices: StepPrices,
        half_widths: StepPrices | None = None,
    ) -> ReplayCase:
        """A policy where K drafts are configured. An oracle reads outcomes in place of confidences, and never late."""
        num_drafts = policy.num_drafts(num_speculative_tokens)
        if policy.kind == "oracle":
            confidence = (np.arange(num_drafts) < workload.accepted_len[:, None]).astype(np.float32)
        elif confidence is not None:
            confidence = np.ascontiguousarray(confidence[:, :num_drafts]) if policy.needs_confidence else None
        return cls(
            workload=workload,
            concurrency=concurrency,
            max_num_batched_tokens=max_num_batched_tokens,
            num_drafts=num_drafts,
            is_ema=policy.kind == "ema",
            confidence=confidence,
            lag=0 if policy.kind == "oracle" else lag,
            prices=prices,
            planner_prices=planner_prices,
            half_widths=half_widths,
        )

    @cached_property
    def survival(self) -> NDArray[np.float32]:  # [rows, num_drafts]
        if self.confidence is None:
            return np.ones((0, self.num_drafts), dtype=np.float32)
        scheduled = np.full(len(self.confidence), self.num_drafts)
        return survival_probability(self.confidence, scheduled)

    def closed_loop(self, order: NDArray[np.int64]) -> ClosedLoop:
        return ClosedLoop(
            prompt_len=self.workload.prompt_len.tolist(),
            output_len=self.workload.output_len.tolist(),
            order=order.tolist(),
            concurrency=self.concurrency,
            num_drafts=self.num_drafts,
            max_num_batched_tokens=self.max_num_batched_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """What one step ran, cost and yielded. The tuples are of its verifying requests, in order of admission."""

    requests: tuple[int, ...]
    admitted: tuple[int, ...]
    accepted: tuple[int, ...]  # of the admitted ones
    size: StepSize
    k: int  # drafts proposed per request, for the next step
    num_output_tokens: int
    num_verify_outputs: int  # of which from verifying requests
    cost_ms: float
    ci_ms: float  # half-width of the cost's interval; 0 where the case has none
    target_ms: float  # of the cost
    draft_ms: float  # of the cost, the drafter's pass over prompts included
    region: Region  # that the target's pass is charged by
    is_extrapolated: bool
    finished_tpot_ms: tuple[float | None, ...]  # per request finished; None where the output was one token

    @property
    def num_verifying(self) -> int:
        return len(self.requests)

    @property
    def draft_budget(self) -> int:
        """Admitted drafts."""
        return sum(self.admitted)

    @property
    def num_tokens(self) -> int:
        return self.size.num_non_draft_tokens + self.draft_budget

    @property
    def num_accepted(self) -> int:
        return sum(self.accepted)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTotals:
    """Sums over the steps of a replay. Counts, never rates: rates of different replays cannot be added."""

    num_steps: int
    num_verify_steps: int  # those with a verifying request in them; the others only prefill
    num_finished: int
    num_output_tokens: int
    num_verifying: int  # request-steps
    num_verify_outputs: int
    num_admitted: int
    num_accepted: int
    num_extrapolated: int  # steps
    time_ms: float
    ci_ms: float  # half-widths of the costs' 95% intervals, summed: as if all of them erred together
    captured_ms: float  # of the time the target's passes, by what they are charged by
    smooth_ms: float
    mixed_ms: float
    draft_ms: float  # and the drafter's
    tpot_ms_sum: float
    num_tpot: int


def replay(case: ReplayCase, order: NDArray[np.int64]) -> ReplayTotals:
    """The totals of `replay_steps`."""
    steps = list(replay_steps(case, case.closed_loop(order)))
    finished = [tpot_ms for step in steps for tpot_ms in step.finished_tpot_ms]
    timed = [tpot_ms for tpot_ms in finished if tpot_ms is not None]
    return ReplayTotals(
        num_steps=len(steps),
        num_verify_steps=sum(step.num_verifying > 0 for step in steps),
        num_finished=len(finished),
        num_output_tokens=sum(step.num_output_tokens for step in steps),
        num_verifying=sum(step.num_verifying for step in steps),
        num_verify_outputs=sum(step.num_verify_outputs for step in steps),
        num_admitted=sum(step.draft_budget for step in steps),
        num_accepted=sum(step.num_accepted for step in steps),
        num_extrapolated=sum(step.is_extrapolated for step in steps),
        time_ms=_sum_in_order([step.cost_ms for step in steps]),
        ci_ms=_sum_in_order([step.ci_ms for step in steps]),
        captured_ms=_sum_in_order([step.target_ms for step in steps if step.region == "captured"]),
        smooth_ms=_sum_in_order([step.target_ms for step in steps if step.region == "smooth"]),
        mixed_ms=_sum_in_order([step.target_ms for step in steps if step.region == "mixed"]),
        draft_ms=_sum_in_order([step.draft_ms for step in steps]),
        tpot_ms_sum=_sum_in_order(timed),
        num_tpot=len(timed),
    )


def replay_steps(case: ReplayCase, loop: ClosedLoop) -> Iterator[StepRecord]:
    """Run the closed `loop` until max(trace, 8 x concurrency) requests have finished.

    A verifying request yields min(min(accepted_len, admitted) + 1, what is left) tokens at its row of the trace; a
    request whose prompt completes yields its first token. Tokens arrive when their step ends.

    A step verifies, learns what was accepted, and drafts for the next: it pays for the drafts that it proposes, which
    the next step verifies. The drafter runs the same prompt tokens as the target, in the same step.
    """
    visited: dict[RunningRequest, list[int]] = {}  # rows of the trace, one per step since the request began to verify
    first_token_ms: dict[RunningRequest, float] = {}
    ema = EmaController.at_start(case.num_drafts) if case.is_ema else None
    k = case.num_drafts  # of the drafts at hand, per request
    last = num_to_finish(case.workload.num_requests, case.concurrency)
    now_ms, num_finished = 0.0, 0
    while num_finished < last:
        step = loop.next_step()
        for request in step.verifying:
            row = int(case.workload.first_row[request.request]) + request.emitted_len - 1
            visited.setdefault(request, []).append(row)
        admitted = _admit(case, step, k, [visited[request] for request in step.verifying])
        size = step.size
        accepted = [
            min(int(case.workload.accepted_len[visited[request][-1]]), request_admitted)
            for request, request_admitted in zip(step.verifying, admitted, strict=True)
        ]
        num_verify_outputs = 0
        for request, request_accepted in zip(step.verifying, accepted, strict=True):
            yielded = min(request_accepted + 1, request.output_len - request.emitted_len)
            request.emitted_len += yielded
            num_verify_outputs += yielded
        if ema is not None:
            ema = ema.after(num_accepted=sum(accepted), num_verified=sum(admitted))
            k = ema.k
        num_drafts, half_widths = sum(admitted), case.half_widths
        cost_ms = case.prices.step_ms(size, num_drafts=num_drafts, k=k)
        now_ms += cost_ms
        for request, chunk in step.prefilling:
            request.prefilled_len += chunk
        for request in step.completing:
            request.emitted_len = 1
            first_token_ms[request] = now_ms

        finished_tpot_ms = []
        for request in loop.running:
            if request.is_finished:
                visited.pop(request, None)
                elapsed_ms = now_ms - first_token_ms.pop(request)
                gaps = request.output_len - 1
                finished_tpot_ms.append(elapsed_ms / gaps if gaps else None)
        num_finished += len(finished_tpot_ms)
        yield StepRecord(
            requests=tuple(request.request for request in step.verifying),
            admitted=tuple(admitted),
            accepted=tuple(accepted),
            size=size,
            k=k,
            num_output_tokens=num_verify_outputs + len(step.completing),
            num_verify_outputs=num_verify_outputs,
            cost_ms=cost_ms,
            ci_ms=0.0 if half_widths is None else half_widths.step_ms(size, num_drafts=num_drafts, k=k),
            target_ms=case.prices.target_ms(size, num_drafts),
            draft_ms=case.prices.draft_total_ms(size, k),
            region=case.prices.region_of(size, num_drafts),
            is_extrapolated=case.prices.is_extrapolated(size, num_drafts),
            finished_tpot_ms=tuple(finished_tpot_ms),
        )


def _admit(case: ReplayCase, step: ScheduledStep, k: int, visited: list[list[int]]) -> list[int]:
    """Drafts verified per verifying request: all of them, or the best by live survival under a lagged budget."""
    num_verifying = len(step.verifying)
    if case.confidence is None:
        return [k] * num_verifying
    scheduled = np.full(num_verifying, k)
    live = np.array([rows[-1] for rows in visited], dtype=np.int64)
    lagged = np.ones((num_verifying, k), dtype=np.float32)  # 1.0 where a request had none then
    for r, rows in enumerate(visited):
        if len(rows) > case.lag:
            lagged[r] = case.confidence[rows[-1 - case.lag]]
    prices, size = case.planner_prices, step.size
    choice = choose_draft_budget(
        lagged,
        scheduled,
        num_sampling=size.num_sampling,
        num_non_draft_tokens=size.num_non_draft_tokens,
        draft_ms=prices.drafting_ms(size, k),
        verify_ms=prices.target_row(size, num_verifying * k),
        overhead_ms=prices.fixed_ms(size),
    )
    survival = survival_probability(case.confidence[live], scheduled)
    return [int(admitted) for admitted in admit_by_survival(survival, scheduled, choice.draft_budget)]


def _sum_in_order(values: list[float]) -> float:
    """Left to right, as the compiled replay adds; sum() may compensate."""
    total = 0.0
    for value in values:
        total += value
    return total
