from __future__ import annotations

from dataclasses import replace

import pytest

from specplan.planning import parse_policy
from specplan.simulation.comparison import CostErrors, PolicyReplays, gain_over, policy_result, recommend
from specplan.simulation.replay import ReplayTotals
from specplan.simulation.result import Gain

TOTALS = ReplayTotals(
    num_steps=10,
    num_verify_steps=8,
    num_finished=4,
    num_output_tokens=100,
    num_verifying=40,
    num_verify_outputs=90,
    num_admitted=80,
    num_accepted=60,
    num_extrapolated=1,
    time_ms=1000.0,
    ci_ms=0.0,
    captured_ms=1000.0,
    smooth_ms=0.0,
    mixed_ms=0.0,
    draft_ms=0.0,
    tpot_ms_sum=12.0,
    num_tpot=4,
)


def replays(
    policy: str, speeds: list[float], *, speed: float | None = None, error: float = 0.0, interval: float = 0.0
) -> PolicyReplays:
    """Tokens per second of the resamples; of the trace itself their mean."""

    def at(tokens_per_s: float) -> ReplayTotals:
        time_ms = TOTALS.num_output_tokens * 1000 / tokens_per_s
        return replace(TOTALS, time_ms=time_ms, captured_ms=time_ms, ci_ms=interval * time_ms)

    mean = sum(speeds) / len(speeds) if speed is None else speed
    return PolicyReplays(
        policy=parse_policy(policy),
        concurrency=8,
        totals=at(mean),
        resampled=[at(speed) for speed in speeds],
        errors=CostErrors(captured=error),
    )


def test_gains_are_paired() -> None:
    """Speeds that vary twofold from draw to draw, and a gain of ten percent in every one of them."""
    base = replays("none", [100, 150, 200])
    gain = gain_over(replays("fixed:3", [110, 165, 220]), base)
    assert gain.estimate == pytest.approx(0.1)
    assert gain.interval == pytest.approx((0.1, 0.1))
    assert gain.verdict == "better"


def test_the_error_of_the_costs_widens_the_interval() -> None:
    base = replays("none", [100, 150, 200])
    gain = gain_over(replays("fixed:3", [110, 165, 220], error=0.2), base)
    assert gain.interval == pytest.approx((1.1 * 0.8 - 1, 1.1 * 1.2 - 1))
    assert gain.verdict == "too close to call"
    hopeless = gain_over(replays("fixed:3", [110, 165, 220], error=2.4), base).interval
    assert hopeless == pytest.approx((-1.0, 1.1 * 3.4 - 1))  # no speed is below 0


def test_an_error_counts_as_the_time_goes() -> None:
    """Half of the time captured at 4%, a quarter smooth at 20%, an eighth in drafts of which nobody knows."""
    totals = replace(TOTALS, captured_ms=500.0, smooth_ms=250.0, draft_ms=125.0)
    policy = PolicyReplays(
        policy=parse_policy("fixed:3"),
        concurrency=8,
        totals=totals,
        resampled=[],
        errors=CostErrors(captured=0.04, smooth=0.2, mixed=9.0),
    )
    assert policy.cost_error == pytest.approx(0.5 * 0.04 + 0.25 * 0.2)
    assert policy.unknown_share == 0.125


@pytest.mark.parametrize(("error", "interval", "known_to"), [(0.2, 0.05, 0.2), (0.05, 0.2, 0.2), (0.0, 0.0, 0.0)])
def test_a_replay_is_known_no_better_than_its_cells(error: float, interval: float, known_to: float) -> None:
    """Whichever of the two policies is the less known decides."""
    base, known = replays("none", [100.0] * 3), replays("fixed:3", [110.0] * 3, error=error, interval=interval)
    assert known.cost_error == known_to
    for gain, ratio in ((gain_over(known, base), 1.1), (gain_over(base, known), 1 / 1.1)):
        assert gain.interval == pytest.approx((ratio * (1 - known_to) - 1, ratio * (1 + known_to) - 1))


