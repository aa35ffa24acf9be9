from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from specplan.costs import build_cost_tables
from specplan.errors import ConfigError, CoverageError
from specplan.files import CostTables, Trace, TraceMetadata
from specplan.planning import parse_policy
from specplan.simulation import SimulationResult, simulate
from specplan.simulation.result import PolicyResult

K = 4
ALL = ["none", "fixed:1", "fixed:4", "adaptive", "oracle"]


def make_trace(
    *, num_requests: int = 24, output_len: int = 24, starts_at: int = 0, outcome_only: bool = False, seed: int = 0
) -> Trace:
    """Confidences that say half the log-odds of what happens: worth calibrating."""
    rng = np.random.default_rng(seed)
    positions = output_len - starts_at
    log_odds = rng.normal(0.5, 2, (num_requests * positions, K))
    accepted = rng.random(log_odds.shape) < 1 / (1 + np.exp(-log_odds))
    return Trace(
        metadata=TraceMetadata(
            kind="dense",
            sampling="greedy",
            num_speculative_tokens=K,
            target="tiny",
            draft="tinier",
            tokenizer="tiny",
            source="made up",
        ),
        request=np.repeat(np.arange(num_requests), positions).astype(np.int32),
        position=np.tile(np.arange(starts_at, output_len), num_requests).astype(np.int32),
        confidence=None if outcome_only else (1 / (1 + np.exp(-log_odds / 2))).astype(np.float32),
        accepted_len=np.cumprod(accepted, axis=1).sum(axis=1).astype(np.int32),
        verified_len=np.full(num_requests * positions, K, dtype=np.int32),
        arrival_s=np.zeros(num_requests),
        prompt_len=np.full(num_requests, 6, dtype=np.int32),
        output_len=np.full(num_requests, output_len, dtype=np.int32),
    )


def make_tables(slope_ms: float = 0.05, *, draft_ms: float = 0.5) -> CostTables:
    sizes = (1, 2, 4, 8, 16, 32, 64, 128)
    return build_cost_tables(
        [(1, draft_ms), (16, 2 * draft_ms)],
        [(size, 4 + slope_ms * size) for size in sizes],
        max_num_reqs=16,
        max_num_tokens=160,
        capture_limit=64,
    )


def run(trace: Trace | None = None, **changes: Any) -> SimulationResult:
    arguments: dict[str, Any] = {
        "tables": make_tables(),
        "policies": ALL,
        "concurrencies": [1, 8],
        "num_resamples": 10,
    }
    return simulate(make_trace() if trace is None else trace, **(arguments | changes))


def pick(result: SimulationResult, policy: str, concurrency: int) -> PolicyResult:
    return next(p for p in result.policies if (p.policy, p.concurrency) == (policy, concurrency))


def test_the_host_is_paid_each_step_and_the_drafters_prefill_where_one_is_loaded() -> None:
    """At concurrency 1: 24 requests of 24 output tokens, each with one prefill of 6 prompt tokens."""
    prefill_ms = np.zeros(161)
    prefill_ms[6] = 3.0
    host = msgspec.structs.replace(make_tables(), overhead_ms=np.array([9.0, 0.5, *[9.0] * 15]))
    both = msgspec.structs.replace(host, draft_prefill_ms=prefill_ms)
    for policy, prefills in (("none", 0), ("fixed:1", 24), ("fixed:0", 24), ("ema", 24)):
        rows = [
            pick(run(tables=tables, policies=[policy], concurrencies=[1], num_resamples=0), policy, 1)
            for tables in (make_tables(), host, both)
        ]
        bare_ms, host_ms, both_ms = (24 * 24 / row.output_tokens_per_s * 1e3 for row in rows)
        assert host_ms - bare_ms == pytest.approx(0.5 * rows[0].num_steps)
        assert both_ms - host_ms == pytest.approx(3.0 * prefills)


def test_every_policy_at_every_concurrency() -> None:
    result = run()
    assert [(p.concurrency, p.policy) for p in result.policies] == [(c, p) for c in (1, 8) for p in ALL]
    assert [advice.concurrency for advice in result.recommendations] == [1, 8]
    assert all(p.num_requests >= 16 for p in result.policies)
    assert {p.policy: p.losslessness for p in result.policies} == dict.fromkeys(ALL, "lossless") | {
        "oracle": "anticipating"
    }


def test_the_oracle_wastes_nothing_and_is_never_recommended() -> None:
    result = run(policies=["oracle"], tables=make_tables(draft_ms=0.01))
    assert pick(result, "oracle", 8).gain_over_none.estimate > 0.5
    assert pick(result, "oracle", 8).wasted_share == 0
    assert {advice.policy for advice in result.recommendations} == {"none"}


def test_none_is_the_baseline_even_where_not_asked_for() -> None:
    result = run(policies=["fixed:1"])
    assert [p.policy for p in result.policies] == ["none", "fixed:1"] * 2
    baseline = pick(result, "none", 1)
    assert (baseline.gain_over_none.estimate, baseline.verdict, baseline.wasted_share) == (0, None, None)
    assert baseline.mean_accepted_len_plus_1 == 1


