from __future__ import annotations

import numpy as np
import pytest

from specplan.costs.uncertainty import median_half_widths


@pytest.mark.parametrize("count", [2, 3, 20, 21, 200])
def test_it_is_the_bootstrap_of_the_median(count: int) -> None:
    rng = np.random.default_rng(count)
    values = rng.lognormal(0, 0.3, count)
    medians = np.median(values[rng.integers(0, count, (20_000, count))], axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    assert median_half_widths([values])[0] == pytest.approx((high - low) / 2, rel=0.1)


def test_points_of_different_length_together() -> None:
    rng = np.random.default_rng(0)
    wide, narrow = rng.normal(10, 1, 50), rng.normal(10, 0.01, 400)
    widths = median_half_widths([wide, narrow, np.array([3.0])])
    assert widths[0] > 10 * widths[1] > 0
    assert widths[2] == 0.0


def test_the_same_samples_give_the_same_width() -> None:
    values = [np.random.default_rng(0).normal(10, 1, 30)]
    assert median_half_widths(values).tolist() == median_half_widths(values).tolist()
