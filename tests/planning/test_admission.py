from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from specplan.errors import ConfigError
from specplan.planning import admit_by_survival, survival_probability


def reference(survival: NDArray[np.float32], scheduled: NDArray[np.int64], draft_budget: int) -> list[int]:
    """Sort every scheduled slot by (higher survival, earlier position, lower row) and count the first ones."""
    slots = [(-survival[r, i], i, r) for r in range(len(scheduled)) for i in range(scheduled[r])]
    winners = sorted(slots)[:draft_budget]
    for r in range(len(scheduled)):  # the definition itself admits prefixes
        positions = sorted(i for _, i, row in winners if row == r)
        assert positions == list(range(len(positions)))
    return [sum(row == r for _, _, row in winners) for r in range(len(scheduled))]


@given(st.data(), st.integers(0, 6), st.integers(1, 5), st.sampled_from([[0.0, 1.0], [0.0, 0.5, 1.0], [0.3, 0.6, 0.9]]))
@settings(max_examples=200, deadline=None)
def test_equals_the_plain_reference_ties_included(
    data: st.DataObject, num_reqs: int, k: int, values: list[float]
) -> None:
    rows = st.lists(st.sampled_from(values), min_size=k, max_size=k)
    confidence = np.array(data.draw(st.lists(rows, min_size=num_reqs, max_size=num_reqs))).reshape(num_reqs, k)
    counts = st.lists(st.integers(0, k), min_size=num_reqs, max_size=num_reqs)
    scheduled = np.array(data.draw(counts), dtype=np.int64)
    budget = data.draw(st.integers(0, num_reqs * k + 2))
    survival = survival_probability(confidence, scheduled)
    admitted = admit_by_survival(survival, scheduled, budget)
    assert admitted.dtype == np.int32
    assert admitted.tolist() == reference(survival, scheduled, budget)
    assert admitted.sum() == min(budget, scheduled.sum())


@pytest.mark.parametrize(("budget", "admitted"), [(0, [0, 0]), (1, [1, 0]), (2, [1, 1]), (3, [2, 1]), (9, [2, 2])])
def test_ties_go_to_the_earlier_position_then_the_lower_row(budget: int, admitted: list[int]) -> None:
    assert admit_by_survival(np.ones((2, 2)), np.array([2, 2]), budget).tolist() == admitted


def test_slots_of_zero_survival_are_eligible_and_unscheduled_ones_are_not() -> None:
    survival = survival_probability(np.zeros((2, 3)), np.array([3, 1]))
    assert admit_by_survival(survival, np.array([3, 1]), 4).tolist() == [3, 1]
    assert admit_by_survival(survival, np.array([3, 1]), 9).tolist() == [3, 1]


def test_outcomes_admit_at_least_as_many_accepted_tokens_as_anything_else() -> None:
    rng = np.random.default_rng(3)
    num_reqs, k = 3, 3
    scheduled = np.full(num_reqs, k)
    for _ in range(30):
        accepted_len = rng.integers(0, k + 1, num_reqs)
        outcome = (np.arange(k) < accepted_len[:, None]).astype(np.float32)
        for budget in range(num_reqs * k + 1):
            by_outcome = np.minimum(admit_by_survival(outcome, scheduled, budget), accepted_len).sum()
            for other in itertools.product(range(k + 1), repeat=num_reqs):
                if sum(other) == budget:
                    assert np.minimum(other, accepted_len).sum() <= by_outcome


@pytest.mark.parametrize("survival", [[[0.5, 0.6]], [[0.5, np.nan]], [[np.nan, 0.5]]])
def test_what_is_no_survival_is_refused(survival: list[list[float]]) -> None:
    with pytest.raises(ConfigError, match="survival"):
        admit_by_survival(np.array(survival), np.array([2]), 1)


def test_a_negative_budget_is_refused() -> None:
    with pytest.raises(ConfigError, match="draft_budget is -1"):
        admit_by_survival(np.ones((1, 1)), np.array([1]), -1)