def test_policies_and_concurrencies_count_once() -> None:
    result = run(policies=["none", "fixed:1", parse_policy("fixed:1")], concurrencies=[8, 1, 8])
    assert [(p.concurrency, p.policy) for p in result.policies] == [
        (1, "none"), (1, "fixed:1"), (8, "none"), (8, "fixed:1"),
    ]  # fmt: skip


def test_the_same_inputs_give_the_same_bytes() -> None:
    first, second = run().to_json(), run().to_json()
    assert first == second
    assert msgspec.json.decode(first, type=SimulationResult).to_json() == first
    assert run(seed=1).to_json() != first


def test_the_seed_moves_intervals_and_no_figure() -> None:
    first, second = run(seed=0), run(seed=1)
    for a, b in zip(first.policies, second.policies, strict=True):
        assert a.output_tokens_per_s == b.output_tokens_per_s
    assert pick(first, "fixed:4", 1).gain_over_none.interval != pick(second, "fixed:4", 1).gain_over_none.interval


def test_replay_begins_at_position_one_with_or_without_a_row_before_it() -> None:
    with_first = make_trace()
    kept = with_first.position > 0
    assert with_first.confidence is not None
    without = replace(
        with_first,
        confidence=with_first.confidence[kept],
        **{name: getattr(with_first, name)[kept] for name in ("request", "position", "accepted_len", "verified_len")},
    )
    arguments: dict[str, Any] = {"calibration": "off"}  # a fit sees every row
    assert run(with_first, **arguments).policies == run(without, **arguments).policies


def test_calibration_is_used_reported_and_can_be_turned_off() -> None:
    calibrated, raw = run(), run(calibration="off")
    assert calibrated.calibration == "cross-fit"
    assert calibrated.calibration_report is not None
    assert calibrated.calibration_report.after.log_loss < calibrated.calibration_report.before.log_loss
    assert (raw.calibration, raw.calibration_report) == ("off", None)
    assert pick(calibrated, "adaptive", 8) != pick(raw, "adaptive", 8)
    assert pick(calibrated, "oracle", 8) == pick(raw, "oracle", 8)
    assert run(policies=["fixed:1", "oracle"]).calibration is None


def test_planner_tables_decide() -> None:
    cheap, dear = make_tables(0.001), make_tables(3.0)
    shy, eager = run(tables=cheap, planner_tables=dear), run(tables=cheap)
    assert pick(shy, "adaptive", 8).mean_budget < pick(eager, "adaptive", 8).mean_budget
    assert pick(shy, "fixed:4", 8).output_tokens_per_s == pick(eager, "fixed:4", 8).output_tokens_per_s


def test_k_cuts_the_drafts() -> None:
    result = run(k=2, policies=["fixed:2", "adaptive"])
    assert result.num_speculative_tokens == 2
    assert pick(result, "adaptive", 1).mean_budget <= 2
    accepted = pick(result, "fixed:2", 1).mean_accepted_len_plus_1
    assert accepted is not None
    assert accepted <= 3
    assert pick(run(policies=["fixed:2"]), "fixed:2", 1) == pick(result, "fixed:2", 1)


def test_extrapolated_costs_are_counted() -> None:
    tables = build_cost_tables(
        [(8, 0.5)], [(1, 4), (8, 4.1), (16, 5)], max_num_reqs=8, max_num_tokens=64, capture_limit=16
    )
    result = run(tables=tables, policies=["none", "fixed:4"])
    assert pick(result, "none", 1).extrapolated_share == 0
    assert pick(result, "fixed:4", 8).extrapolated_share > 0.9


def test_one_request_gives_figures_and_no_verdict() -> None:
    result = run(make_trace(num_requests=1))
    assert all(p.gain_over_none.interval is None for p in result.policies)
    assert {p.verdict for p in result.policies if p.policy != "none"} == {"undecided"}
    assert {advice.policy for advice in result.recommendations} == {"none"}


def sampled(trace: Trace) -> Trace:
    return replace(trace, metadata=msgspec.structs.replace(trace.metadata, sampling="sampled"))


def test_a_sampled_trace_is_approximate() -> None:
    assert not run(policies=["none"]).is_approximate
    assert run(sampled(make_trace()), policies=["none"]).is_approximate


def test_ema_is_deployable_and_lies_between_its_bounds() -> None:
    result = run(policies=["fixed:1", "fixed:4", "ema"])
    ema, fewest, most = (pick(result, policy, 1) for policy in ("ema", "fixed:1", "fixed:4"))
    assert ema.losslessness == "lossless"
    assert fewest.mean_budget < ema.mean_budget < most.mean_budget  # type: ignore[operator]
    assert fewest.wasted_share < ema.wasted_share < most.wasted_share  # type: ignore[operator]
    assert pick(run(policies=["ema"], k=1), "ema", 8) == msgspec.structs.replace(
        pick(result, "fixed:1", 8), policy="ema"
    )


