"""How well the tables predict costs they were not made from."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from specplan.costs.samples import Points
from specplan.files.tables import RegionError

__all__ = ["LEAVE_ONE_OUT", "SPLIT_HALF", "leave_one_out", "split_half", "summarise"]

LEAVE_ONE_OUT = "leave-one-out: each interior size above the capture limit, linear between its neighbours"
SPLIT_HALF = "split-half: tables from the odd repetitions, against medians of the even ones"


def split_half(
    points: Points,
    predict: Callable[[NDArray[np.float64]], NDArray[np.float64]],  # costs [P] -> what tables of them say there [P]
    region: NDArray[np.bool_],  # [P]
) -> RegionError | None:
    """Only points with two repetitions or more can be judged; the others still shape the tables."""
    odd = np.array([np.median(values[0::2]) for values in points.repetitions_ms])
    judged = region & np.array([len(values) >= 2 for values in points.repetitions_ms], dtype=bool)
    even = np.array([np.median(points.repetitions_ms[index][1::2]) for index in np.flatnonzero(judged)])
    return summarise(predict(odd)[judged] / even - 1.0, SPLIT_HALF)


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
