from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from specplan.costs import build_cost_tables
from specplan.errors import ConfigError, CoverageError
from specplan.files import CostTables
from specplan.planning import parse_policy
from specplan.simulation.prices import StepPrices, VerifyPrices


def two_contexts() -> VerifyPrices:
    verify_ms = np.ones((2, 3, 5))
    verify_ms[0] = np.arange(1, 6)
    verify_ms[1] = np.arange(1, 6) * 3
    extrapolated = np.zeros((2, 3, 5), dtype=np.bool_)
    extrapolated[1, 1, 4] = True
    return VerifyPrices(contexts=np.array([100.0, 300.0]), verify_ms=verify_ms, extrapolated=extrapolated)


@pytest.mark.parametrize(("context", "factor"), [(0, 1), (100, 1), (150, 1.5), (200, 2), (300, 3), (9000, 3)])
def test_linear_between_contexts_and_held_beyond(context: float, factor: float) -> None:
    assert two_contexts().row(1, context).tolist() == [factor * cell for cell in range(1, 6)]


def test_a_cost_is_extrapolated_where_a_cell_it_rests_on_is() -> None:
    prices = two_contexts()
    assert [prices.is_extrapolated(1, context, 4) for context in (0, 100, 101, 300, 500)] == [
        False, False, True, True, True,
    ]  # fmt: skip
    assert not prices.is_extrapolated(1, 200, 3)
    assert not prices.is_extrapolated(2, 200, 4)


def test_a_step_costs_draft_verify_host_and_the_drafters_prefill() -> None:
    prices = StepPrices(
        verify=two_contexts(),
        draft_ms=np.array([[9, 9, 9], [9, 0.5, 0.25], [9, 1.5, 0.75]]),
        overhead_ms=np.array([9, 0.0625, 0.125]),
        draft_prefill_ms=np.array([0, 2, 4, 6, 8.0]),
    )
    assert prices.step_ms(2, 200, 3, num_prompt_tokens=0, k=1) == 0.25 + 8 + 0.125
    assert prices.step_ms(2, 200, 3, num_prompt_tokens=0, k=2) == 0.75 + 8 + 0.125
    assert prices.step_ms(1, 200, 3, num_prompt_tokens=2, k=1) == 0.5 + 8 + 0.0625 + 4
    assert prices.fixed_ms(1, 2) == 0.0625 + 4
    with pytest.raises(CoverageError, match="reach 4 tokens, and this step may run 5 prompt tokens"):
        prices.fixed_ms(1, 5)


NEVER = [math.nan] * 3


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("none", [[0, 0, 0]]),  # no drafter, though the tables hold no k = 0
        ("fixed:2", [NEVER, NEVER, [0, 2, 3]]),
        ("adaptive", [NEVER, NEVER, NEVER, [0, 3, 4]]),
        ("ema", [NEVER, [0, 1, 2], [0, 2, 3], [0, 3, 4]]),
    ],
)
def test_drafting_is_priced_at_every_k_that_a_policy_may_draft(policy: str, expected: list[list[float]]) -> None:
    """Measured at 1 and 3 drafts; linear between them."""
    built = msgspec.structs.replace(
        tables(),
        draft_ks=[1, 3],
        draft_table_ms=np.array([[0.0, 1, 2], [0, 3, 4]]),
        draft_source=np.zeros((2, 3), dtype=np.uint8),
        draft_ci_ms=None,
        overhead_ms=np.zeros(3),
    )
    prices = StepPrices.from_tables(two_contexts(), built, policy=parse_policy(policy), num_speculative_tokens=3)
    assert np.array_equal(prices.draft_ms, expected, equal_nan=True)
    if policy == "ema":
        with pytest.raises(CoverageError, match="no draft cost for k = 4"):
            StepPrices.from_tables(two_contexts(), built, policy=parse_policy(policy), num_speculative_tokens=4)


@pytest.mark.parametrize("policy", ["none", "fixed:0", "fixed:2", "ema", "adaptive", "oracle"])
def test_only_without_a_drafter_is_none_prefilled(policy: str) -> None:
    built = msgspec.structs.replace(
        tables(), overhead_ms=np.array([1, 1, 2, 3, 4.0]), draft_prefill_ms=np.arange(17) / 8
    )
    prices = StepPrices.from_tables(two_contexts(), built, policy=parse_policy(policy), num_speculative_tokens=3)
    assert prices.overhead_ms.tolist() == [1, 1, 2, 3, 4]
    assert prices.draft_prefill_ms.tolist() == [0 if policy == "none" else p / 8 for p in range(17)]
    assert prices.overhead_ms.flags.writeable  # numba would compile for a read-only row once more
    assert prices.draft_prefill_ms.flags.writeable


def tables() -> CostTables:
    return build_cost_tables(
        [(1, 0.5), (4, 1)], [(4, 1), (8, 2), (10, 3), (12, 4)], max_num_reqs=4, max_num_tokens=16, capture_limit=8
    )


def test_rows_come_from_the_tables() -> None:
    prices = VerifyPrices.from_tables(tables(), max_num_reqs=3, max_num_tokens=14)
    assert prices.verify_ms.shape == (1, 4, 15)
    assert prices.row(2, 77.0)[:13].tolist() == [1, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3.5, 4]
    assert [prices.is_extrapolated(2, 77.0, tokens) for tokens in (8, 12, 13)] == [False, False, True]


@pytest.mark.parametrize(("reqs", "tokens"), [(5, 16), (4, 17)])
def test_what_the_tables_do_not_reach_is_refused(reqs: int, tokens: int) -> None:
    with pytest.raises(CoverageError, match="the cost tables reach 4 requests and 16 tokens") as caught:
        VerifyPrices.from_tables(tables(), max_num_reqs=reqs, max_num_tokens=tokens)
    assert "--concurrency" in caught.value.hint


@pytest.mark.parametrize("cost", [np.nan, np.inf, 0.0, -1.0])
def test_costs_that_are_no_costs_are_refused(cost: float) -> None:
    verify_ms = np.ones((1, 2, 3))
    verify_ms[0, 1, 2] = cost
    with pytest.raises(ConfigError, match="not finite and positive"):
        VerifyPrices(contexts=np.zeros(1), verify_ms=verify_ms, extrapolated=np.zeros((1, 2, 3), dtype=np.bool_))
