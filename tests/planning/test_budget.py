from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specplan.errors import ConfigError, CoverageError
from specplan.planning import BudgetChoice, choose_draft_budget, survival_probability


def choose(confidence: Any, verify_ms: Any, **changes: Any) -> BudgetChoice:
    """The rule for a batch of decoding requests, each with every draft scheduled."""
    confidence = np.asarray(confidence, dtype=np.float32)
    num_reqs, k = confidence.shape
    arguments: dict[str, Any] = {
        "scheduled": np.full(num_reqs, k),
        "num_sampling": num_reqs,
        "num_non_draft_tokens": num_reqs,
        "draft_ms": 0.0,
    }
    return choose_draft_budget(confidence, verify_ms=np.asarray(verify_ms, dtype=np.float64), **(arguments | changes))


def staircase(points: list[tuple[int, float]]) -> list[float]:
    """Each count of tokens at the price of the next captured size."""
    return [next(ms for size, ms in points if size >= tokens) for tokens in range(points[-1][0] + 1)]


def test_golden_vllm_stops_where_drafts_stop_paying() -> None:
    choice = choose([[0.1, 0.1], [0.9, 0.9]], [1, 1, 1, 1, 100, 100, 100])
    assert choice.draft_budget == 1
    assert choice.expected_tokens == pytest.approx(2.9)
    assert choice.cost_ms == 1
    assert choice.tokens_per_ms == pytest.approx(2.9)


@pytest.mark.parametrize(("second", "budget", "tokens_per_ms"), [(0.9, 2, 1.134), (0.0, 0, 1.0)])
def test_golden_dspark_appendix(second: float, budget: int, tokens_per_ms: float) -> None:
    choice = choose([[0.8, second]], [9, 1, 1 / 0.5, 1 / 0.45])
    assert choice.draft_budget == budget
    assert choice.tokens_per_ms == pytest.approx(tokens_per_ms)


def test_golden_flat_table() -> None:
    flat = np.ones(20)
    assert choose(np.ones((4, 3)), flat).draft_budget == 12
    assert choose(np.zeros((4, 3)), flat).draft_budget == 0


def test_golden_staircase_against_straight_line() -> None:
    points = [(4, 4.0), (8, 4.2), (16, 6.0), (24, 9.0)]
    confidence = np.full((4, 3), 0.7)
    assert choose(confidence, staircase(points)).draft_budget == 12
    sizes, costs = np.array(points).T
    linear = np.interp(np.arange(25), sizes, costs)
    assert choose(confidence, linear).draft_budget == 8


def test_golden_a_measured_curve_against_its_first_point() -> None:
    confidence = np.full((8, 7), 0.6)
    assert choose(confidence, staircase([(8, 4), (16, 7), (32, 13), (64, 25)])).draft_budget == 0
    assert choose(confidence, np.full(65, 4.0)).draft_budget == 56


def test_golden_max_total_logits() -> None:
    assert choose([[0.9, 0.9], [0.9, 0.9]], np.ones(7), max_draft_budget=3 - 2).draft_budget == 1
    assert choose([[0.9, 0.9], [0.9, 0.9]], np.ones(7), max_draft_budget=0).draft_budget == 0


def brute_force(
    survival: NDArray[np.float32],
    scheduled: NDArray[np.int64],
    num_sampling: int,
    num_tokens: int,
    draft_ms: float,
    verify_ms: NDArray[np.float64],
    limit: int,
    overhead_ms: float,
) -> tuple[int, float]:
    """Every budget in turn, from 0, keeping the first of the best."""
    slots = sorted((float(survival[r, i]) for r in range(len(scheduled)) for i in range(scheduled[r])), reverse=True)
    best, best_ratio = 0, -1.0
    for budget in range(min(len(slots), limit) + 1):
        total = 0.0
        for slot in slots[:budget]:
            total += slot
        ratio = (num_sampling + total) / (draft_ms + float(verify_ms[num_tokens + budget]) + overhead_ms)
        if ratio > best_ratio:
            best, best_ratio = budget, ratio
    return best, best_ratio


