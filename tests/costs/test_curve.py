from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplan.costs.curve import clean_curve
from specplan.errors import ConfigError

POSITIVE = "expected a positive finite number of milliseconds"


def test_order_and_duplicates() -> None:
    curve = clean_curve([(8, 5.0), (1, 3.0), (8, 1.0), (1, 1.0), (8, 2.0)], name="verify", axis="num_tokens")
    assert curve.sizes.tolist() == [1, 8]
    assert curve.ms.tolist() == [2.0, 2.0]


def test_an_iterator_of_numpy_numbers_will_do() -> None:
    points = zip(np.array([2, 1]), np.array([1.5, 1.0]), strict=True)
    curve = clean_curve(points, name="verify", axis="num_tokens")
    assert (curve.sizes.tolist(), curve.ms.tolist()) == ([1, 2], [1.0, 1.5])


@given(st.permutations([(1, 1.0), (1, 4.0), (2, 2.0), (5, 3.0), (5, 7.0)]))
def test_order_does_not_matter(points: list[tuple[int, float]]) -> None:
    assert clean_curve(points, name="draft", axis="num_reqs").ms.tolist() == [2.5, 2.0, 5.0]


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([], "the verify curve is empty"),
        ([(1, 1.0), (2, float("nan"))], f"verify curve point 1 (num_tokens 2): {POSITIVE}, got nan"),
        ([(1, float("inf"))], f"verify curve point 0 (num_tokens 1): {POSITIVE}, got inf"),
        ([(1, 0.0)], f"verify curve point 0 (num_tokens 1): {POSITIVE}, got 0.0"),
        ([(4, -1.0)], f"verify curve point 0 (num_tokens 4): {POSITIVE}, got -1.0"),
        ([(0, 1.0)], "verify curve point 0: expected num_tokens of 1 or more, got 0"),
        ([(1.5, 1.0)], "verify curve point 0: expected (num_tokens, ms), got (1.5, 1.0)"),
        ([(1, "fast")], "verify curve point 0: expected (num_tokens, ms), got (1, 'fast')"),
        ([3], "verify curve point 0: expected (num_tokens, ms), got 3"),
    ],
)
def test_a_bad_point_is_named(points: Any, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        clean_curve(points, name="verify", axis="num_tokens")
    assert raised.value.message == message


@pytest.mark.parametrize("points", [[], [(1, 0.0)]])
def test_a_free_drafter_is_said_with_none(points: list[tuple[int, float]]) -> None:
    with pytest.raises(ConfigError) as raised:
        clean_curve(points, name="draft", axis="num_reqs")
    assert raised.value.hint.endswith("; pass None for a drafter that costs nothing")
