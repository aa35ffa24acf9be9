"""From costs at measured sizes to the cost of every size: a staircase up to the capture limit, smooth above it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specplan.errors import CoverageError
from specplan.files.tables import Monotone, Semantics, Source

__all__ = ["RowPlan", "Rows", "plan_row", "price_rows", "reference_row"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """How each cell of a row follows from the measured sizes, whatever was measured there.

    cost[t] = ms[base[t]] + (ms[high[t]] - ms[low[t]]) * steps[t] / span[t]
    """

    num_captured: int
    base: NDArray[np.int64]  # [max_size + 1]
    low: NDArray[np.int64]  # [max_size + 1]
    high: NDArray[np.int64]  # [max_size + 1]
    steps: NDArray[np.float64]  # [max_size + 1]
    span: NDArray[np.float64]  # [max_size + 1]
    source: NDArray[np.uint8]  # [max_size + 1] of Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    ms: NDArray[np.float64]  # [..., max_size + 1]
    ci_ms: NDArray[np.float64]  # [..., max_size + 1]
    source: NDArray[np.uint8]  # [..., max_size + 1] of Source


def plan_row(
    sizes: NDArray[np.int64],  # [P], ascending
    *,
    capture_limit: int,
    max_size: int,
    name: str,
    semantics: Semantics = "padded",
) -> RowPlan:
    """The pricing rule for cells 0..max_size; cell 0 costs what cell 1 costs. `name` is for the error.

    padded: at or below the limit t costs the smallest captured size >= t. Above it, linear between the measured sizes
    above it; up to the first of those, that one's cost; past the last, the last slope goes on.

    linear: as if nothing were captured. floor: t costs the largest measured size <= t, as in engines that round down,
    and what is past the last costs the last. exact: a size costs what it was measured to, however `monotone` would
    have it, or has no cost.
    """
    if semantics == "floor":
        return _floor_row(sizes, max_size)
    if semantics in ("linear", "exact"):
        capture_limit = 0
    size = np.arange(max_size + 1)
    size[0] = 1
    last = len(sizes) - 1
    num_captured = int(np.searchsorted(sizes, capture_limit, side="right"))
    base = np.minimum(np.searchsorted(sizes, size), last)
    low, high = base.copy(), base.copy()
    steps, span = np.zeros(max_size + 1), np.ones(max_size + 1)
    measured = sizes[base] == size
    source = np.full(max_size + 1, Source.PADDED, dtype=np.uint8)
    source[base >= num_captured] = Source.INTERPOLATED if num_captured else Source.EXTRAPOLATED
    source[measured] = Source.MEASURED

    between = ~measured & (base > num_captured) & (size < sizes[last])
    base[between] -= 1
    low[between] -= 1
    steps[between] = (size - sizes[base])[between]
    span[between] = (sizes[high] - sizes[low])[between]
    source[between] = Source.INTERPOLATED

    beyond = size > sizes[last]
    if semantics == "exact":
        source[~measured] = Source.UNMEASURED
    elif beyond.any():
        low[beyond], high[beyond] = _slope_points(sizes, num_captured, max_size, name)
        steps[beyond] = (size - sizes[last])[beyond]
        span[beyond] = (sizes[high] - sizes[low])[beyond]
        source[beyond] = Source.EXTRAPOLATED
    return RowPlan(num_captured=num_captured, base=base, low=low, high=high, steps=steps, span=span, source=source)


def _floor_row(sizes: NDArray[np.int64], max_size: int) -> RowPlan:
    size = np.arange(max_size + 1)
    size[0] = 1
    base = np.maximum(np.searchsorted(sizes, size, side="right") - 1, 0)
    source = np.full(max_size + 1, Source.INTERPOLATED, dtype=np.uint8)
    source[(size > sizes[-1]) | (size < sizes[0])] = Source.EXTRAPOLATED
    source[sizes[base] == size] = Source.MEASURED
    return RowPlan(
        num_captured=0,
        base=base,
        low=base,
        high=base,
        steps=np.zeros(max_size + 1),
        span=np.ones(max_size + 1),
        source=source,
    )


def price_rows(
    plan: RowPlan,
    ms: NDArray[np.float64],  # [..., P]
    ci_ms: NDArray[np.float64],  # [..., P]
    source: NDArray[np.uint8],  # [..., P] of Source
    *,
    monotone: Monotone,
    semantics: Semantics = "padded",
) -> Rows:
    """Rows of cells from rows of costs at the plan's sizes. A cell's source is the worst it rests on."""
    origin = _origin(ms, plan.num_captured, "none" if semantics == "exact" else monotone)
    ms = np.take_along_axis(ms, origin, -1)
    ci_ms = np.take_along_axis(ci_ms, origin, -1)
    # At a captured size that runs cheaper at a larger one, pad-up pads. What a running maximum raises stays what it is:
    # the cost of a smaller size that was measured measures no larger one.
    source = np.maximum(
        np.maximum(np.take_along_axis(source, origin, -1), source if monotone == "running-max" else 0),
        np.where(origin > np.arange(ms.shape[-1]), Source.PADDED, Source.MEASURED).astype(np.uint8),
    )
    base, low, high = ms[..., plan.base], ms[..., plan.low], ms[..., plan.high]
    extrapolated = plan.source == Source.EXTRAPOLATED
    # A falling last slope would make large steps free; hold the last cost instead. findings.py tells of it.
    rise = np.where(extrapolated, np.maximum(high - low, 0.0), high - low)
    cells = base + rise * plan.steps / plan.span
    # Rounding must not carry a cell past the measured point it leads to.
    cells = np.where(extrapolated, cells, np.clip(cells, np.minimum(low, high), np.maximum(low, high)))
    weight = plan.steps / plan.span
    low_ci, high_ci = ci_ms[..., plan.low], ci_ms[..., plan.high]
    cells_ci = ci_ms[..., plan.base] + weight * np.where(extrapolated, high_ci + low_ci, high_ci - low_ci)
    cells_source = np.maximum(plan.source, source[..., plan.base])
    rests_on_high = np.where(plan.steps > 0, source[..., plan.high], Source.MEASURED).astype(np.uint8)
    rows = Rows(ms=cells, ci_ms=np.maximum(cells_ci, 0.0), source=np.maximum(cells_source, rests_on_high))
    return _measured_alone(rows) if semantics == "exact" else rows


def _measured_alone(rows: Rows) -> Rows:
    """The rows without a cell that rests on anything but a measurement of its own."""
    unmeasured = rows.source != Source.MEASURED
    return Rows(
        ms=np.where(unmeasured, np.inf, rows.ms),
        ci_ms=np.where(unmeasured, 0.0, rows.ci_ms),
        source=np.where(unmeasured, Source.UNMEASURED, Source.MEASURED).astype(np.uint8),
    )


def _origin(
    ms: NDArray[np.float64],  # [..., P]
    num_captured: int,
    monotone: Monotone,
) -> NDArray[np.int64]:  # [..., P]
    """The size whose cost stands at each: the dearest so far, the cheapest captured from here on, or its own."""
    own = np.broadcast_to(np.arange(ms.shape[-1]), ms.shape)
    if monotone == "running-max":
        return np.maximum.accumulate(np.where(ms >= np.maximum.accumulate(ms, -1), own, 0), -1)
    if monotone == "pad-up" and num_captured:
        captured = ms[..., :num_captured]
        cheapest = np.minimum.accumulate(captured[..., ::-1], -1)[..., ::-1]
        holder = np.where(captured <= cheapest, own[..., :num_captured], num_captured)
        holder = np.minimum.accumulate(holder[..., ::-1], -1)[..., ::-1]
        return np.concatenate([holder, own[..., num_captured:]], -1)
    return own


def _slope_points(sizes: NDArray[np.int64], num_captured: int, max_size: int, name: str) -> tuple[int, int]:
    """The two sizes whose slope continues past the last: the last two above the limit, else the last two captured."""
    last = len(sizes) - 1
    if last - num_captured >= 1:
        return last - 1, last
    if num_captured >= 2:
        return num_captured - 2, num_captured - 1
    points = "one point" if last == 0 else "one point on either side of the capture limit"
    raise CoverageError(
        f"the {name} curve has {points}, and {max_size} was asked for past its last size {sizes[last]}",
        f"measure a second size, or ask for at most {sizes[last]}",
    )


def reference_row(
    sizes: Sequence[int],  # ascending
    ms: Sequence[float],
    *,
    capture_limit: int,
    max_size: int,
    monotone: Monotone,
    semantics: Semantics = "padded",
) -> list[float]:
    """`plan_row` and `price_rows` for one row, cell by cell as the rule reads; tests hold them equal."""
    captured = [size for size in sizes if size <= capture_limit and semantics == "padded"]
    above = [size for size in sizes if size not in captured]
    cost = dict(zip(sizes, ms, strict=True))
    if monotone == "running-max" and semantics != "exact":
        cost = {size: max(cost[smaller] for smaller in sizes if smaller <= size) for size in sizes}
    if monotone == "pad-up" and semantics != "exact":
        cost |= {size: min(cost[larger] for larger in captured if larger >= size) for size in captured}

    def cell(t: int) -> float:
        if t in cost:
            return cost[t]
        if semantics == "exact":
            return math.inf
        if semantics == "floor":
            return cost[max((size for size in sizes if size <= t), default=sizes[0])]
        if captured and t <= captured[-1]:
            return cost[min(size for size in captured if size >= t)]
        if above and t <= above[0]:
            return cost[above[0]]
        if above and t <= above[-1]:
            high = min(size for size in above if size >= t)
            low = max(size for size in above if size < t)
            blend = cost[low] + (cost[high] - cost[low]) * (t - low) / (high - low)
            return sorted((cost[low], blend, cost[high]))[1]  # rounding must not carry it outside the two
        low, high = (above if len(above) >= 2 else captured)[-2:]
        return cost[sizes[-1]] + max(cost[high] - cost[low], 0.0) * (t - sizes[-1]) / (high - low)

    cells = [cell(t) for t in range(1, max_size + 1)]
    return [cells[0], *cells]
