"""How well the tables predict costs they were not made from."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from specplan.costs.samples import Points
from specplan.files.tables import RegionError

__all__ = ["LEAVE_ONE_OUT", "SPLIT_HALF", "leave_one_out", "split_half", "summarise"]

LEAVE_ONE_OUT = "leave-one-out: each interior size above the capture limit, linear between its neighbours"
SPLIT_HALF = "split-half: tables from the earlier half of the repetitions, against medians of the later half"


def split_half(
    points: Points,
    predict: Callable[[NDArray[np.float64]], NDArray[np.float64]],  # costs [P] -> what tables of them say there [P]
    region: NDArray[np.bool_],  # [P]
) -> RegionError | None:
    """Halved in time, so that drift between visits counts as the error it is.

    Only points with two repetitions or more can be judged; the others still shape the tables.
    """
    halves = [
        np.array_split(values, 2) for values in points.repetitions_ms
    ]  # of one repetition the later half is empty
    judged = region & np.array([len(later) > 0 for _, later in halves], dtype=bool)
    earlier_ms = np.array([np.median(earlier) for earlier, _ in halves])
    later_ms = np.array([np.median(halves[index][1]) for index in np.flatnonzero(judged)])
    return summarise(predict(earlier_ms)[judged] / later_ms - 1.0, SPLIT_HALF)


def leave_one_out(
    sizes: NDArray[np.int64],  # [P], ascending
    ms: NDArray[np.float64],  # [P]
    *,
    capture_limit: int,
) -> NDArray[np.float64]:  # [max(0, points above the limit - 2)], relative errors
    above = sizes > capture_limit
    x, y = sizes[above], ms[above]
    predicted: NDArray[np.float64] = y[:-2] + (y[2:] - y[:-2]) * (x[1:-1] - x[:-2]) / (x[2:] - x[:-2])
    errors: NDArray[np.float64] = predicted / y[1:-1] - 1.0
    return errors


def summarise(errors: NDArray[np.float64], method: str) -> RegionError | None:
    if not len(errors):
        return None
    return RegionError(
        method=method,
        mape=float(np.mean(np.abs(errors))),
        p95=float(np.percentile(np.abs(errors), 95)),
        bias=float(np.mean(errors)),
        points=len(errors),
    )
