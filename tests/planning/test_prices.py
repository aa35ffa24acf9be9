from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from specplan.costs import build_cost_tables
from specplan.errors import CoverageError
from specplan.files import CostTables
from specplan.files.mixed_costs import MixedCosts
from specplan.planning import parse_policy
from specplan.planning.prices import MixedPrices, StepPrices, StepSize, VerifyPrices


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


def of_size(
    num_reqs: int, context_len: float, *, verifying: int | None = None, prompts: int = 0, sampling: int | None = None
) -> StepSize:
    return StepSize(
        num_reqs=num_reqs,
        num_verifying=num_reqs if verifying is None else verifying,
        num_sampling=num_reqs if sampling is None else sampling,
        num_prompt_tokens=prompts,
        context_len=context_len,
    )


def test_a_step_costs_draft_verify_host_and_the_drafters_prefill() -> None:
    prices = StepPrices(
        verify=two_contexts(),
        mixed=None,
        draft_ms=np.array([[9, 9, 9], [9, 0.5, 0.25], [9, 1.5, 0.75]]),
        overhead_ms=np.array([9, 0.0625, 0.125]),
        draft_prefill_ms=np.array([0, 2, 4, 6, 8.0]),
    )
    assert prices.step_ms(of_size(2, 200), num_drafts=1, k=1) == 0.25 + 8 + 0.125
    assert prices.step_ms(of_size(2, 200), num_drafts=1, k=2) == 0.75 + 8 + 0.125
    prompt = of_size(1, 200, verifying=0, prompts=3)
    assert prices.step_ms(prompt, num_drafts=0, k=1) == 0.5 + 8 + 0.0625 + 6  # as a verify pass of its size
    assert prices.fixed_ms(prompt) == 0.0625 + 6
    chunk = of_size(2, 200, verifying=1, prompts=2, sampling=1)
    assert prices.step_ms(chunk, num_drafts=0, k=2) == 1.5 + 8 + 0.125 + 4  # the other's prompt goes on
    unfinished = of_size(1, 200, verifying=0, prompts=3, sampling=0)
    assert prices.step_ms(unfinished, num_drafts=0, k=2) == 8 + 0.0625 + 6  # nothing is drafted
    with pytest.raises(CoverageError, match="reach 4 tokens, and this step may run 5 prompt tokens"):
        prices.fixed_ms(of_size(1, 200, verifying=0, prompts=5))


def mixed_prices(**changes: Any) -> MixedPrices:
    """Contexts 100 and 300, 0, 1 and 4 requests, 0 and 3 drafts each, 10 and 50 prompt tokens."""
    axes = {
        "contexts": np.array([100.0, 300.0]),
        "num_verifying": np.array([0.0, 1.0, 4.0]),
        "drafts": np.array([0.0, 3.0]),
        "prompt_tokens": np.array([10.0, 50.0]),
    } | changes
    c, v, d, p = np.meshgrid(*axes.values(), indexing="ij")
    return MixedPrices(**axes, ms=1 + p / 10 + v * (1 + d) + v * c / 100)


@pytest.mark.parametrize(
    ("context", "verifying", "prompts", "by_drafts"),
    [
        (100, 1, 10, [4, 7]),  # measured
        (200, 1, 10, [5, 8]),
        (100, 2, 30, [8, 14]),
        (250, 3, 20, [13.5, 22.5]),
        (0, 1, 10, [4, 7]),  # before the first context, and past the last, theirs
        (999, 1, 10, [6, 9]),
        (100, 1, 1, [4, 7]),  # of fewer prompt tokens than any
        (100, 1, 90, [12, 15]),  # past the most the last slope goes on
        (100, 9, 10, [10, 22]),
        (555, 0, 50, [6, 6]),
    ],
)
def test_mixed_steps_are_linear_between_what_was_measured(
    context: float, verifying: int, prompts: int, by_drafts: list[float]
) -> None:
    assert mixed_prices().by_drafts(verifying, prompts, context) == pytest.approx(by_drafts)


def test_a_mixed_steps_drafts_are_priced_by_how_many_each_request_has() -> None:
    prices = mixed_prices()
    assert prices.budget_row(2, 10, 100, 8) == pytest.approx([6, 7, 8, 9, 10, 11, 12, 12, 12])
    assert prices.budget_row(0, 10, 100, 0) == pytest.approx([2])
    one = mixed_prices(drafts=np.array([2.0]))
    assert one.budget_row(1, 10, 100, 3) == pytest.approx([6] * 4)
    past = [prices.is_extrapolated(*step) for step in ((2, 50, 6), (2, 51, 6), (2, 50, 7), (5, 50, 0), (0, 50, 0))]
    assert past == [False, True, True, True, False]
    assert prices.is_extrapolated(2, 9, 6)  # before the first as well
    assert [one.is_extrapolated(1, 10, drafts) for drafts in (1, 2, 3)] == [True, False, True]


