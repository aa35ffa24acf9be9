"""Arrays of costs in JSON files: what they may hold, and how they are written and read."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

__all__ = [
    "LEGEND",
    "LETTERS",
    "Source",
    "check_axis",
    "check_grid",
    "check_length",
    "check_table",
    "decode_array",
    "encode_array",
]


class Source(IntEnum):
    """Where a cell comes from, worse the higher. A file holds the letter, a table in memory the number."""

    MEASURED = 0
    PADDED = 1
    INTERPOLATED = 2
    EXTRAPOLATED = 3
    UNMEASURED = 4  # no cost at all: infinite in memory, null in a file


LEAST_MS: Final = 1e-6  # a nanosecond: no step, and far from where ratios overflow
MOST_MS: Final = 1e9  # eleven days: no step, and far from where sums of steps overflow
LETTERS: Final = "mpixu"
LEGEND: Final = {letter: source.name.lower() for letter, source in zip(LETTERS, Source, strict=True)}


def check_axis(place: str, axis: Sequence[int], *, least: int) -> None:
    if not axis:
        raise ValueError(f"{place}: expected at least one entry, got none")
    for index, value in enumerate(axis):
        if value < least:
            raise ValueError(f"{place}[{index}]: expected at least {least}, got {value}")
        least = value + 1


def check_length(place: str, row: NDArray[np.float64], most: int, unit: str) -> None:
    if row.shape != (most + 1,):
        raise ValueError(f"{place}: expected {most + 1} cells, for 0 to {most} {unit}, got shape {list(row.shape)}")


def check_table(
    name: str,
    rows: tuple[int, ...],
    ms: NDArray[np.float64],
    source: NDArray[np.uint8] | None,
    ci_ms: NDArray[np.float64] | None,
    *,
    positive: bool,
) -> None:
    if ms.ndim != len(rows) + 1 or ms.shape[:-1] != rows or ms.shape[-1] < 2:
        raise ValueError(f".{name}_ms: expected shape {list(rows)} and two or more cells a row, got {list(ms.shape)}")
    for place, array in ((f".{name}_source", source), (f".{name}_ci_ms", ci_ms)):
        if array is not None and array.shape != ms.shape:
            raise ValueError(f"{place}: expected shape {list(ms.shape)}, got {list(array.shape)}")
    unmeasured = None if source is None else source == Source.UNMEASURED
    _check_costs(f"{name}_", ms, ci_ms, positive=positive, unmeasured=unmeasured)
    if source is not None:
        source.setflags(write=False)


def check_grid(
    shape: tuple[int, ...],
    ms: NDArray[np.float64],
    ci_ms: NDArray[np.float64],
) -> None:
    for name, array in (("ms", ms), ("ci_ms", ci_ms)):
        if array.shape != shape:
            raise ValueError(f".{name}: expected shape {list(shape)}, as the axes say, got {list(array.shape)}")
    _check_costs("", ms, ci_ms, positive=True)


def _check_costs(
    prefix: str,
    ms: NDArray[np.float64],
    ci_ms: NDArray[np.float64] | None,
    *,
    positive: bool,
    unmeasured: NDArray[np.bool_] | None = None,
) -> None:
    bad = ~np.isfinite(ms) | ((ms < LEAST_MS) if positive else (ms < 0)) | (ms > MOST_MS)
    if unmeasured is not None:
        bad = np.where(unmeasured, ms != np.inf, bad)
    _refuse_cells(f".{prefix}ms", ms, bad, "a positive" if positive else "a non-negative")
    ms.setflags(write=False)
    if ci_ms is not None:
        _refuse_cells(f".{prefix}ci_ms", ci_ms, ~np.isfinite(ci_ms) | (ci_ms < 0), "a non-negative")
        ci_ms.setflags(write=False)


def _refuse_cells(place: str, array: NDArray[np.float64], bad: NDArray[np.bool_], expected: str) -> None:
    for cell in np.argwhere(bad):
        at = "".join(f"[{index}]" for index in cell)
        value = float(array[tuple(cell)])
        got = "null" if value == np.inf else value
        raise ValueError(f"{place}{at}: expected {expected} number of milliseconds, at most {MOST_MS:g}, got {got}")


def encode_array(array: object) -> Any:
    """Costs as nested lists; sources as one string of letters a row."""
    if not isinstance(array, np.ndarray):
        raise NotImplementedError(f"cannot encode {type(array)}")
    if array.dtype != np.uint8:
        return array.tolist() if np.isfinite(array).all() else _nulls(array)
    if array.ndim == 1:
        return "".join(LETTERS[source] for source in array)
    return [encode_array(row) for row in array]


def _nulls(array: NDArray[np.float64]) -> Any:
    if array.ndim > 1:
        return [_nulls(row) for row in array]
    return [None if ms == np.inf else ms for ms in array.tolist()]


def decode_array(type_: Any, value: Any) -> NDArray[Any]:
    sources = get_args(get_args(type_)[1])[0] is np.uint8
    expected: Any = str if sources else float | None
    inner = value
    while isinstance(inner, list):
        expected = list[expected]
        inner = inner[0] if inner else None
    try:
        nested = msgspec.convert(value, expected)
    except msgspec.ValidationError as error:
        text, _, place = str(error).replace("`", "").partition(" - at $")
        raise ValueError(f"{place}: {text[0].lower()}{text[1:]}" if place else text) from error
    return _stack(nested, "", sources)


def _stack(value: Any, place: str, sources: bool) -> NDArray[Any]:
    """Nested lists of equal length as an array; a row of sources is a string."""
    if isinstance(value, str):
        for index, letter in enumerate(value):
            if letter not in LEGEND:
                raise ValueError(f"{place}[{index}]: expected one of {', '.join(LETTERS)}, got {letter!r}")
        return np.array([LETTERS.index(letter) for letter in value], dtype=np.uint8)
    if not (isinstance(value, list) and value and isinstance(value[0], list | str)):
        if sources or not isinstance(value, list):
            return np.array(value, dtype=np.uint8 if sources else np.float64)
        return np.array([np.inf if ms is None else ms for ms in value], dtype=np.float64)
    rows = [_stack(row, f"{place}[{index}]", sources) for index, row in enumerate(value)]
    for index, row in enumerate(rows):
        if row.shape != rows[0].shape:
            raise ValueError(f"{place}[{index}]: expected {rows[0].shape[0]} entries as in [0], got {row.shape[0]}")
    return np.stack(rows)