@pytest.mark.parametrize("table", ["padded", "smooth", "both"])
def test_equals_brute_force(table: str) -> None:
    rng = np.random.default_rng(["padded", "smooth", "both"].index(table))
    for _ in range(1000):
        num_reqs, k = int(rng.integers(1, 9)), int(rng.integers(1, 6))
        # Few distinct values, so that ties and zeros are common.
        confidence = rng.choice([0.0, 0.25, 0.5, 0.9, 1.0, rng.random()], size=(num_reqs, k)).astype(np.float32)
        scheduled = rng.integers(0, k + 1, num_reqs)
        num_sampling = num_reqs + int(rng.integers(0, 2))
        num_tokens = num_sampling + int(rng.integers(0, 10))
        size = num_tokens + num_reqs * k + 1
        smooth = 2 + np.cumsum(rng.random(size)) * rng.choice([0.01, 0.3])
        limit = {"padded": size, "smooth": 0, "both": size // 2}[table]
        padded = np.minimum(np.ceil(np.arange(size) / 4).astype(int) * 4, size - 1)
        verify_ms = np.where(np.arange(size) < limit, smooth[padded], smooth)
        draft_ms, overhead_ms = float(rng.choice([0, rng.random()])), float(rng.choice([0, rng.random()]))
        budget_limit = int(rng.integers(0, num_reqs * k + 3))
        choice = choose(
            confidence,
            verify_ms,
            scheduled=scheduled,
            num_sampling=num_sampling,
            num_non_draft_tokens=num_tokens,
            draft_ms=draft_ms,
            overhead_ms=overhead_ms,
            max_draft_budget=budget_limit,
        )
        survival = survival_probability(confidence, scheduled)
        expected = brute_force(
            survival, scheduled, num_sampling, num_tokens, draft_ms, verify_ms, budget_limit, overhead_ms
        )
        assert (choice.draft_budget, choice.tokens_per_ms) == expected
        assert choice.expected_tokens / choice.cost_ms == choice.tokens_per_ms


def test_zero_survival_ties_go_to_the_smallest_budget() -> None:
    assert choose([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]], np.ones(9)).draft_budget == 2


def test_only_scheduled_drafts_count() -> None:
    choice = choose(np.ones((3, 3)), np.ones(20), scheduled=np.array([3, 0, 1]))
    assert choice.draft_budget == 4
    assert choice.expected_tokens == 7


def test_requests_in_prefill_add_tokens_and_do_not_sample() -> None:
    choice = choose(np.ones((1, 2)), np.arange(1.0, 60.0), num_sampling=1, num_non_draft_tokens=41)
    assert choice.draft_budget == 2
    assert choice.cost_ms == 44


def test_a_step_without_drafts() -> None:
    choice = choose(np.zeros((0, 7)), np.array([1.0, 2.0]), num_sampling=1, num_non_draft_tokens=1)
    assert choice == BudgetChoice(draft_budget=0, expected_tokens=1.0, cost_ms=2.0, tokens_per_ms=0.5)


def test_min_gain_keeps_the_full_budget_until_trimming_pays() -> None:
    confidence = [[0.9, 0.1]]
    verify_ms = [9, 1, 1, 1.1]  # ratios 1, 1.9, 1.99 / 1.1 = 1.81: trimming gains 5 percent
    assert choose(confidence, verify_ms).draft_budget == 1
    assert choose(confidence, verify_ms, min_gain=0.04).draft_budget == 1
    assert choose(confidence, verify_ms, min_gain=0.06).draft_budget == 2


def test_reads_nothing_outside_the_step() -> None:
    verify_ms = np.array([np.nan, np.nan, 1.0, 1.0, 1.0, np.inf])
    assert choose([[0.5], [0.5]], verify_ms).draft_budget == 2


def test_accepts_plain_lists() -> None:
    choice = choose_draft_budget(
        [[0.8, 0.9]], [2], num_sampling=1, num_non_draft_tokens=1, draft_ms=0.0, verify_ms=[9, 1, 2, 1 / 0.45]
    )
    assert choice.draft_budget == 2


def test_a_short_table_is_refused() -> None:
    with pytest.raises(CoverageError, match="verify costs reach 2 tokens, and this step may run 3") as caught:
        choose([[0.5, 0.5]], np.ones(3))
    assert "max_draft_budget" in caught.value.hint
    assert choose([[0.5, 0.5]], np.ones(3), max_draft_budget=1).draft_budget == 1


def test_a_size_without_a_cost_is_not_chosen() -> None:
    """And where none in reach has one, nothing is trimmed."""
    unmeasured = np.inf
    assert choose([[1.0, 1.0, 1.0]], [9, unmeasured, 1.0, unmeasured, unmeasured]).draft_budget == 1
    assert choose([[0.0, 0.0]], [9, 5.0, 1.0, unmeasured]).draft_budget == 1
    assert choose([[0.1, 0.1]], [9, unmeasured, unmeasured, unmeasured]).draft_budget == 2
    assert choose([[0.9, 0.9]], [9, 1.0, 1.0, unmeasured], min_gain=0.5).draft_budget == 1


@pytest.mark.parametrize("cost", [np.nan, -np.inf, 0.0, -1.0])
def test_costs_that_are_no_costs_are_refused(cost: float) -> None:
    with pytest.raises(ConfigError, match="a step of 2 tokens costs"):
        choose([[0.5]], [1, 1, cost])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_sampling": -1}, "sampling requests"),
        ({"num_non_draft_tokens": 0}, "non-draft tokens"),
        ({"max_draft_budget": -1}, "max_draft_budget is -1"),
        ({"min_gain": -0.1}, "min_gain is -0.1"),
        ({"min_gain": np.nan}, "min_gain is nan"),
        ({"scheduled": np.array([2])}, "scheduled drafts run from 2 to 2"),
    ],
)
def test_arguments_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose([[0.5]], np.ones(9), **changes)
