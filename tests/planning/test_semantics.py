"""Readings of one cost table: what a budget makes of each, and what that loses."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import msgspec
import numpy as np
import pytest

from specplan.costs import build_cost_tables
from specplan.errors import ConfigError, CoverageError
from specplan.files import CostTables
from specplan.files.tables import Semantics
from specplan.planning import choose_draft_budget, parse_policy
from specplan.planning.prices import StepPrices, StepSize, VerifyPrices
from specplan.planning.semantics import SemanticsComparison, compare_semantics, rates_of

SEMANTICS: tuple[Semantics, ...] = get_args(Semantics)
STAIRS = [(4, 4.0), (8, 4.2), (16, 6.0), (24, 9.0)]


def reading(semantics: Semantics, *, draft_ms: float = 0.5) -> CostTables:
    return build_cost_tables(
        [(4, draft_ms)], STAIRS, max_num_reqs=4, max_num_tokens=24, capture_limit=16, semantics=semantics
    )


def compared() -> SemanticsComparison:
    return compare_semantics({name: reading(name) for name in SEMANTICS})


@pytest.mark.parametrize(("semantics", "budget"), [("padded", 12), ("linear", 8)])
def test_a_staircase_is_filled_where_a_line_is_not(semantics: Semantics, budget: int) -> None:
    """4 requests, K = 3, every confidence 0.7: a step of 16 costs what one of 9 does."""
    choice = choose_draft_budget(
        np.full((4, 3), 0.7), [3] * 4, num_sampling=4, num_non_draft_tokens=4, draft_ms=0.0,
        verify_ms=reading(semantics).verify_row(4, 0),
    )  # fmt: skip
    survival = np.sort(np.tile(0.7 ** np.arange(1, 4), 4))[::-1]
    tokens = 4 + np.concatenate(([0.0], np.cumsum(survival)))
    assert choice.draft_budget == int(np.argmax(tokens / reading(semantics).verify_ms[4:17]))
    assert choice.draft_budget == budget


def test_planning_by_what_is_run_loses_nothing_and_rounding_down_does() -> None:
    found = compared()
    for name in ("padded", "linear"):
        assert found.over_requests(name, name) == (0.0, 0.0)  # type: ignore[arg-type]
    for planned in SEMANTICS:
        for running in ("padded", "linear"):
            mean, p95 = found.over_requests(planned, running)  # type: ignore[arg-type]
            assert 0 <= mean < 1
            assert 0 <= p95 < 1
    assert found.over_requests("floor", "padded")[0] > 0.005
    assert found == compared()  # drawn, and the same every time


def test_readings_are_compared_at_a_k_that_drafting_was_timed_at() -> None:
    def timed_at(k: int) -> dict[Semantics, CostTables]:
        return {
            name: msgspec.structs.replace(reading(name), num_speculative_tokens=7, draft_ks=[k]) for name in SEMANTICS
        }

    assert compare_semantics(timed_at(3)).num_speculative_tokens == 3
    with pytest.raises(CoverageError, match="k = 0 alone"):
        compare_semantics(timed_at(0))


def test_tables_of_no_more_tokens_than_requests_have_nothing_to_compare() -> None:
    few = {
        name: build_cost_tables([(8, 0.5)], [(4, 4.0), (8, 5.0)], max_num_reqs=8, max_num_tokens=8, semantics=name)
        for name in SEMANTICS
    }
    with pytest.raises(CoverageError, match="no step of theirs has a draft"):
        compare_semantics(few)


def test_rates_are_what_the_budget_rule_maximises() -> None:
    rng = np.random.default_rng(3)
    row = reading("padded").verify_row(4, 0)
    for _ in range(50):
        confidence = rng.random((4, 3)).astype(np.float32)
        choice = choose_draft_budget(
            confidence, [3] * 4, num_sampling=4, num_non_draft_tokens=4, draft_ms=0.5, verify_ms=row
        )
        rates = rates_of(confidence, row, 0.5)
        assert (int(rates.argmax()), float(rates.max())) == (choice.draft_budget, pytest.approx(choice.tokens_per_ms))


@pytest.mark.parametrize("semantics", SEMANTICS)
def test_every_reading_is_written_and_read_back(tmp_path: Path, semantics: Semantics) -> None:
    tables = reading(semantics)
    tables.write(tmp_path / "tables.json")
    again = CostTables.read(tmp_path / "tables.json")
    assert again.semantics == semantics
    assert np.array_equal(again.verify_table_ms, tables.verify_table_ms)
    assert again.to_json() == tables.to_json()
    assert (b"null" in tables.to_json().split(b'"verify_ms"')[1].split(b'"verify_source"')[0]) == (semantics == "exact")


def test_exact_tables_know_the_measured_requests_alone() -> None:
    tables = reading("exact")
    assert np.flatnonzero(np.isfinite(tables.verify_row(4, 0))).tolist() == [4, 8, 16, 24]
    assert not np.isfinite(tables.verify_row(3, 0)).any()
    prices = StepPrices.from_tables(
        VerifyPrices.from_tables(tables, max_num_reqs=4, max_num_tokens=16, num_speculative_tokens=3),
        tables,
        policy=parse_policy("adaptive"),
        num_speculative_tokens=3,
    )
    size = StepSize(num_reqs=4, num_verifying=4, num_sampling=4, num_prompt_tokens=0, context_len=9.0)
    assert np.isfinite(prices.target_row(size, 12)[4:]).tolist() == [t in (4, 8, 16) for t in range(4, 17)]


def test_findings_are_of_the_measurement_not_of_its_reading() -> None:
    codes = [[finding.code for finding in reading(semantics).findings] for semantics in SEMANTICS]
    assert codes[1:] == codes[:1] * 3


def test_a_reading_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="semantics: expected one of padded, linear, exact, floor, got 'ceil'"):
        reading("ceil")  # type: ignore[arg-type]
