"""Step timings in specplan's own plain form: a CSV, JSON lines or a JSON array, one timed step or median a row."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any, Literal, get_args

import msgspec

from specplan.errors import ConfigError, FileError
from specplan.interop.rows import Row, names, read_table, shown
from specplan.interop.timings import Mode, Timing, Timings

__all__ = ["COLUMNS", "Unit", "read_steps"]

Unit = Literal["ms", "us", "s"]
Timed = Literal["verify", "draft", "draft-prefill", "host"]

_BY_TOKENS = ("verify", "draft-prefill")  # what is priced by its tokens
_PER_MS = {"ms": 1.0, "us": 1000.0, "s": 0.001}
COLUMNS = (
    "num_reqs",
    "num_tokens",
    "query_len",
    "context_len",
    "mode",
    "ms",
    "timed",
    "k",
    "feed_len",
    "executed_num_tokens",
    "num_prefilling",
    "num_prompt_tokens",
)


def read_steps(
    path: str | os.PathLike[str],
    *,
    unit: Unit = "ms",
    columns: Mapping[str, str] | None = None,
    where: Mapping[str, Collection[str]] | None = None,
    timing_scope: str | None = None,
) -> Timings:
    """Rows of `num_reqs`, `num_tokens` (or `query_len`, those of each request) and `ms`; see docs/importing.md.

    Args:
        unit: Of the times, whatever their column is called.
        columns: The file's own name of a column, by specplan's.
        where: Rows are kept whose column holds one of these; in every column that is named.
        timing_scope: What lies between start and stop of the clock, which the file does not say.
    """
    named = _named(columns or {})
    rows = read_table(path)
    for name, theirs in (columns or {}).items():
        if theirs not in rows[0].fields:
            raise FileError(
                f"{path}: no column {shown(theirs)}, which is to be {name}; there is {names(rows[0].fields)}",
                f"name one of those: --column {name}=NAME",
            )
    for name in ("num_reqs", "ms"):
        _require(rows[0], named, name)
    return Timings(
        label="step timings",
        timing_scope=timing_scope or "unknown: as whoever timed these steps had it",
        timings=[_timing(row, named, unit) for row in _kept(rows, where or {}, path)],
    )


def _named(columns: Mapping[str, str]) -> dict[str, str]:
    """The file's name of every column, each of which is one thing alone."""
    by_theirs: dict[str, str] = {}
    for name, theirs in columns.items():
        if name not in COLUMNS:
            raise ConfigError(f"there is no column {shown(name)} to map", f"map one of {', '.join(COLUMNS)}")
        if theirs in by_theirs:
            raise ConfigError(
                f"one column, {shown(theirs)}, is to be both {by_theirs[theirs]} and {name}",
                "map it to what it holds alone",
            )
        by_theirs[theirs] = name
    for name in COLUMNS:
        if name in by_theirs and name not in columns:
            raise ConfigError(
                f"one column, {name}, is to be {by_theirs[name]}, and {name} besides",
                f"map {name} to another column, or rename this one in the file",
            )
    return {name: name for name in COLUMNS} | dict(columns)


def _require(row: Row, named: Mapping[str, str], name: str) -> None:
    if named[name] not in row.fields:
        raise FileError(
            f"{row.place}: no column {shown(named[name])}; there is {names(row.fields)}",
            f"where it has another name, map it: --column {name}=NAME",
        )


def _kept(rows: list[Row], where: Mapping[str, Collection[str]], path: str | os.PathLike[str]) -> list[Row]:
    kept = rows
    for column, values in where.items():
        among = kept
        kept = [row for row in among if _text(row.fields.get(column)) in values]
        if not kept:
            there = names(dict.fromkeys(_text(row.fields[column]) for row in among if column in row.fields))
            raise FileError(
                f"{path}: no row has {shown(column)} = {' or '.join(map(shown, values))}; there is {there}",
                f"the columns are {names(rows[0].fields)}",
            )
    return kept


def _text(value: Any) -> str:
    """As a CSV would hold it."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _timing(row: Row, named: Mapping[str, str], unit: Unit) -> Timing:
    def count(name: str, *, least: int = 1) -> int | None:
        return row.count(named[name], least=least) if named[name] in row else None

    timed: Timed = _one_of(row, named["timed"], get_args(Timed), "verify")
    mode: Mode | None = _one_of(row, named["mode"], get_args(Mode), None)
    num_reqs = row.count(named["num_reqs"])
    num_tokens, query_len = count("num_tokens"), count("query_len")
    if query_len is not None:
        if num_tokens not in (None, num_reqs * query_len) and timed in _BY_TOKENS:
            raise FileError(
                f"{row.place}: {shown(named['num_tokens'])} is {num_tokens}, expected {num_reqs} requests x the "
                f"{query_len} of {shown(named['query_len'])}",
                "correct one of them, or leave it out",
            )
        num_tokens = num_reqs * query_len if num_tokens is None else num_tokens
    if num_tokens is None and timed in _BY_TOKENS:
        _require(row, named, "num_tokens")
        num_tokens = row.count(named["num_tokens"])
    return Timing(
        place=row.place,
        model=timed,
        mode=mode,
        num_reqs=num_reqs,
        num_tokens=num_reqs if num_tokens is None else num_tokens,
        executed_num_tokens=count("executed_num_tokens"),
        context_len=row.count(named["context_len"], least=0, most=2**31) if named["context_len"] in row else None,
        k=count("k", least=0) if timed in ("draft", "host") else None,
        feed_len=count("feed_len") if timed == "draft" else None,
        num_prefilling=count("num_prefilling", least=0) or 0,
        num_prompt_tokens=count("num_prompt_tokens", least=0) or 0,
        repetitions_ms=(row.number(named["ms"], most=1e12) / _PER_MS[unit],),
    )


def _one_of(row: Row, name: str, known: tuple[str, ...], absent: Any) -> Any:
    if name not in row:
        return absent
    value = row.value(name)
    if value not in known:
        raise FileError(
            f"{row.place}: {name} is {shown(value)}, expected {', '.join(known)}", "correct it, or map another column"
        )
    return value
