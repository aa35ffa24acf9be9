from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplan.costs import build_cost_tables
from specplan.errors import ConfigError, CoverageError
from specplan.files import CostTables

FALLING = [(1, 2.0), (4, 1.5), (8, 3.0)]
STEPPED = [(4, 1.0), (8, 2.0), (12, 8.0), (24, 20.0)]


def build(verify: Any, draft: Any = ((1, 1.0),), **changes: Any) -> CostTables:
    return build_cost_tables(draft, verify, **{"max_num_reqs": 1, "max_num_tokens": 8, **changes})


def codes(tables: CostTables) -> list[str]:
    return [finding.code for finding in tables.findings]


def test_golden_padded_then_smooth() -> None:
    tables = build_cost_tables(
        [(1, 0.5), (4, 1.0)],
        [(4, 1.0), (8, 2.0), (10, 3.0), (12, 4.0)],
        capture_limit=8,
        max_num_tokens=12,
        max_num_reqs=4,
    )
    assert tables.verify_ms.tolist() == [1.0] * 5 + [2.0] * 4 + [3.0, 3.0, 3.5, 4.0]
    assert tables.draft_ms.tolist() == [0.5, 0.5, 1.0, 1.0, 1.0]
    assert "".join(tables.verify_sources(1, 0)) == "ppppmpppmimim"
    assert (tables.capture_sizes, tables.capture_limit) == ([4, 8], 8)
    assert tables.overhead_ms.tolist() == [0.0] * 5
    assert tables.draft_prefill_ms.tolist() == [0.0] * 13
    assert (tables.max_num_reqs, tables.max_num_tokens) == (4, 12)
    assert tables.findings == []


def test_golden_running_max() -> None:
    tables = build(FALLING, capture_limit=8, max_num_tokens=10, monotone="running-max")
    assert tables.verify_ms.tolist() == [2.0, 2.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0, 3.0, 3.25, 3.5]


def test_golden_pad_up() -> None:
    tables = build(FALLING, capture_limit=8, max_num_tokens=10, monotone="pad-up")
    assert tables.verify_ms.tolist() == [1.5, 1.5, 1.5, 1.5, 1.5, 3.0, 3.0, 3.0, 3.0, 3.375, 3.75]


def test_golden_tail() -> None:
    tables = build(STEPPED, capture_limit=8, max_num_tokens=26)
    assert tables.verify_ms[9:14].tolist() == [8.0, 8.0, 8.0, 8.0, 9.0]
    assert tables.verify_ms[26] == 22.0
    assert tables.verify_sources(1, 0)[24:].tolist() == ["m", "x", "x"]
    assert codes(tables) == ["extrapolated"]


@given(st.permutations([*STEPPED, (4, 0.5), (4, 1.5), (12, 8.0)]))
def test_unsorted_and_duplicate_points_give_the_same_tables(points: list[tuple[int, float]]) -> None:
    expected = build(STEPPED, capture_limit=8, max_num_tokens=26)
    assert build(points, capture_limit=8, max_num_tokens=26).verify_ms.tolist() == expected.verify_ms.tolist()


def test_the_limit_is_lowered_to_the_largest_point_below_it() -> None:
    lowered = build(STEPPED, capture_limit=11, max_num_tokens=26)
    assert lowered.verify_ms.tolist() == build(STEPPED, capture_limit=8, max_num_tokens=26).verify_ms.tolist()
    assert lowered.capture_limit == 8
    assert "capture-limit-lowered" in codes(lowered)


def test_no_capture_is_smooth_everywhere() -> None:
    tables = build([(2, 1.0), (6, 3.0)], max_num_tokens=8)
    assert tables.verify_ms.tolist() == [1.0, 1.0, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0]
    assert (tables.capture_sizes, tables.capture_limit) == ([], 0)


def test_a_limit_below_every_point_captures_nothing() -> None:
    tables = build([(2, 1.0), (6, 3.0)], capture_limit=1, max_num_tokens=8)
    assert tables.verify_ms[4] == 2.0
    assert (tables.capture_limit, codes(tables)) == (0, ["capture-limit-lowered", "extrapolated"])


