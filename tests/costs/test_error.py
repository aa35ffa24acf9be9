from __future__ import annotations

import numpy as np
import pytest

from specplan.costs.error import leave_one_out, split_half, summarise
from specplan.costs.samples import Points


def test_summary() -> None:
    error = summarise(np.array([0.1, -0.3]), "by hand")
    assert error is not None
    assert (error.mape, error.bias, error.points, error.method) == (
        pytest.approx(0.2),
        pytest.approx(-0.1),
        2,
        "by hand",
    )
    assert error.p95 == pytest.approx(0.29)
    assert summarise(np.array([]), "by hand") is None


def test_leave_one_out_predicts_interior_sizes_above_the_limit_from_their_neighbours() -> None:
    sizes, ms = np.array([1, 8, 10, 12, 20]), np.array([9.0, 1.0, 4.0, 3.0, 7.0])
    errors = leave_one_out(sizes, ms, capture_limit=1)
    assert errors.tolist() == [2.0 / 4.0 - 1, pytest.approx((4.0 + 3.0 * 2 / 10) / 3.0 - 1)]


@pytest.mark.parametrize("limit", [10, 12, 20])
def test_nothing_to_leave_out(limit: int) -> None:
    assert len(leave_one_out(np.array([1, 10, 12, 20]), np.ones(4), capture_limit=limit)) == 0


def test_split_half_builds_on_the_earlier_and_judges_on_the_later_half() -> None:
    points = Points(
        page=np.zeros(3, dtype=np.int64),
        row=np.ones(3, dtype=np.int64),
        size=np.array([1, 2, 4]),
        repetitions_ms=(np.array([2.0, 1.0]), np.array([3.0]), np.array([1.0, 1.0, 4.0])),
    )
    seen: list[list[float]] = []

    def predict(ms: np.ndarray) -> np.ndarray:
        seen.append(ms.tolist())
        return 2 * ms

    error = split_half(points, predict, np.array([True, True, True]))
    assert seen == [[2.0, 3.0, 1.0]]
    assert error is not None
    assert (error.points, error.mape, error.bias) == (2, pytest.approx((3.0 + 0.5) / 2), pytest.approx((3.0 - 0.5) / 2))
    assert split_half(points, predict, np.array([False, True, False])) is None