def test_the_interval_is_the_middle_95_percent() -> None:
    base = replays("none", [100.0] * 101)
    low, high = gain_over(replays("fixed:3", [float(speed) for speed in range(50, 151)]), base).interval or (0, 0)
    assert (low, high) == pytest.approx((-0.475, 0.475))


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        ((0.01, 0.2), "better"),
        ((-0.2, -0.01), "worse"),
        ((-0.1, 0.1), "too close to call"),
        ((0.0, 0.1), "too close to call"),
        (None, "undecided"),
    ],
)
def test_verdicts(interval: tuple[float, float] | None, verdict: str) -> None:
    assert Gain(estimate=0.05, interval=interval).verdict == verdict


def test_figures_of_a_policy() -> None:
    result = policy_result(replays("adaptive", [100, 100]), replays("none", [50, 50]), lag=0)
    assert (result.policy, result.concurrency, result.losslessness) == ("adaptive", 8, "greedy-only")
    assert result.output_tokens_per_s == pytest.approx(100)
    assert result.tpot_ms == 3
    assert result.mean_accepted_len_plus_1 == 2.25
    assert result.mean_budget == 10  # over the eight steps that verified anything
    assert result.wasted_share == 0.25
    assert result.extrapolated_share == 0.1
    assert (result.num_steps, result.num_requests) == (10, 4)
    assert result.gain_over_none == Gain(estimate=1.0, interval=(1.0, 1.0))
    assert result.verdict == "better"


def test_figures_taken_over_nothing_are_null() -> None:
    nothing = replace(
        TOTALS, num_verify_steps=0, num_verifying=0, num_verify_outputs=0, num_admitted=0, num_accepted=0, num_tpot=0
    )
    base = PolicyReplays(policy=parse_policy("none"), concurrency=1, totals=nothing, resampled=[], errors=CostErrors())
    result = policy_result(base, base, lag=1)
    assert (result.tpot_ms, result.mean_accepted_len_plus_1, result.wasted_share) == (None, None, None)
    assert result.mean_budget is None
    assert result.gain_over_none == Gain(estimate=0.0, interval=None)
    assert result.verdict is None


def test_a_clear_lead_is_recommended() -> None:
    advice = recommend([replays("none", [100, 101]), replays("fixed:3", [150, 151]), replays("adaptive", [160, 162])])
    assert (advice.policy, advice.fastest, advice.runner_up, advice.tied_with) == (
        "adaptive",
        "adaptive",
        "fixed:3",
        [],
    )
    assert advice.lead_over_runner_up is not None
    assert advice.lead_over_runner_up.verdict == "better"


def test_a_lead_within_noise_gives_way_to_the_simpler() -> None:
    candidates = [replays("adaptive", [149, 156]), replays("fixed:3", [150, 151]), replays("none", [100, 101])]
    advice = recommend(candidates)
    assert (advice.policy, advice.fastest, advice.tied_with) == ("fixed:3", "adaptive", ["fixed:3"])


def test_ema_is_simpler_than_adaptive_and_less_simple_than_fixed() -> None:
    candidates = [replays("adaptive", [149, 156]), replays("ema", [150, 151]), replays("fixed:3", [140, 141])]
    assert recommend(candidates).policy == "ema"
    candidates[2] = replays("fixed:3", [150, 152])
    assert recommend(candidates).policy == "fixed:3"


def test_no_speculation_is_the_simplest_of_all() -> None:
    candidates = [replays("fixed:7", [99, 104]), replays("fixed:1", [100, 102]), replays("none", [100, 100])]
    advice = recommend(candidates)
    assert (advice.policy, advice.fastest, advice.tied_with) == ("none", "fixed:7", ["none", "fixed:1"])


def test_the_faster_of_equally_simple_policies_is_recommended() -> None:
    candidates = [replays("fixed:1", [100, 104]), replays("fixed:3", [101, 105]), replays("adaptive", [100, 107])]
    assert recommend(candidates).policy == "fixed:3"


def test_a_policy_alone_is_recommended() -> None:
    advice = recommend([replays("none", [100, 101])])
    assert (advice.policy, advice.runner_up, advice.lead_over_runner_up) == ("none", None, None)
