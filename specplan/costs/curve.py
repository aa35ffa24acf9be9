"""A measured curve, cleaned: sizes ascending, one cost each."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specplan.errors import ConfigError

__all__ = ["Curve", "clean_curve"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    sizes: NDArray[np.int64]  # [P], ascending and distinct
    ms: NDArray[np.float64]  # [P], positive


def clean_curve(points: Iterable[tuple[int, float]], *, name: str, axis: str) -> Curve:
    """`points` in any order, several of one size counting with their median; `name` and `axis` are for the errors."""
    costs: dict[int, list[float]] = {}
    free = "; pass None for a drafter that costs nothing" if name == "draft" else ""
    for index, point in enumerate(points):
        size, ms = _check_point(point, f"{name} curve point {index}", axis, free)
        costs.setdefault(size, []).append(ms)
    if not costs:
        raise ConfigError(f"the {name} curve is empty", f"give at least one ({axis}, ms) point{free}")
    sizes = sorted(costs)
    return Curve(
        sizes=np.array(sizes, dtype=np.int64),
        ms=np.array([np.median(costs[size]) for size in sizes], dtype=np.float64),
    )


def _check_point(point: tuple[int, float], place: str, axis: str, free: str) -> tuple[int, float]:
    try:
        size, ms = operator.index(point[0]), float(point[1])
    except (TypeError, ValueError, IndexError) as error:
        raise ConfigError(f"{place}: expected ({axis}, ms), got {point!r}", "give sizes and costs") from error
    if size < 1:
        raise ConfigError(f"{place}: expected {axis} of 1 or more, got {size}", "remove the point")
    if not (np.isfinite(ms) and ms > 0):
        raise ConfigError(
            f"{place} ({axis} {size}): expected a positive finite number of milliseconds, got {ms}",
            f"remove the point, or measure it again{free}",
        )
    return size, ms
