"""Policies compared on one trace, under one set of costs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import repeat
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from specplan.errors import ConfigError, CoverageError
from specplan.files.tables import CostTables
from specplan.files.trace import Trace
from specplan.planning import CalibrationReport, Policy, cross_fit_confidence, parse_policy
from specplan.planning.prices import DrafterInput, StepPrices, VerifyPrices
from specplan.simulation.bindings import bind
from specplan.simulation.comparison import CostErrors, PolicyReplays, policy_result, recommend
from specplan.simulation.replay import ReplayCase, ReplayTotals, Workload
from specplan.simulation.result import CalibrationMode, SimulationResult, TablesUsed

__all__ = ["FEWEST_REQUESTS", "simulate"]

_LAGS = (0, 1, 2)
FEWEST_REQUESTS = 20  # below this a bootstrap knows too little of the spread between requests to call anything
_NONE = Policy(kind="none")


def simulate(
    trace: Trace,
    *,
    tables: CostTables,
    planner_tables: CostTables | None = None,
    policies: Sequence[Policy | str],
    concurrencies: Sequence[int],
    k: int | None = None,
    lag: int = 1,
    calibration: CalibrationMode = "cross-fit",
    max_num_batched_tokens: int | None = None,
    drafter_input: DrafterInput = "last",
    strict: bool = False,
    seed: int = 0,
    num_resamples: int = 200,
    on_progress: Callable[[float, str], None] | None = None,
) -> SimulationResult:
    """Replay a dense trace in a closed loop at each concurrency, under each policy and under `none`.

    Args:
        tables: What a step is charged.
        planner_tables: What a budget believes a step costs; `tables` where not given.
        k: Drafts per request that `adaptive` and `oracle` propose, and `ema` at most; the trace's where not given.
        lag: How many steps old the confidences are that set the budget. Ranking reads the fresh ones.
        calibration: "cross-fit" plans with calibrated confidences, "off" with the recorded ones.
        drafter_input: What the drafter's first pass takes: "last", or all tokens of the "step"; see StepPrices.
        max_num_batched_tokens: What a step may hold; as many as the tables cover where not given.
        strict: Refuse costs of another pair than the trace's, and planner's tables of something else than is charged.
            Otherwise the result tells of them.
        num_resamples: Draws of the trace's requests behind each interval; 0 leaves the intervals out. Calibration is
            not fitted anew in each.
        on_progress: Told the fraction done, and what is at hand.
    """
    compared = _policies(policies)
    num_drafts = trace.num_speculative_tokens if k is None else k
    levels = sorted({int(concurrency) for concurrency in concurrencies})
    _check(trace, compared, levels, num_drafts, lag, calibration, num_resamples)
    _require_chargeable(tables)
    planner = tables if planner_tables is None else planner_tables
    bindings = bind(trace, tables, planner)
    if strict:
        bindings.require()
    signals = _signals(trace, compared, num_drafts, calibration)
    workload = Workload.from_trace(trace)
    max_tokens = _step_tokens(max_num_batched_tokens, tables, planner)

    def verify_prices(of: CostTables) -> VerifyPrices:
        return VerifyPrices.from_tables(
            of, max_num_reqs=levels[-1], max_num_tokens=max_tokens, num_speculative_tokens=num_drafts
        )

    charged = verify_prices(tables)
    believed = charged if planner is tables else verify_prices(planner)

    def step_prices(verify: VerifyPrices, of: CostTables, policy: Policy) -> StepPrices:
        return StepPrices.from_tables(
            verify, of, policy=policy, num_speculative_tokens=num_drafts, drafter_input=drafter_input
        )

    def case(policy: Policy, concurrency: int) -> ReplayCase:
        return ReplayCase.of_policy(
            policy,
            workload=workload,
            concurrency=concurrency,
            max_num_batched_tokens=max_tokens,
            num_speculative_tokens=num_drafts,
            confidence=signals.confidence,
            lag=lag,
            prices=step_prices(charged, tables, policy),
            half_widths=StepPrices.half_widths(
                charged, tables, policy=policy, num_speculative_tokens=num_drafts, drafter_input=drafter_input
            ),
            planner_prices=step_prices(believed, planner, policy),
        )

    cases = {(policy, concurrency): case(policy, concurrency) for concurrency in levels for policy in compared}
    orders = _orders(trace.num_requests, num_resamples, seed)
    replays = {
        (policy, concurrency): PolicyReplays(
            policy=policy,
            concurrency=concurrency,
            totals=totals,
            resampled=resampled,
            errors=CostErrors.of_tables(tables, policy),
        )
        for (policy, concurrency), (totals, *resampled) in _replay_all(cases, orders, on_progress).items()
    }
    used = _tables_used(tables)
    deployable = [policy for policy in compared if _is_deployable(policy, lag, trace)]
    return SimulationResult(
        tables=used,
        planner_tables=used if planner is tables else _tables_used(planner),
        mismatches=bindings.mismatches,
        planner_mismatches=bindings.planner_mismatches,
        unknown=bindings.unknown,
        trace_source=trace.metadata.source,
        target=trace.metadata.target,
        draft=trace.metadata.draft,
        sampling=trace.metadata.sampling,
        is_approximate=trace.metadata.sampling == "sampled",
        num_requests=trace.num_requests,
        num_speculative_tokens=num_drafts,
        lag=lag,
        drafter_input=drafter_input,
        max_num_batched_tokens=max_tokens,
        seed=seed,
        num_resamples=len(orders) - 1,
        calibration=None if signals.confidence is None else calibration,
        calibration_report=signals.report,
        policies=[
            policy_result(replays[policy, concurrency], replays[_NONE, concurrency], lag=lag)
            for concurrency in levels
            for policy in compared
        ],
        recommendations=[recommend([replays[policy, concurrency] for policy in deployable]) for concurrency in levels],
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Signals:
    """What budgets read, per policy kind."""

    confidence: NDArray[np.float32] | None  # [rows, k]; None where no policy needs it
    report: CalibrationReport | None


def _signals(trace: Trace, policies: Sequence[Policy], k: int, calibration: CalibrationMode) -> _Signals:
    if trace.confidence is None or not any(policy.needs_confidence for policy in policies):
        return _Signals(confidence=None, report=None)
    raw = np.ascontiguousarray(trace.confidence[:, :k])
    if calibration == "off":
        return _Signals(confidence=raw, report=None)
    fitted = cross_fit_confidence(
        raw, np.minimum(trace.accepted_len, k), np.minimum(trace.verified_len, k), trace.request
    )
    return _Signals(confidence=fitted.confidence, report=fitted.report)


def _policies(policies: Sequence[Policy | str]) -> list[Policy]:
    """As asked for, each once, and `none` first where it was not asked for: it is what gains are measured against."""
    parsed = [parse_policy(policy) if isinstance(policy, str) else policy for policy in policies]
    return list(dict.fromkeys(parsed if _NONE in parsed else [_NONE, *parsed]))


def _step_tokens(asked: int | None, tables: CostTables, planner: CostTables) -> int:
    covered = min(tables.max_step_tokens, planner.max_step_tokens)
    if asked is None:
        return covered
    if asked < 1:
        raise ConfigError(f"max_num_batched_tokens is {asked}, expected 1 or more", "leave it out, or pass 1 or more")
    if asked > covered:
        raise CoverageError(
            f"max_num_batched_tokens is {asked}, and the cost tables cover steps of up to {covered} tokens",
            f"pass {covered} or less, or profile larger steps and rebuild the tables",
        )
    return asked


def _require_chargeable(tables: CostTables) -> None:
    if tables.semantics == "exact":
        raise ConfigError(
            "exact tables hold no cost for a size that was not measured, and cannot charge every step",
            "charge by padded tables (--tables), and plan by these (--planner-tables)",
        )


def _tables_used(tables: CostTables) -> TablesUsed:
    return TablesUsed(
        digest=tables.digest(),
        source=tables.source,
        device=None if tables.environment is None else tables.environment.device,
        target=None if tables.target is None else tables.target.name,
        draft=None if tables.draft is None else tables.draft.name,
        warnings=[finding.message for finding in tables.findings if finding.severity == "warning"],
        held_out_error=tables.error.known_to("captured"),
        is_draft_free=not tables.draft_table_ms.any(),
        is_incomplete=any(finding.code == "incomplete-profile" for finding in tables.findings),
        semantics=tables.semantics,
    )


def _orders(num_requests: int, num_resamples: int, seed: int) -> list[NDArray[np.int64]]:
    """The file's order, and draws of as many requests with replacement; none where there are too few to draw from."""
    if num_requests < FEWEST_REQUESTS:
        num_resamples = 0
    draws = np.random.default_rng(seed).integers(0, num_requests, size=(num_resamples, num_requests))
    return [np.arange(num_requests, dtype=np.int64), *draws]


