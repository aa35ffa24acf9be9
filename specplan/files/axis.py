"""Where a value lies on an ascending axis: between which two places, and how far along."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["corners", "place_on"]

Place = tuple[int, int, float]


def place_on(axis: Sequence[int] | NDArray[np.float64], value: float) -> Place:
    """The two places around `value`, and how far it is from the first to the second, in [0, 1]; the end where it is
    outside."""
    high = int(np.searchsorted(axis, value))
    if high == 0:
        return 0, 0, 0.0
    if high == len(axis):
        return high - 1, high - 1, 0.0
    return high - 1, high, float((value - axis[high - 1]) / (axis[high] - axis[high - 1]))


def corners(place: Place) -> tuple[tuple[int, float], tuple[int, float]]:
    """Both places with their weights, which sum to 1."""
    low, high, weight = place
    return (low, 1.0 - weight), (high, weight)
