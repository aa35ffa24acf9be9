"""From replays to figures, intervals, verdicts and a recommendation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specplan.planning import Policy
from specplan.simulation.replay import ReplayTotals
from specplan.simulation.result import Gain, PolicyResult, Recommendation

__all__ = ["PolicyReplays", "gain_over", "policy_result", "recommend"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PolicyReplays:
    """One policy at one concurrency: the trace as it is, and its resamples, which every policy shares."""

    policy: Policy
    concurrency: int
    totals: ReplayTotals
    resampled: Sequence[ReplayTotals]  # [num_resamples]
    held_out_error: float = 0.0  # of the tables that it was charged by, where steps are as this policy's

    @property
    def tokens_per_s(self) -> float:
        return tokens_per_s(self.totals)

    @property
    def cost_error(self) -> float:
        """How well the time that the replay took is known, as a share of it.

        Cells of the tables are off by the held-out error on average, and by the intervals of the medians that they rest
        on: no replay is known to better than the larger of the two.
        """
        return max(self.held_out_error, self.totals.ci_ms / self.totals.time_ms)


def tokens_per_s(totals: ReplayTotals) -> float:
    return totals.num_output_tokens / totals.time_ms * 1e3


def gain_over(policy: PolicyReplays, other: PolicyReplays) -> Gain:
    """Paired: both policies of a ratio replay the same draw of requests.

    The two run at different cells of the tables: their ratio is known no better than the less known of them.
    """
    estimate = policy.tokens_per_s / other.tokens_per_s - 1
    if not policy.resampled:
        return Gain(estimate=estimate, interval=None)
    cost_error = max(policy.cost_error, other.cost_error)
    ratios = [tokens_per_s(a) / tokens_per_s(b) for a, b in zip(policy.resampled, other.resampled, strict=True)]
    low, high = np.quantile(np.array(ratios), [0.025, 0.975])
    least = low * max(1 - cost_error, 0.0)  # no speed is below 0
    return Gain(estimate=estimate, interval=(float(least - 1), float(high * (1 + cost_error) - 1)))


def policy_result(replays: PolicyReplays, baseline: PolicyReplays, *, lag: int) -> PolicyResult:
    totals, policy = replays.totals, replays.policy
    gain = gain_over(replays, baseline)
    return PolicyResult(
        policy=policy.name,
        concurrency=replays.concurrency,
        losslessness=policy.losslessness(lag),
        output_tokens_per_s=replays.tokens_per_s,
        tpot_ms=_ratio(totals.tpot_ms_sum, totals.num_tpot),
        mean_accepted_len_plus_1=_ratio(totals.num_verify_outputs, totals.num_verifying),
        mean_budget=_ratio(totals.num_admitted, totals.num_verify_steps),
        wasted_share=_ratio(totals.num_admitted - totals.num_accepted, totals.num_admitted),
        gain_over_none=gain,
        verdict=None if policy.kind == "none" else gain.verdict,
        num_steps=totals.num_steps,
        num_requests=totals.num_finished,
        extrapolated_share=totals.num_extrapolated / totals.num_steps,
        cost_error=replays.cost_error,
    )


def recommend(candidates: Sequence[PolicyReplays]) -> Recommendation:
    """The fastest policy, or the simplest of those that the fastest does not beat beyond noise.

    All candidates are deployable and share one concurrency.
    """
    by_speed = sorted(candidates, key=lambda replays: (-replays.tokens_per_s, replays.policy.complexity))
    fastest, rest = by_speed[0], by_speed[1:]
    tied = [other for other in rest if gain_over(fastest, other).verdict != "better"]
    tied.sort(key=lambda replays: replays.policy.complexity)  # stable: among equals the faster comes first
    chosen = min([fastest, *tied], key=lambda replays: replays.policy.complexity)
    return Recommendation(
        concurrency=fastest.concurrency,
        policy=chosen.policy.name,
        fastest=fastest.policy.name,
        tied_with=[other.policy.name for other in tied],
        runner_up=rest[0].policy.name if rest else None,
        lead_over_runner_up=gain_over(fastest, rest[0]) if rest else None,
    )


def _ratio(numerator: float, denominator: int) -> float | None:
    return numerator / denominator if denominator else None
