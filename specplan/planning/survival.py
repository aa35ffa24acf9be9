"""P(the first i + 1 drafts of a request are all accepted), from conditional confidences."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specplan.errors import ConfigError

__all__ = ["check_scheduled", "eligible_slots", "survival_probability"]

_SMALLEST_NORMAL = np.finfo(np.float32).tiny


def survival_probability(
    confidence: NDArray[np.floating[Any]],  # [num_reqs, K]
    scheduled: NDArray[np.integer[Any]],  # [num_reqs], <= K
) -> NDArray[np.float32]:  # [num_reqs, K]
    """P(drafts 0..i of a request are all accepted); 0 past what was scheduled.

    s[r, i] = c[r, 0] * ... * c[r, i], multiplied in that order in float32, so that every device agrees to the bit. What
    falls below float32's smallest normal is 0: devices differ in whether they keep subnormals. A confidence that is NaN
    or outside [0, 1] counts as 0.
    """
    check_scheduled(confidence, scheduled)
    with np.errstate(over="ignore", invalid="ignore"):  # a float64 out of float32's range is out of [0, 1] as well
        narrow = confidence.astype(np.float32)
    usable = np.where((narrow >= 0) & (narrow <= 1), narrow, np.float32(0))
    survival = np.zeros_like(usable)
    running = np.ones(len(usable), dtype=np.float32)
    with np.errstate(under="ignore"):
        for i in range(usable.shape[1]):
            running = running * usable[:, i]
            running[running < _SMALLEST_NORMAL] = 0
            survival[:, i] = running
    return np.where(eligible_slots(scheduled, usable.shape[1]), survival, np.float32(0))


def eligible_slots(
    scheduled: NDArray[np.integer[Any]],  # [num_reqs]
    num_positions: int,
) -> NDArray[np.bool_]:  # [num_reqs, num_positions]
    """Which draft slots hold a scheduled draft."""
    return np.arange(num_positions) < scheduled[:, None]


def check_scheduled(slots: NDArray[Any], scheduled: NDArray[np.integer[Any]]) -> None:
    """Refuse a [num_reqs, K] array and a [num_reqs] count of scheduled drafts that do not belong together."""
    if slots.ndim != 2 or scheduled.shape != slots.shape[:1]:
        raise ConfigError(
            f"slots of shape {slots.shape} and scheduled of {scheduled.shape}: expected [num_reqs, K] and [num_reqs]",
            "pass one row of K values and one count of scheduled drafts per request",
        )
    if scheduled.size and (scheduled.min() < 0 or scheduled.max() > slots.shape[1]):
        raise ConfigError(
            f"scheduled drafts run from {scheduled.min()} to {scheduled.max()}, expected 0 to K = {slots.shape[1]}",
            "schedule at most K drafts per request",
        )
