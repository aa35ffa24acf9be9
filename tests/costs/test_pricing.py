from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplan.costs.pricing import Rows, plan_row, price_rows, reference_row
from specplan.errors import CoverageError
from specplan.files.tables import Monotone, Semantics, Source

MONOTONE = get_args(Monotone)


def price(
    points: dict[int, float],
    *,
    capture_limit: int,
    max_size: int,
    monotone: Monotone = "none",
    ci_ms: list[float] | None = None,
    source: list[int] | None = None,
    semantics: Semantics = "padded",
) -> Rows:
    sizes = np.array(sorted(points))
    plan = plan_row(sizes, capture_limit=capture_limit, max_size=max_size, name="verify", semantics=semantics)
    ms = np.array([points[size] for size in sizes.tolist()])
    return price_rows(
        plan,
        ms,
        np.zeros(len(ms)) if ci_ms is None else np.array(ci_ms),
        np.array(source or [0] * len(ms), dtype=np.uint8),
        monotone=monotone,
        semantics=semantics,
    )


def letters(rows: Rows) -> str:
    return "".join("mpixu"[source] for source in rows.source)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    sizes = sorted(draw(st.sets(st.integers(1, 30), min_size=2, max_size=8)))
    ms = draw(st.lists(st.floats(0.01, 100), min_size=len(sizes), max_size=len(sizes)))
    # Never one point on either side of the limit: what lies past the last is then an error, tested below.
    limit = draw(st.sampled_from([0, *sizes[1:], sizes[-1] + 5]))
    return {"sizes": sizes, "ms": ms, "limit": limit, "max_size": draw(st.integers(1, 45))}


@settings(max_examples=300)
@given(case=cases(), monotone=st.sampled_from(MONOTONE), semantics=st.sampled_from(get_args(Semantics)))
def test_the_fast_path_equals_the_reference(case: dict[str, Any], monotone: Monotone, semantics: Semantics) -> None:
    rows = price(
        dict(zip(case["sizes"], case["ms"], strict=True)),
        capture_limit=case["limit"],
        max_size=case["max_size"],
        monotone=monotone,
        semantics=semantics,
    )
    expected = reference_row(
        case["sizes"],
        case["ms"],
        capture_limit=case["limit"],
        max_size=case["max_size"],
        monotone=monotone,
        semantics=semantics,
    )
    assert rows.ms.tolist() == expected


@given(case=cases())
def test_running_max_never_falls(case: dict[str, Any]) -> None:
    points = dict(zip(case["sizes"], case["ms"], strict=True))
    rows = price(points, capture_limit=case["limit"], max_size=case["max_size"], monotone="running-max")
    assert np.all(np.diff(rows.ms) >= 0)


@given(case=cases())
def test_pad_up_never_falls_up_to_the_limit_and_is_always_some_measured_cost(case: dict[str, Any]) -> None:
    points = dict(zip(case["sizes"], case["ms"], strict=True))
    rows = price(points, capture_limit=case["limit"], max_size=case["max_size"], monotone="pad-up")
    captured = max((size for size in points if size <= case["limit"]), default=0)
    staircase = rows.ms[: captured + 1]
    assert np.all(np.diff(staircase) >= 0)
    for t, ms in enumerate(staircase.tolist()):
        assert any(size >= t and cost == ms for size, cost in points.items())


def test_rows_are_priced_together_as_one_by_one() -> None:
    plan = plan_row(np.array([1, 4, 8, 12]), capture_limit=4, max_size=15, name="verify")
    ms = np.random.default_rng(0).uniform(1, 2, (2, 3, 4))
    ci_ms, source = ms / 10, np.zeros(ms.shape, dtype=np.uint8)
    for monotone in MONOTONE:
        together = price_rows(plan, ms, ci_ms, source, monotone=monotone)
        alone = price_rows(plan, ms[1, 2], ci_ms[1, 2], source[1, 2], monotone=monotone)
        assert np.array_equal(together.ms[1, 2], alone.ms)
        assert np.array_equal(together.ci_ms[1, 2], alone.ci_ms)
        assert np.array_equal(together.source[1, 2], alone.source)


