"""Costs at every measured size for every row, where not every row was measured at every size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specplan.files.tables import Source

__all__ = ["Sheet", "at_capture_sizes", "fill_sheet", "fill_verify_sheet", "hold_impossible"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A cost for every row at every measured size, and where it comes from."""

    sizes: NDArray[np.int64]  # [S], ascending
    ms: NDArray[np.float64]  # [R, S]
    ci_ms: NDArray[np.float64]  # [R, S]
    source: NDArray[np.uint8]  # [R, S] of Source


def fill_sheet(
    row: NDArray[np.int64],  # [P]
    size: NDArray[np.int64],  # [P]
    ms: NDArray[np.float64],  # [P]
    ci_ms: NDArray[np.float64],  # [P]
    *,
    rows: NDArray[np.int64],  # [R], ascending
) -> Sheet:
    """Each size on its own: where a row was not measured, linear between the rows that were. Outside them it costs what
    the nearest of them does, as many times as the two differ at the nearest size that the row was measured at.

    A row's own measurements stand before what others lend it: nothing that is filled in costs more than a larger size
    that was measured in its row, for a running maximum would carry it there.
    """
    sizes = np.unique(size)
    shape = (len(rows), len(sizes))
    filled_ms, filled_ci, source = np.empty(shape), np.empty(shape), np.empty(shape, dtype=np.uint8)
    for column, this in enumerate(sizes):
        at = np.flatnonzero(size == this)
        at = at[np.argsort(row[at])]
        measured = row[at]
        filled_ms[:, column] = np.interp(rows, measured, ms[at])
        filled_ci[:, column] = np.interp(rows, measured, ci_ms[at])
        inside = (rows > measured[0]) & (rows < measured[-1])
        source[:, column] = np.where(inside, Source.INTERPOLATED, Source.EXTRAPOLATED)
        source[np.isin(rows, measured), column] = Source.MEASURED
    _scale_to_own(filled_ms, filled_ci, source)
    own_ms = np.where(source == Source.MEASURED, filled_ms, np.inf)
    dearest = np.minimum.accumulate(own_ms[:, ::-1], axis=1)[:, ::-1]  # of this row's own, from here on
    filled_ms = np.where(source == Source.MEASURED, filled_ms, np.minimum(filled_ms, dearest))
    return Sheet(sizes=sizes, ms=filled_ms, ci_ms=filled_ci, source=source)


def _scale_to_own(
    ms: NDArray[np.float64],  # [R, S], changed in place, as is ci_ms
    ci_ms: NDArray[np.float64],  # [R, S]
    source: NDArray[np.uint8],  # [R, S] of Source
) -> None:
    """What rows hold of others, by what they cost of those where both were measured."""
    is_own = source == Source.MEASURED
    for r, own in enumerate(is_own):
        for column in np.flatnonzero(source[r] == Source.EXTRAPOLATED):
            lenders = np.flatnonzero(is_own[:, column])
            lender = lenders[np.argmin(np.abs(lenders - r))]
            both = np.flatnonzero(own & is_own[lender])
            if len(both):
                at = both[np.argmin(np.abs(both - column))]
                ms[r, column] *= ms[r, at] / ms[lender, at]
                ci_ms[r, column] *= ms[r, at] / ms[lender, at]


def fill_verify_sheet(
    row: NDArray[np.int64],  # [P], requests
    size: NDArray[np.int64],  # [P], tokens
    ms: NDArray[np.float64],  # [P]
    ci_ms: NDArray[np.float64],  # [P]
    *,
    rows: NDArray[np.int64],  # [R], ascending
    capture_limit: int,
    is_floor: bool = False,
    is_lent: NDArray[np.bool_] | None = None,  # [P]: by another context, and extrapolated; None: none is
) -> Sheet:
    """As `fill_sheet`, of a verify pass: the most tokens differ from row to row, and above the limit so do the sizes.

    Above the limit, where nothing pads, a size within a row's own lies on the line between its own. Past its own last a
    row goes on as the next larger one does, as much cheaper as it is there: of 32 requests no step has 33 x (1 + K)
    tokens, and one of 33 lies between the two rows. `is_floor`: not on the line, but at what the size below costs.
    """
    measured_rows = np.unique(row)
    sheet = fill_sheet(row, size, ms, ci_ms, rows=measured_rows)
    filled, source = sheet.ms, sheet.source
    smooth = sheet.sizes > capture_limit
    for r in range(len(measured_rows) - 1, -1, -1):
        own = source[r] == Source.MEASURED
        last = np.flatnonzero(own)[-1]
        between = smooth & ~own & (np.arange(len(own)) < last)
        if between.any() and (own & smooth).any():
            x = sheet.sizes[own & smooth]
            at = sheet.sizes[between]
            if is_floor:
                at = x[np.maximum(np.searchsorted(x, at, side="right") - 1, 0)]
            filled[r, between] = np.interp(at, x, filled[r, own & smooth])
            sheet.ci_ms[r, between] = np.interp(at, x, sheet.ci_ms[r, own & smooth])
            has_smaller = np.arange(len(own)) > np.flatnonzero(own)[0]
            source[r, between] = np.where(has_smaller, Source.INTERPOLATED, Source.EXTRAPOLATED)[between]
        beyond = np.arange(len(own)) > last
        if r + 1 < len(measured_rows):
            cheaper_ms = filled[r + 1, last] - filled[r, last]
            filled[r, beyond] = np.maximum(filled[r + 1, beyond] - cheaper_ms, filled[r, last])
            sheet.ci_ms[r, beyond] = sheet.ci_ms[r + 1, beyond]
            source[r, beyond] = Source.EXTRAPOLATED
    if is_lent is not None:
        source[np.searchsorted(measured_rows, row[is_lent]), np.searchsorted(sheet.sizes, size[is_lent])] = (
            Source.EXTRAPOLATED
        )
    return _of_rows(sheet, measured_rows, rows)