def test_the_draft_has_a_limit_of_its_own() -> None:
    draft = [(2, 1.0), (4, 2.0), (8, 8.0), (16, 16.0)]
    every = build(STEPPED, draft, max_num_reqs=16)
    assert every.draft_ms[[1, 3, 5, 9]].tolist() == [1.0, 2.0, 8.0, 16.0]
    assert every.draft_capture_limit is None
    some = build(STEPPED, draft, max_num_reqs=16, draft_capture_limit=5)
    assert some.draft_ms[[3, 5, 8, 10]].tolist() == [2.0, 8.0, 8.0, 10.0]
    assert some.draft_capture_limit == 4
    none = build(STEPPED, draft, max_num_reqs=16, draft_capture_limit=0)
    assert none.draft_ms[[1, 3, 6]].tolist() == [1.0, 1.5, 5.0]


def test_the_draft_row_holds_for_every_k_and_the_verify_row_for_every_step() -> None:
    tables = build(STEPPED, [(1, 0.5), (4, 1.0)], capture_limit=8, max_num_reqs=4)
    assert tables.draft_row(0).tolist() == tables.draft_row(7).tolist() == tables.draft_ms.tolist()
    assert tables.verify_row(1, 0).tolist() == tables.verify_row(4, 4096).tolist() == tables.verify_ms.tolist()


def test_an_overhead_that_is_given_is_the_same_for_any_requests() -> None:
    tables = build(STEPPED, [(1, 0.5), (4, 1.0)], max_num_reqs=3, overhead_ms=0.1)
    assert tables.overhead_ms.tolist() == [0.1] * 4
    assert tables.overhead_source is tables.overhead_ci_ms is tables.draft_prefill_source is None
    assert codes(tables) == []


def test_a_free_drafter() -> None:
    tables = build(STEPPED, None, max_num_reqs=3)
    assert tables.draft_ms.tolist() == [0.0] * 4
    assert "free-drafter" in codes(tables)


def test_one_point() -> None:
    tables = build([(8, 2.0)], capture_limit=8)
    assert tables.verify_ms.tolist() == [2.0] * 9
    assert codes(tables) == ["one-point-curve"]
    with pytest.raises(CoverageError, match="the verify curve has one point, and 9 was asked for"):
        build([(8, 2.0)], capture_limit=8, max_num_tokens=9)
    with pytest.raises(CoverageError, match="the draft curve has one point, and 2 was asked for"):
        build(STEPPED, [(1, 1.0)], max_num_reqs=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_num_reqs": 0}, "max_num_reqs: expected 1 or more, got 0"),
        ({"max_num_tokens": 2.5}, "max_num_tokens: expected a whole number, got 2.5"),
        ({"capture_limit": -1}, "capture_limit: expected 0 or more, got -1"),
        ({"draft_capture_limit": -1}, "draft_capture_limit: expected 0 or more, got -1"),
        ({"overhead_ms": float("nan")}, "overhead_ms: expected a finite number of 0 or more, got nan"),
        ({"overhead_ms": -1.0}, "overhead_ms: expected a finite number of 0 or more, got -1.0"),
        ({"monotone": "up"}, "monotone: expected one of running-max, pad-up, none, got 'up'"),
    ],
)
def test_arguments(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        build(STEPPED, **changes)
    assert raised.value.message == message


def test_held_out_error_of_the_smooth_region() -> None:
    tables = build([(1, 1.0), (2, 2.0), (3, 3.0), (4, 8.0)])
    assert tables.error.smooth is not None
    assert (tables.error.smooth.points, tables.error.smooth.mape) == (2, pytest.approx((0 + 2 / 3) / 2))
    assert tables.error.captured is None
    assert build(STEPPED, capture_limit=8).error.smooth is None


def test_round_trip(tmp_path: Path) -> None:
    tables = build(STEPPED, capture_limit=8, max_num_tokens=26)
    tables.write(tmp_path / "tables.json")
    again = CostTables.read(tmp_path / "tables.json")
    assert np.array_equal(again.verify_ms, tables.verify_ms)
    assert again.findings == tables.findings


def test_real_curves_are_their_own_points_and_predict_each_other(shared_data: Path) -> None:
    path = shared_data / "costs" / "llmservingsim_rtx4090_llama8b_verify_cost.csv"
    curves: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
    with path.open() as file:
        for row in csv.DictReader(file):
            curves[row["num_requests"], row["context"]].append((int(row["num_tokens"]), float(row["step_ms"])))
    for points in curves.values():
        largest = max(size for size, _ in points)
        for limit in (0, 256):
            tables = build(points, capture_limit=limit, max_num_tokens=largest, monotone="none")
            assert [tables.verify_ms[size] for size, _ in points] == [ms for _, ms in points]
        smooth = build(points, max_num_tokens=largest).error.smooth
        assert smooth is not None
        assert smooth.mape < 0.05