@pytest.mark.parametrize(
    ("semantics", "cells", "sources"),
    [
        ("padded", [4, 4, 4, 4, 4, 4, 4, 4, 4, 5, 5], "pppppppp" + "m" + "pp"),
        ("linear", [4, 4, 4, 4, 4, 4, 4, 4, 4, 4.125, 4.25], "xxxxxxxx" + "m" + "ii"),
        ("floor", [4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4], "xxxxxxxx" + "m" + "ii"),
        ("exact", [np.inf] * 8 + [4] + [np.inf] * 2, "uuuuuuuu" + "m" + "uu"),
    ],
)
def test_nine_tokens_between_graphs_of_8_and_16(semantics: Semantics, cells: list[float], sources: str) -> None:
    rows = price({8: 4.0, 16: 5.0}, capture_limit=16, max_size=10, semantics=semantics)
    assert rows.ms.tolist() == cells
    assert letters(rows) == sources


def test_past_the_last_size_floor_holds_and_exact_has_nothing() -> None:
    for semantics, expected in (("linear", 6.0), ("floor", 5.0), ("exact", np.inf)):
        rows = price({8: 4.0, 16: 5.0}, capture_limit=16, max_size=24, semantics=semantics)  # type: ignore[arg-type]
        assert rows.ms[24] == expected


def test_sources() -> None:
    points = {2: 1.0, 4: 2.0, 7: 4.0, 9: 5.0}
    assert letters(price(points, capture_limit=4, max_size=11)) == "ppmpmiimimxx"
    assert letters(price(points, capture_limit=0, max_size=11)) == "xxmimiimimxx"


def test_pad_up_marks_what_runs_at_a_larger_size_as_padded() -> None:
    points = {1: 2.0, 4: 1.5, 8: 3.0}
    assert letters(price(points, capture_limit=8, max_size=8, monotone="pad-up")) == "ppppmpppm"
    assert letters(price(points, capture_limit=8, max_size=8, monotone="none")) == "mmppmpppm"


def test_a_cell_is_no_better_than_what_it_rests_on() -> None:
    points = {2: 1.0, 4: 2.0, 6: 3.0, 8: 4.0}
    source = [Source.EXTRAPOLATED, Source.MEASURED, Source.INTERPOLATED, Source.EXTRAPOLATED]
    assert letters(price(points, capture_limit=4, max_size=8, source=list(source))) == "xxxpmiixx"


def test_intervals() -> None:
    rows = price({2: 1.0, 4: 2.0, 8: 4.0}, capture_limit=2, max_size=12, ci_ms=[0.5, 0.25, 0.75])
    assert rows.ci_ms[:5].tolist() == [0.5, 0.5, 0.5, 0.25, 0.25]
    assert rows.ci_ms[6] == 0.5  # between its neighbours
    assert rows.ci_ms[12] == 0.75 + (0.75 + 0.25)  # one span past the last: its own, and the slope's


def test_running_max_carries_the_interval_of_the_cost_that_stands() -> None:
    rows = price({1: 3.0, 2: 2.0}, capture_limit=2, max_size=2, ci_ms=[0.5, 0.25], monotone="running-max")
    assert rows.ci_ms.tolist() == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("monotone", MONOTONE)
def test_a_falling_last_slope_holds_the_last_cost(monotone: Monotone) -> None:
    rows = price({1: 1.0, 4: 5.0, 8: 3.0}, capture_limit=0, max_size=1000, monotone=monotone)
    assert rows.ms[1000] == rows.ms[8]


def test_one_point_above_the_limit_continues_the_captured_slope() -> None:
    rows = price({2: 1.0, 4: 2.0, 8: 7.0}, capture_limit=4, max_size=10)
    assert rows.ms[8:].tolist() == [7.0, 7.5, 8.0]


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ({4: 1.0}, "the verify curve has one point"),
        ({2: 1.0, 4: 2.0}, "the verify curve has one point on either side of the capture limit"),
    ],
)
def test_no_slope_to_continue(points: dict[int, float], message: str) -> None:
    limit = min(points)
    assert price(points, capture_limit=limit, max_size=4).ms[4] == points[4]
    with pytest.raises(CoverageError) as raised:
        price(points, capture_limit=limit, max_size=5)
    assert raised.value.message == f"{message}, and 5 was asked for past its last size 4"
    assert raised.value.hint == "measure a second size, or ask for at most 4"