def _replay_all(
    cases: dict[tuple[Policy, int], ReplayCase],
    orders: Sequence[NDArray[np.int64]],
    on_progress: Callable[[float, str], None] | None,
) -> dict[tuple[Policy, int], list[ReplayTotals]]:
    """Of each case its totals in every order."""
    from specplan.simulation.replay_fast import replay_fast

    for case in cases.values():
        case.closed_loop(orders[0])  # refuses a step too small for its requests, before anything is replayed
    replays = {}
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for done, ((policy, concurrency), case) in enumerate(cases.items()):
            if on_progress is not None:
                on_progress(done / len(cases), f"{policy.name} at concurrency {concurrency}")
            totals = replay_fast(case, orders[0])
            resampled = pool.map(replay_fast, repeat(replace(case, half_widths=None)), orders[1:])
            replays[policy, concurrency] = [totals, *resampled]
    if on_progress is not None:
        on_progress(1.0, "done")
    return replays


def _is_deployable(policy: Policy, lag: int, trace: Trace) -> bool:
    """Whether a server can run the policy without changing what it samples."""
    losslessness = policy.losslessness(lag)
    return losslessness == "lossless" or (losslessness == "greedy-only" and trace.metadata.sampling == "greedy")


def _check(
    trace: Trace,
    policies: Sequence[Policy],
    concurrencies: Sequence[int],
    k: int,
    lag: int,
    calibration: str,
    num_resamples: int,
) -> None:
    if trace.metadata.kind != "dense":
        raise ConfigError(
            f"the trace is {trace.metadata.kind}, expected a dense one: replay needs a draft at every position",
            "record a dense trace with `specplan record`",
        )
    if not 1 <= k <= trace.num_speculative_tokens:
        raise ConfigError(
            f"k is {k}, expected 1 to the trace's K = {trace.num_speculative_tokens}",
            f"pass -k 1 to -k {trace.num_speculative_tokens}, or record a trace with more drafts per position",
        )
    for policy in policies:
        if policy.num_drafts(k) > k:
            raise ConfigError(
                f"policy {policy.name} drafts more than K = {k}",
                f"use fixed:{k} or less, or a trace recorded with more drafts per position",
            )
        if policy.needs_confidence and trace.confidence is None:
            raise ConfigError(
                f"policy {policy.name} needs confidences, and the trace holds outcomes only",
                "use none, fixed:K, ema or oracle, or record a trace with confidences: `specplan record`",
            )
    if not concurrencies or concurrencies[0] < 1:
        found = concurrencies[0] if concurrencies else "empty"
        raise ConfigError(f"concurrency is {found}, expected 1 or more", "pass --concurrency 1,4,16,64")
    if calibration not in get_args(CalibrationMode):
        raise ConfigError(f"calibration is {calibration!r}, expected cross-fit or off", "pass --calibration cross-fit")
    if lag not in _LAGS:
        raise ConfigError(f"lag is {lag}, expected 0, 1 or 2", "pass --lag 1, which is what vLLM runs")
    if num_resamples < 0:
        raise ConfigError(f"num_resamples is {num_resamples}, expected 0 or more", "pass 100, or 0 for no intervals")
