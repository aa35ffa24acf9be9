"""The rule at the centre: how many draft tokens to verify in one step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specplan.errors import ConfigError, CoverageError
from specplan.planning.survival import eligible_slots, survival_probability

__all__ = ["BudgetChoice", "choose_draft_budget"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetChoice:
    """The chosen budget, and what the step is expected to yield and to cost under it."""

    draft_budget: int
    expected_tokens: float
    cost_ms: float
    tokens_per_ms: float


def choose_draft_budget(
    confidence: ArrayLike,  # [num_reqs, K] float; row r is request r
    scheduled: ArrayLike,  # [num_reqs] int; drafts offered, <= K
    *,
    num_sampling: int,
    num_non_draft_tokens: int,
    draft_ms: float,
    verify_ms: ArrayLike,  # [> T + B_max] float, indexed by num_tokens; only [T .. T + B_max] is read
    max_draft_budget: int | None = None,
    overhead_ms: float = 0.0,
    min_gain: float = 0.0,
) -> BudgetChoice:
    """The budget with the most expected output tokens per millisecond, the smallest one on a tie.

    With N = num_sampling, T = num_non_draft_tokens and the eligible survival sorted s(1) >= s(2) >= ...:

        tokens(B) = N + (s(1) + ... + s(B))                          summed in float64 in that order
        cost(B)   = draft_ms + verify_ms[T + B] + overhead_ms
        B*        = argmax over 0 <= B <= B_max of tokens(B) / cost(B)
        B_max     = min(sum(scheduled), max_draft_budget)

    On a padded staircase the ratio has many local maxima, so every B is looked at. With a positive `min_gain` B_max is
    kept unless the best ratio exceeds B_max's by more than that fraction. A size without a cost (infinite) is not
    chosen; where none of those in reach has one, B_max is kept: without a price nothing is trimmed.
    """
    _check_arguments(num_sampling, num_non_draft_tokens, max_draft_budget, min_gain)
    offered = np.asarray(scheduled)
    survival = survival_probability(np.asarray(confidence), offered)
    budget_limit = int(offered.sum())
    if max_draft_budget is not None:
        budget_limit = min(budget_limit, max_draft_budget)
    ranked = np.sort(survival[eligible_slots(offered, survival.shape[1])])[::-1][:budget_limit].astype(np.float64)
    tokens = num_sampling + np.concatenate(([0.0], np.cumsum(ranked)))
    cost_ms = _step_cost_ms(draft_ms, np.asarray(verify_ms), overhead_ms, num_non_draft_tokens, budget_limit)

    tokens_per_ms = tokens / cost_ms
    best = int(np.argmax(tokens_per_ms))  # the first of equals
    is_too_little = min_gain > 0 and tokens_per_ms[best] <= (1 + min_gain) * tokens_per_ms[-1]
    if is_too_little or not np.isfinite(cost_ms[best]):
        best = budget_limit
    return BudgetChoice(
        draft_budget=best,
        expected_tokens=float(tokens[best]),
        cost_ms=float(cost_ms[best]),
        tokens_per_ms=float(tokens_per_ms[best]),
    )


def _check_arguments(
    num_sampling: int, num_non_draft_tokens: int, max_draft_budget: int | None, min_gain: float
) -> None:
    if num_sampling < 0 or num_non_draft_tokens < num_sampling:
        raise ConfigError(
            f"{num_sampling} sampling requests in {num_non_draft_tokens} non-draft tokens cannot be",
            "every sampling request brings at least one non-draft token to the step",
        )
    if max_draft_budget is not None and max_draft_budget < 0:
        raise ConfigError(
            f"max_draft_budget is {max_draft_budget}, expected 0 or more",
            "pass max(0, max_total_logits - num_reqs * num_bonus_tokens), or None for no limit",
        )
    if not 0 <= min_gain < math.inf:
        raise ConfigError(f"min_gain is {min_gain}, expected a fraction of 0 or more", "pass 0.02 for two percent")


def _step_cost_ms(
    draft_ms: float,
    verify_ms: NDArray[np.floating[Any]],
    overhead_ms: float,
    num_non_draft_tokens: int,
    budget_limit: int,
) -> NDArray[np.float64]:  # [budget_limit + 1]
    last = num_non_draft_tokens + budget_limit
    if len(verify_ms) <= last:
        raise CoverageError(
            f"verify costs reach {len(verify_ms) - 1} tokens, and this step may run {last}",
            "measure or build the cost tables up to more tokens, or bound the budget with max_draft_budget",
        )
    read_ms = verify_ms[num_non_draft_tokens : last + 1].astype(np.float64)
    cost_ms: NDArray[np.float64] = draft_ms + read_ms + overhead_ms
    if draft_ms < 0 or overhead_ms < 0:
        raise ConfigError(
            f"draft_ms is {draft_ms} and overhead_ms {overhead_ms}, expected 0 or more", "pass milliseconds"
        )
    wrong = np.flatnonzero(~((cost_ms > 0) & (read_ms >= 0)) | ~np.isfinite(draft_ms + overhead_ms))
    if wrong.size:
        raise ConfigError(
            f"a step of {num_non_draft_tokens + wrong[0]} tokens costs {cost_ms[wrong[0]]} ms, expected more than 0",
            "build the row with build_cost_tables, which refuses such points by name",
        )
    return cost_ms
