"""How sure a median is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["median_half_widths"]

_RESAMPLES = 1000
_SEED = 0


def median_half_widths(
    samples: Sequence[NDArray[np.float64]],  # [P] of [repetitions]
) -> NDArray[np.float64]:  # [P]
    """Half-width of the bootstrap 95% interval of each median: (97.5th - 2.5th percentile of resampled medians) / 2.

    Resampling n values with replacement draws n uniform ranks, and a resample's median is their middle order
    statistic: U_(m) ~ Beta(m, n - m + 1), and the one after it is the least of the n - m that are left. Drawing those
    two costs the same for 20 repetitions and for 20,000.
    """
    count = np.array([len(values) for values in samples])[:, None]
    start = np.cumsum(count)[:, None] - count
    ordered = np.concatenate([np.sort(values) for values in samples])
    rng = np.random.default_rng(_SEED)
    shape = (len(samples), _RESAMPLES)
    middle = (count + 1) // 2
    lower = rng.beta(middle, count - middle + 1, size=shape)
    least_of_rest = 1.0 - rng.random(shape) ** (1.0 / np.maximum(count - middle, 1))
    upper = np.where(count % 2 == 1, lower, lower + (1.0 - lower) * least_of_rest)
    lower_rank, upper_rank = (np.minimum((rank * count).astype(np.int64), count - 1) for rank in (lower, upper))
    medians = (ordered[start + lower_rank] + ordered[start + upper_rank]) / 2.0
    low, high = np.percentile(medians, [2.5, 97.5], axis=1)
    half: NDArray[np.float64] = (high - low) / 2.0
    return half