def _of_rows(sheet: Sheet, own: NDArray[np.int64], rows: NDArray[np.int64]) -> Sheet:
    """Of others than the sheet's `own` rows: linear between them, held outside."""
    if np.array_equal(own, rows):
        return sheet
    above = np.minimum(np.searchsorted(own, rows), len(own) - 1)
    is_own = own[above] == rows
    below = np.where(is_own, above, np.maximum(above - 1, 0))
    worst = np.maximum(sheet.source[below], sheet.source[above])
    more = np.where(is_own, Source.MEASURED, Source.INTERPOLATED)
    return Sheet(
        sizes=sheet.sizes,
        ms=_interpolated(rows, own, sheet.ms.T).T,
        ci_ms=_interpolated(rows, own, sheet.ci_ms.T).T,
        source=np.maximum(worst, more[:, None]).astype(np.uint8),
    )


def hold_impossible(sheet: Sheet, rows: NDArray[np.int64]) -> Sheet:
    """A pass of n requests has n tokens or more. Fewer are read where batches between two rows have them: they cost as
    much more as the next smaller row than n tokens do, and never more than those.

    Filled from smaller batches alone, noise in them would be carried up by a running maximum.
    """
    first = np.minimum(np.searchsorted(sheet.sizes, rows), len(sheet.sizes) - 1)[:, None]
    column = np.maximum(np.arange(len(sheet.sizes)), first)  # [R, S]
    held = column > np.arange(len(sheet.sizes))
    ms = np.take_along_axis(sheet.ms, column, 1)
    for r in range(1, len(rows)):
        start = int(first[r, 0])
        dearer_ms = ms[r, start] - ms[r - 1, start]
        ms[r, :start] = np.minimum(ms[r - 1, :start] + max(dearer_ms, 0.0), ms[r, start])
    return Sheet(
        sizes=sheet.sizes,
        ms=ms,
        ci_ms=np.take_along_axis(sheet.ci_ms, column, 1),
        source=np.maximum(
            np.take_along_axis(sheet.source, column, 1), np.where(held, Source.PADDED, Source.MEASURED)
        ).astype(np.uint8),
    )


def at_capture_sizes(sheet: Sheet, capture_sizes: Sequence[int]) -> Sheet:
    """The sheet of an engine that captures these sizes, from replays that were timed at others, unpadded: linear
    between those, held outside them. Sizes above the largest are kept, and all that a sheet without replays has.
    """
    captured = np.array(capture_sizes)
    replayed, above = sheet.sizes <= captured[-1], sheet.sizes > captured[-1]
    x = sheet.sizes[replayed]
    if not len(x):
        return sheet
    measured, outside = np.isin(captured, x), (captured < x[0]) | (captured > x[-1])
    own = np.where(measured, Source.MEASURED, np.where(outside, Source.EXTRAPOLATED, Source.INTERPOLATED))
    after = np.minimum(np.searchsorted(x, captured), len(x) - 1)
    before = np.where(measured, after, np.maximum(after - 1, 0))
    of_sheet = sheet.source[:, replayed]
    worst = np.maximum(of_sheet[:, before], of_sheet[:, after])
    return Sheet(
        sizes=np.concatenate([captured, sheet.sizes[above]]),
        ms=np.concatenate([_interpolated(captured, x, sheet.ms[:, replayed]), sheet.ms[:, above]], 1),
        ci_ms=np.concatenate([_interpolated(captured, x, sheet.ci_ms[:, replayed]), sheet.ci_ms[:, above]], 1),
        source=np.concatenate([np.maximum(worst, own), sheet.source[:, above]], 1).astype(np.uint8),
    )


def _interpolated(
    at: NDArray[np.int64],  # [A]
    x: NDArray[np.int64],  # [S]
    values: NDArray[np.float64],  # [R, S]
) -> NDArray[np.float64]:  # [R, A]
    return np.array([np.interp(at, x, row) for row in values])