def test_ema_pays_for_the_k_it_drafts() -> None:
    """Where no draft is ever accepted: one step at each k from K down, then all at the fewest."""
    trace = make_trace()
    tables = msgspec.structs.replace(
        make_tables(0.0),
        draft_ks=[1, 4],
        draft_table_ms=np.repeat([[1.0], [4.0]], 17, axis=1),
        draft_source=np.zeros((2, 17), dtype=np.uint8),
        draft_ci_ms=None,
    )
    nothing = replace(trace, accepted_len=np.zeros_like(trace.accepted_len))
    result = run(nothing, tables=tables, policies=["fixed:1", "fixed:4", "ema"], num_resamples=0)
    ema, fewest, most = (pick(result, policy, 1) for policy in ("ema", "fixed:1", "fixed:4"))
    assert ema.num_steps == fewest.num_steps == most.num_steps
    spent = {p.policy: p.num_requests * 24 / p.output_tokens_per_s * 1e3 for p in (ema, fewest, most)}
    assert spent["fixed:1"] == pytest.approx(5.0 * fewest.num_steps)
    assert spent["fixed:4"] == pytest.approx(8.0 * most.num_steps)
    # The prompt's step drafts 4; the next three verify 4, 3 and 2, and draft 3, 2 and 1.
    assert spent["ema"] == pytest.approx(spent["fixed:1"] + 3 + 2 + 1)


def test_what_may_bias_sampled_output_is_not_recommended_for_it() -> None:
    arguments: dict[str, Any] = {"policies": ["adaptive"], "lag": 0, "tables": make_tables(draft_ms=0.01)}
    assert {advice.policy for advice in run(**arguments).recommendations} == {"adaptive"}
    assert {advice.policy for advice in run(sampled(make_trace()), **arguments).recommendations} == {"none"}


def test_progress_is_told() -> None:
    told: list[tuple[float, str]] = []
    run(policies=["none", "fixed:1"], on_progress=lambda fraction, doing: told.append((fraction, doing)))
    assert [fraction for fraction, _ in told] == [0, 0.25, 0.5, 0.75, 1]
    assert told[1][1] == "fixed:1 at concurrency 1"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k": 5}, "k is 5, expected 1 to the trace's K = 4"),
        ({"k": 0}, "k is 0, expected 1 to the trace's K = 4"),
        ({"policies": ["fixed:5"]}, "policy fixed:5 drafts more than K = 4"),
        ({"policies": ["fixed:3"], "k": 2}, "policy fixed:3 drafts more than K = 2"),
        ({"policies": ["greedy"]}, "unknown policy 'greedy'"),
        ({"concurrencies": [4, 0]}, "concurrency is 0, expected 1 or more"),
        ({"concurrencies": []}, "concurrency is empty"),
        ({"lag": 3}, "lag is 3, expected 0, 1 or 2"),
        ({"num_resamples": -1}, "num_resamples is -1"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens is 0"),
        ({"max_num_batched_tokens": 30}, "8 requests with 4 drafts each reserve 40 tokens a step"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        run(**changes)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"concurrencies": [17]}, "the cost tables reach 16 requests"),
        ({"max_num_batched_tokens": 161}, "the cost tables cover steps of up to 160 tokens"),
    ],
)
def test_what_was_not_measured_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CoverageError, match=message):
        run(**changes)


def test_outcomes_without_confidences_replay_everything_but_adaptive() -> None:
    trace = make_trace(outcome_only=True)
    with pytest.raises(ConfigError, match="policy adaptive needs confidences, and the trace holds outcomes only"):
        run(trace)
    policies = ["fixed:1", "ema", "oracle"]
    assert run(trace, policies=policies).policies == run(make_trace(), policies=policies).policies


def test_a_logged_trace_is_refused() -> None:
    trace = make_trace()
    logged = replace(trace, metadata=msgspec.structs.replace(trace.metadata, kind="logged"))
    with pytest.raises(ConfigError, match="the trace is logged, expected a dense one"):
        run(logged)


def test_exact_tables_plan_and_do_not_charge() -> None:
    """What is measured at 16 requests alone prices nothing at 8: every draft is verified there."""
    exact = build_cost_tables(
        [(1, 0.5), (16, 1.0)], [(size, 4 + 0.05 * size) for size in (16, 32, 64, 128)],
        max_num_reqs=16, max_num_tokens=160, capture_limit=64, semantics="exact",
    )  # fmt: skip
    with pytest.raises(ConfigError, match="exact tables hold no cost") as caught:
        run(tables=exact)
    assert "--planner-tables" in caught.value.hint
    result = run(planner_tables=exact, policies=["fixed:4", "adaptive"], concurrencies=[8, 16])
    assert pick(result, "adaptive", 8).mean_budget == pick(result, "fixed:4", 8).mean_budget
    trimmed, full = pick(result, "adaptive", 16).mean_budget, pick(result, "fixed:4", 16).mean_budget
    assert trimmed is not None
    assert full is not None
    assert trimmed < full
