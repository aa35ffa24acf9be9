"""From replays to figures, intervals, verdicts and a recommendation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from specplan.files.tables import CostTables
from specplan.planning import Policy
from specplan.simulation.replay import ReplayTotals
from specplan.simulation.result import Gain, PolicyResult, Recommendation

__all__ = ["CostErrors", "PolicyReplays", "gain_over", "policy_result", "recommend"]


_ALL = 1 - 1e-9  # shares are sums, and rounded


@dataclass(frozen=True, slots=True, kw_only=True)
class CostErrors:
    """The worst error known of each region of the tables that a policy is charged by; None where nobody knows."""

    captured: float | None = None
    smooth: float | None = None
    mixed: float | None = None
    draft: float | None = None

    @classmethod
    def of_tables(cls, tables: CostTables, policy: Policy) -> CostErrors:
        """Steps of a policy with a budget are ragged, and off by that too. A drafter that costs nothing is known."""
        error = tables.error
        ragged = error.ragged.mape if policy.has_budget and error.ragged is not None else None
        is_free = not tables.draft_table_ms.any()
        return cls(
            captured=max((each for each in (error.known_to("captured"), ragged) if each is not None), default=None),
            smooth=error.known_to("smooth"),
            mixed=error.known_to("mixed"),
            draft=0.0 if is_free else error.known_to("draft"),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PolicyReplays:
    """One policy at one concurrency: the trace as it is, and its resamples, which every policy shares."""

    policy: Policy
    concurrency: int
    totals: ReplayTotals
    resampled: Sequence[ReplayTotals]  # [num_resamples]
    errors: CostErrors

    @property
    def tokens_per_s(self) -> float:
        return tokens_per_s(self.totals)

    @property
    def cost_error(self) -> float:
        """How well the time that the replay took is known, as a share of it, as far as anyone knows.

        Cells of the tables are off by their region's error on average, and by the intervals of the medians that they
        rest on: no replay is known to better than the larger of the two.
        """
        known = sum((share * error for share, error in self._shares() if error is not None), 0.0)
        return max(known, self.totals.ci_ms / self.totals.time_ms)

    @property
    def unknown_share(self) -> float:
        """Of the time, what is charged by costs whose error nobody knows."""
        return sum((share for share, error in self._shares() if error is None), 0.0)

    def _shares(self) -> Iterator[tuple[float, float | None]]:
        """Of the time, what each region is charged for, and the region's error."""
        for region in ("captured", "smooth", "mixed", "draft"):
            share = getattr(self.totals, f"{region}_ms") / self.totals.time_ms
            if share > 0:
                yield share, getattr(self.errors, region)


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
        cost_error=replays.cost_error if replays.unknown_share < _ALL or replays.cost_error else None,
        unknown_share=replays.unknown_share,
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
