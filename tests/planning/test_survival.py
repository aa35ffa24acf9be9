from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from specplan.errors import ConfigError
from specplan.planning import survival_probability

TINY = np.finfo(np.float32).tiny
CONFIDENCE = st.one_of(
    st.floats(0, 1, width=32),
    st.sampled_from([0.0, -0.0, 1.0, 1e-20, float(TINY), 1.5, -0.5, math.nan, math.inf, -math.inf, 1e300]),
)


def reference(confidence: list[list[float]], scheduled: list[int]) -> list[list[np.float32]]:
    """The definition, one slot at a time."""
    rows = []
    for values, count in zip(confidence, scheduled, strict=True):
        running, row = np.float32(1), []
        for i, value in enumerate(values):
            usable = np.float32(value) if 0 <= value <= 1 else np.float32(0)
            with np.errstate(under="ignore"):
                running = running * usable
            if running < TINY:
                running = np.float32(0)
            row.append(running if i < count else np.float32(0))
        rows.append(row)
    return rows


@given(st.data(), st.integers(0, 4), st.integers(1, 6))
@settings(max_examples=150, deadline=None)
def test_equals_the_plain_reference(data: st.DataObject, num_reqs: int, k: int) -> None:
    confidence = data.draw(st.lists(st.lists(CONFIDENCE, min_size=k, max_size=k), min_size=num_reqs, max_size=num_reqs))
    scheduled = data.draw(st.lists(st.integers(0, k), min_size=num_reqs, max_size=num_reqs))
    survival = survival_probability(
        np.array(confidence, dtype=np.float64).reshape(num_reqs, k), np.array(scheduled, dtype=np.int32)
    )
    assert survival.dtype == np.float32
    assert np.array_equal(survival, np.array(reference(confidence, scheduled), dtype=np.float32).reshape(num_reqs, k))
    assert (survival[:, 1:] <= survival[:, :-1]).all()


def test_multiplies_position_by_position_in_float32() -> None:
    confidence = np.random.default_rng(0).random((50, 7)).astype(np.float32)
    expected = confidence.copy()
    for i in range(1, 7):
        expected[:, i] = expected[:, i - 1] * confidence[:, i]
    assert np.array_equal(survival_probability(confidence, np.full(50, 7)), expected)
    in_float64 = np.cumprod(confidence.astype(np.float64), axis=1).astype(np.float32)
    assert not np.array_equal(expected, in_float64)


def test_below_the_smallest_normal_is_zero() -> None:
    confidence = np.full((1, 16), 0.001, dtype=np.float32)
    survival = survival_probability(confidence, np.array([16]))[0]
    assert survival[11] > 0
    assert not survival[12:].any()  # 1e-39 would be subnormal


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -0.5, 1.2])
def test_a_bad_confidence_counts_as_zero(bad: float) -> None:
    survival = survival_probability(np.array([[0.5, bad, 0.5], [1.0, 0.5, 1.0]]), np.array([3, 3]))
    assert survival.tolist() == [[0.5, 0, 0], [1, 0.5, 0.5]]


@pytest.mark.parametrize("scheduled", [[4, 0], [-1, 0], [3], [[3, 3]]])
def test_refuses_scheduled_that_does_not_fit(scheduled: NDArray[np.int64]) -> None:
    with pytest.raises(ConfigError, match="scheduled"):
        survival_probability(np.zeros((2, 3)), np.array(scheduled))


def test_the_input_is_left_as_it_is() -> None:
    confidence: NDArray[np.float32] = np.array([[0.5, np.nan]], dtype=np.float32)
    survival_probability(confidence, np.array([1]))
    assert confidence[0, 0] == 0.5
    assert np.isnan(confidence[0, 1])