def test_a_slope_that_falls_is_not_continued() -> None:
    axes = {"contexts": np.zeros(1), "num_verifying": np.zeros(1), "drafts": np.zeros(1)}
    falling = MixedPrices(**axes, prompt_tokens=np.array([10.0, 20.0]), ms=np.array([[[[4.0, 3.0]]]]))
    assert falling.by_drafts(0, 500, 0).tolist() == [3.0]
    alone = MixedPrices(**axes, prompt_tokens=np.array([10.0]), ms=np.array([[[[4.0]]]]))
    assert alone.by_drafts(0, 500, 0).tolist() == [4.0]


def test_a_step_that_holds_prompt_tokens_is_priced_as_mixed() -> None:
    prices = StepPrices(
        verify=two_contexts(),
        mixed=mixed_prices(),
        draft_ms=np.zeros((2, 3)),
        overhead_ms=np.zeros(3),
        draft_prefill_ms=np.zeros(11),
    )
    size = of_size(2, 100, verifying=1, prompts=10)
    assert prices.target_ms(of_size(2, 100), 1) == 4
    assert prices.target_ms(size, 0) == prices.step_ms(size, num_drafts=0, k=1) == 4
    assert prices.target_ms(size, 3) == 7
    row = prices.target_row(size, 3)
    assert len(row) == 11 + 4  # by tokens of the step
    assert row[11:] == pytest.approx([4, 5, 6, 7])
    assert prices.is_extrapolated(of_size(1, 300), 3) is True  # a verify pass's own
    assert prices.is_extrapolated(size, 3) is False


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
    assert prices.mixed is None
    assert prices.overhead_ms.tolist() == [1, 1, 2, 3, 4]
    assert prices.draft_prefill_ms.tolist() == [0 if policy == "none" else p / 8 for p in range(17)]
    assert prices.overhead_ms.flags.writeable  # numba would compile for a read-only row once more
    assert prices.draft_prefill_ms.flags.writeable


def test_mixed_prices_come_from_the_tables() -> None:
    mixed = MixedCosts(
        contexts=[8], num_verifying=[0, 2], drafts=[0, 3], prompt_tokens=[4],
        ms=np.arange(1.0, 5.0).reshape(1, 2, 2, 1), ci_ms=np.zeros((1, 2, 2, 1)),
    )  # fmt: skip
    built = msgspec.structs.replace(tables(), mixed=mixed)
    prices = StepPrices.from_tables(two_contexts(), built, policy=parse_policy("none"), num_speculative_tokens=3)
    assert prices.target_ms(of_size(3, 8, verifying=2, prompts=4), 6) == 4
    assert prices.mixed is not None
    assert prices.mixed.ms.flags.writeable  # numba would compile for a read-only array once more


def tables() -> CostTables:
    return build_cost_tables(
        [(1, 0.5), (4, 1)], [(4, 1), (8, 2), (10, 3), (12, 4)], max_num_reqs=4, max_num_tokens=16, capture_limit=8
    )


def test_rows_come_from_the_tables() -> None:
    prices = VerifyPrices.from_tables(tables(), max_num_reqs=3, max_num_tokens=14, num_speculative_tokens=3)
    assert prices.verify_ms.shape == (1, 4, 15)
    assert prices.row(2, 77.0)[:13].tolist() == [1, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3.5, 4]
    assert [prices.is_extrapolated(2, 77.0, tokens) for tokens in (8, 12, 13)] == [False, False, True]


@pytest.mark.parametrize(("reqs", "tokens", "way_out"), [(5, 16, "--concurrency to 4"), (4, 17, "fewer drafts")])
def test_what_the_tables_do_not_reach_is_refused(reqs: int, tokens: int, way_out: str) -> None:
    with pytest.raises(CoverageError, match="the cost tables reach 4 requests and 16 tokens") as caught:
        VerifyPrices.from_tables(tables(), max_num_reqs=reqs, max_num_tokens=tokens, num_speculative_tokens=3)
    assert way_out in caught.value.hint


def test_a_mixed_step_pays_for_context_past_its_own_longest() -> None:
    """Mixed steps were measured further out than verify passes: there the grid has the cost already."""
    prices = StepPrices(
        verify=replace(two_contexts(), context_ms=0.01),
        mixed=mixed_prices(contexts=np.array([100.0, 1000.0])),
        draft_ms=np.zeros((4, 5)),
        overhead_ms=np.zeros(6),
        draft_prefill_ms=np.zeros(100),
    )
    mixed = prices.mixed
    assert mixed is not None
    for context, beyond_ms in ((500, 0.0), (1000, 0.0), (1200, 0.01 * 4 * 200)):
        row = mixed.budget_row(4, 10, context, 0)
        size = of_size(5, context, verifying=4, prompts=10)
        assert prices.target_ms(size, 0) == row[0] + beyond_ms
