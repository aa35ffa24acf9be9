"""The full batch against the capture limit: what is found, what it costs, and what would fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplan.costs import build_cost_tables
from specplan.errors import ConfigError, CoverageError, InfeasibleError
from specplan.files import CostTables
from specplan.files.tables import Semantics, Source
from specplan.planning import AttentionSupport, GraphMode, RouteCheck, check_route
from specplan.planning.route_check import StepPrice
from specplan.shapes import default_capture_sizes

VERIFY = [(1, 2.0), (8, 2.1), (16, 2.4), (32, 3.2), (40, 3.7), (64, 9.0), (128, 12.0)]


def check(max_num_seqs: int = 6, k: int = 6, **options: Any) -> RouteCheck:
    given: dict[str, Any] = {
        "graph_mode": GraphMode.FULL_AND_PIECEWISE,
        "has_piecewise": True,
        "attention": AttentionSupport(kind="always"),
    }
    return check_route(max_num_seqs=max_num_seqs, num_speculative_tokens=k, **given | options)


def make_tables(capture_limit: int = 40, **options: Any) -> CostTables:
    limits = {"max_num_reqs": 8, "max_num_tokens": 128, "overhead_ms": 0.1} | options
    return build_cost_tables([(1, 0.2), (8, 0.4)], VERIFY, capture_limit=capture_limit, **limits)


def exact(cost_ms: float) -> StepPrice:
    return StepPrice(cost_ms=pytest.approx(cost_ms), is_upper_bound=False, is_extrapolated=False)


def prices(checked: RouteCheck) -> dict[str, StepPrice | None]:
    return {choice.change: choice.step.price for choice in checked.choices}


def codes(checked: RouteCheck) -> list[str]:
    return [finding.code for finding in checked.findings]


def test_42_is_past_40() -> None:
    checked = check(capture_limit=40)
    assert checked.full_batch.route.mode == "eager"
    assert checked.full_batch.route.num_tokens == 42
    assert checked.eager_from_num_reqs == 6
    assert codes(checked) == ["past-capture-limit"]
    assert checked.findings[0].message.startswith("42 > 40 runs eagerly")
    fitting = {
        choice.change: (choice.step.num_reqs, choice.step.num_speculative_tokens, choice.step.draft_budget)
        for choice in checked.choices
    }
    assert fitting == {
        "draft-budget": (6, 6, 34),
        "num-speculative-tokens": (6, 5, 30),
        "num-reqs": (5, 6, 30),
        "capture-limit": (6, 6, 36),
    }
    assert checked.crossing is checked.full_batch.price is checked.context_len is None


def test_a_full_batch_at_the_limit_replays() -> None:
    checked = check(capture_limit=42)
    assert checked.full_batch.route.mode == "graph"
    assert (checked.eager_from_num_reqs, checked.choices, checked.findings) == (None, (), ())


class TestSizesThatAreGiven:
    def test_a_batch_replays_the_smallest_that_holds_it(self) -> None:
        checked = check(capture_sizes=[64, 1])
        assert (checked.full_batch.route.padded_tokens, checked.full_batch.route.mode) == (64, "graph")
        assert (checked.capture_limit, checked.capture_limit_from, checked.capture_sizes_from) == (64, "given", "given")
        assert checked.findings[0].message.startswith("42 tokens replay the graph of 64")

    def test_the_price_is_of_the_size_that_is_replayed(self) -> None:
        """The tables hold graphs of 64 and 128 tokens: an engine without one of 64 runs at 128."""
        tables = make_tables(capture_limit=128)
        assert check(capture_sizes=[1, 128], tables=tables).full_batch.price == exact(12.0 + 0.4 + 0.1)
        assert (
            check(capture_sizes=[1, 64, 128], tables=tables).full_batch.price == check(tables=tables).full_batch.price
        )

    def test_what_would_fit_is_of_these_sizes(self) -> None:
        checked = check(capture_sizes=[16, 32], tables=make_tables())
        routes = {choice.change: choice.step.route.padded_tokens for choice in checked.choices}
        assert routes == {"draft-budget": 32, "num-speculative-tokens": 32, "num-reqs": 32, "capture-limit": 42}

    @pytest.mark.parametrize("sizes", [[], [0, 1], [1, 2**21]])
    def test_that_are_none(self, sizes: list[int]) -> None:
        with pytest.raises(ConfigError, match="the capture sizes hold"):
            check(capture_sizes=sizes)

    def test_beside_a_limit(self) -> None:
        with pytest.raises(ConfigError, match="expected one of them"):
            check(capture_sizes=[1], capture_limit=1)


def test_the_limit_is_vllms_unless_given_or_in_the_tables() -> None:
    for max_num_seqs, k in ((6, 6), (128, 7), (1, 1)):
        checked = check(max_num_seqs, k)
        assert checked.capture_limit == default_capture_sizes(max_num_seqs, k)[-1]
        assert checked.capture_limit_from == "vllm"
    assert check(128, 7).full_batch.route.mode == "eager"
    assert (check(tables=make_tables()).capture_limit, check(tables=make_tables()).capture_limit_from) == (40, "tables")
    lowered = check(tables=make_tables(), capture_limit=36)
    assert (lowered.capture_limit, lowered.capture_limit_from) == (36, "given")


def test_padding_is_told() -> None:
    checked = check(5, 6, tables=make_tables())
    assert checked.full_batch.route.padded_tokens == 40
    assert codes(checked) == ["padding"]
    assert "5 of its tokens (12.5%)" in checked.findings[0].message
    assert codes(check(4, 9, tables=make_tables())) == []  # 40 of 40
    assert check(6, 6).full_batch.route.padded_tokens == 48  # vLLM captures 8, 16, 24, ... and 7, 14, 28, 56


def test_more_requests_than_the_limit_run_eagerly_whatever_is_trimmed() -> None:
    checked = check(50, 6, capture_limit=40)
    assert codes(checked) == ["past-capture-limit", "requests-past-capture-limit"]
    assert [choice.change for choice in checked.choices] == ["num-reqs", "capture-limit"]
    assert checked.crossing is None


def test_one_request_past_the_limit() -> None:
    checked = check(1, 6, capture_limit=5)
    assert checked.eager_from_num_reqs == 1
    assert checked.findings[0].message.endswith("at K = 6 so is every one")
    assert [choice.change for choice in checked.choices] == ["draft-budget", "num-speculative-tokens", "capture-limit"]


@given(st.integers(1, 300), st.integers(1, 20), st.integers(1, 2000))
def test_choices_fit_and_one_more_would_not(max_num_seqs: int, k: int, limit: int) -> None:
    checked = check(max_num_seqs, k, capture_limit=limit)
    full = max_num_seqs * (1 + k)
    assert (checked.full_batch.route.mode == "graph") == (full <= limit) == (not checked.choices)
    assert checked.capture_limit == limit
    if checked.eager_from_num_reqs is not None:
        assert (checked.eager_from_num_reqs - 1) * (1 + k) <= limit < checked.eager_from_num_reqs * (1 + k)
        assert checked.eager_from_num_reqs <= max_num_seqs
    for choice in checked.choices:
        step = choice.step
        assert step.route.mode == "graph"
        assert step.route.num_tokens == step.num_reqs + step.draft_budget <= full
        assert step.draft_budget <= step.num_reqs * step.num_speculative_tokens
        match choice.change:
            case "draft-budget":
                assert step.route.num_tokens == limit
            case "num-speculative-tokens":
                assert step.route.num_tokens <= limit < step.num_reqs * (2 + step.num_speculative_tokens)
            case "num-reqs":
                assert step.num_reqs + 1 == checked.eager_from_num_reqs
            case "capture-limit":
                assert step.route.num_tokens == step.route.padded_tokens == full


class TestPrices:
    def test_eager_against_the_largest_captured_size(self) -> None:
        checked = check(tables=make_tables())
        draft_ms = 0.4  # up to 8 requests; captured sizes pad
        assert checked.full_batch.price == exact(draft_ms + 9.0 + 0.1)
        assert prices(checked) == {
            "draft-budget": exact(draft_ms + 3.7 + 0.1),
            "num-speculative-tokens": exact(draft_ms + 3.7 + 0.1),
            "num-reqs": exact(draft_ms + 3.7 + 0.1),
            "capture-limit": None,  # no graph of 42 was measured
        }
        assert checked.crossing is not None
        assert checked.crossing.extra_ms == pytest.approx(5.3)
        assert checked.crossing.extra_share == pytest.approx(5.3 / 4.2)
        assert not checked.crossing.is_upper_bound

    def test_a_lower_limit_than_the_tables_has_a_bound_alone(self) -> None:
        """Eager steps were measured past 64 tokens; what 42 cost eagerly is at most that."""
        checked = check(tables=make_tables(capture_limit=64), capture_limit=40)
        assert checked.full_batch.price is not None
        assert checked.full_batch.price.is_upper_bound
        assert checked.full_batch.price.cost_ms == pytest.approx(0.4 + 12.0 + 0.1)
        assert prices(checked)["draft-budget"] == exact(0.4 + 3.7 + 0.1)
        raised = prices(checked)["capture-limit"]
        assert raised is not None
        assert (raised.cost_ms, raised.is_upper_bound) == (pytest.approx(0.4 + 9.0 + 0.1), True)  # replays 64
        assert checked.crossing is not None
        assert checked.crossing.is_upper_bound

    def test_between_two_bounds_there_is_no_difference(self) -> None:
        checked = check(tables=make_tables(capture_limit=64), capture_limit=36)  # 36 would replay 40
        trimmed = prices(checked)["draft-budget"]
        assert trimmed is not None
        assert trimmed.is_upper_bound
        assert checked.crossing is None

    def test_a_higher_limit_than_the_tables(self) -> None:
        with pytest.raises(CoverageError, match="a graph of 50 tokens: these tables hold graphs up to 40"):
            check(tables=make_tables(), capture_limit=50)
        assert check(5, 6, tables=make_tables(), capture_limit=50).full_batch.price == exact(0.4 + 3.7 + 0.1)

    def test_extrapolated_costs_are_marked(self) -> None:
        verify = build_cost_tables(
            [(8, 0.4)], VERIFY[:-1], max_num_reqs=8, max_num_tokens=128, capture_limit=40, overhead_ms=0.1
        )
        checked = check(8, 8, tables=verify)  # 72 tokens, past the last point
        assert checked.full_batch.price is not None
        assert checked.full_batch.price.is_extrapolated
        drafts = build_cost_tables([(1, 0.2), (4, 0.3)], VERIFY, max_num_reqs=8, max_num_tokens=128, capture_limit=40)
        assert drafts.draft_source[0, 6] == Source.EXTRAPOLATED
        assert all(price.is_extrapolated for price in prices(check(tables=drafts)).values() if price is not None)

    def test_the_host_is_charged_by_requests(self) -> None:
        import msgspec

        tables = msgspec.structs.replace(
            make_tables(),
            overhead_ms=np.arange(9) / 8,
            overhead_source=np.array([Source.MEASURED] * 6 + [Source.EXTRAPOLATED] * 3, dtype=np.uint8),
        )
        checked = check(tables=tables)
        assert checked.full_batch.price is not None
        assert checked.full_batch.price.cost_ms == pytest.approx(0.4 + 9.0 + 6 / 8)
        assert checked.full_batch.price.is_extrapolated
        assert prices(checked)["num-reqs"] == exact(0.4 + 3.7 + 5 / 8)

    def test_drafts_between_measured_k(self) -> None:
        tables = with_draft_ks([1, 6], [1.0, 3.5])
        assert check(tables=tables).full_batch.price == exact(3.5 + 9.0 + 0.1)
        assert prices(check(tables=tables))["num-speculative-tokens"] == exact(3.0 + 3.7 + 0.1)

    def test_a_choice_the_tables_lack_is_no_error_and_the_full_batch_is(self) -> None:
        tables = with_draft_ks([6, 7], [1.0, 3.5])
        assert prices(check(tables=tables))["num-speculative-tokens"] is None
        with pytest.raises(CoverageError, match="no draft cost for k = 8"):
            check(5, 8, tables=tables)

    def test_steps_outside_the_tables(self) -> None:
        with pytest.raises(CoverageError, match="9 requests"):
            check(9, 2, tables=make_tables())
        with pytest.raises(CoverageError, match="8 requests with 136 tokens run eagerly: these tables reach 128"):
            check(8, 16, tables=make_tables())
        with pytest.raises(CoverageError, match="reach 40 tokens, with graphs up to 40"):
            check(tables=make_tables(max_num_tokens=40), capture_limit=36)


def with_draft_ks(ks: list[int], ms: list[float]) -> CostTables:
    """The tables with a draft row per k, flat over requests."""
    import msgspec

    shape = (len(ks), 9)
    return msgspec.structs.replace(
        make_tables(),
        draft_ks=ks,
        draft_table_ms=np.broadcast_to(np.array(ms)[:, None], shape).copy(),
        draft_source=np.zeros(shape, dtype=np.uint8),
    )


class TestTablesThatAreReadOtherwise:
    """At most is what padded tables charge: the next larger size."""

    @pytest.mark.parametrize(("semantics", "verify_ms"), [("padded", 9.0), ("linear", 3.7 + 5.3 / 3), ("floor", 3.7)])
    def test_a_replay_at_a_size_that_was_not_measured(self, semantics: Semantics, verify_ms: float) -> None:
        checked = check(tables=make_tables(capture_limit=64, semantics=semantics), capture_sizes=[1, 48])
        price = checked.full_batch.price
        assert price is not None
        assert price.cost_ms == pytest.approx(verify_ms + 0.4 + 0.1)
        assert price.is_upper_bound == (semantics == "padded")

    @pytest.mark.parametrize("semantics", ["linear", "floor"])
    def test_an_eager_step_within_their_limit_has_no_cost_in_them(self, semantics: Semantics) -> None:
        with pytest.raises(CoverageError, match=f"run eagerly: these tables .{semantics}. hold replays") as raised:
            check(tables=make_tables(capture_limit=64, semantics=semantics), capture_limit=40)
        assert "--semantics padded" in raised.value.hint


@pytest.mark.parametrize("limit", [-1, 2**20 + 1])
def test_limits_that_cannot_be_meant_are_refused(limit: int) -> None:
    with pytest.raises(ConfigError, match=f"the capture limit is {limit} tokens"):
        check(capture_limit=limit)


def test_without_graphs_there_is_no_adaptive_verification() -> None:
    with pytest.raises(InfeasibleError, match="nothing is captured"):
        check(capture_limit=0)
    with pytest.raises(InfeasibleError, match="nothing is captured") as caught:
        check(tables=make_tables(capture_limit=0))
    assert "80 tokens" in caught.value.hint


def test_a_larger_size_bounds_nothing_where_costs_may_fall() -> None:
    """Not even the nearest: 16 tokens cost less than 8 here."""
    tables = build_cost_tables(
        [(1, 0.3), (4, 0.5)],
        [(4, 2.0), (8, 2.1), (16, 1.6)],
        max_num_reqs=8,
        max_num_tokens=64,
        capture_limit=16,
        monotone="none",
    )
    with pytest.raises(CoverageError, match="monotone: none"):
        check_route(
            max_num_seqs=3,
            num_speculative_tokens=3,
            graph_mode=GraphMode.FULL,
            has_piecewise=True,
            attention=AttentionSupport(kind="always"),
            capture_limit=9,
            tables=tables,
        )


def test_a_limit_that_would_be_refused_is_not_offered() -> None:
    checked = check_route(
        max_num_seqs=1_000_000,
        num_speculative_tokens=7,
        graph_mode=GraphMode.FULL,
        has_piecewise=True,
        attention=AttentionSupport(kind="always"),
    )
    assert "capture-limit" not in {choice.change for choice in checked.choices}
