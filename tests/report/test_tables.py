"""Cost tables as a person reads them: what the layouts cost, and the lines below the tables."""

from __future__ import annotations

from io import StringIO
from typing import Any

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from specplan.costs import build_cost_tables
from specplan.files import CostTables, RegionError
from specplan.files.mixed_costs import MixedCosts
from specplan.files.tables import LayoutCosts, Source
from specplan.report.tables import layout_tables, mixed_table, tables_report


def make_tables(**changes: Any) -> CostTables:
    built = build_cost_tables(
        [(1, 0.2), (4, 0.4)], [(1, 2.0), (16, 2.4)], max_num_reqs=4, max_num_tokens=16, capture_limit=16
    )
    return msgspec.structs.replace(built, **changes)


def lines(tables: CostTables) -> list[str]:
    return [line for line in tables_report(tables) if isinstance(line, str)]


def layout_costs(context_len: int, num_reqs: int, k: int, batch_expansion_ms: float) -> LayoutCosts:
    return LayoutCosts(
        context_len=context_len,
        num_reqs=num_reqs,
        k=k,
        num_tokens=num_reqs * (1 + k),
        multi_query_ms=2.0,
        multi_query_ci_ms=0.125,
        batch_expansion_ms=batch_expansion_ms,
        batch_expansion_ci_ms=0.125,
    )


def rendered(table: Table) -> list[list[str]]:
    console = Console(width=200, file=StringIO())
    console.print(table)
    shown = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    return [line.strip("│").replace("│", " ").split() for line in shown if line.startswith("│")]


def test_how_many_times_as_long_batch_expansion_takes() -> None:
    costs = [layout_costs(64, 1, 0, 2.25), layout_costs(64, 1, 2, 1.5), layout_costs(64, 4, 1, 5.0)]
    tables = make_tables(num_speculative_tokens=2, layout_costs=[*costs, layout_costs(512, 4, 2, 8.0)])
    short, long = layout_tables(tables)
    title = "Verify step in batch expansion, times as long as multi-query, by requests and drafts per request"
    assert [short.title, long.title] == [f"{title} (context 64)", f"{title} (context 512)"]
    assert rendered(short) == [["1", "1.12~", "-", "0.75"], ["4", "-", "2.50", "-"]]
    assert short.caption == "~ too close to call: the intervals of the two medians overlap"
    assert rendered(long) == [["4", "-", "-", "4.00"]]
    assert long.caption is None


def test_where_one_layout_was_measured_there_is_no_table_of_them() -> None:
    assert list(layout_tables(make_tables())) == []


def test_without_host_or_prefill_there_is_no_line_of_them() -> None:
    assert [line.partition(":")[0] for line in lines(make_tables())] == [
        "held-out error, captured",
        "held-out error, smooth",
        "held-out error, draft",
    ]


def test_mixed_steps_and_their_error() -> None:
    mixed = MixedCosts(
        contexts=[8, 64],
        num_verifying=[0, 4],
        drafts=[0, 7],
        prompt_tokens=[16, 256],
        ms=np.stack([np.full((2, 2, 2), 9.0), np.arange(1.0, 9.0).reshape(2, 2, 2)]),
        ci_ms=np.zeros((2, 2, 2, 2)),
    )
    table = mixed_table(mixed)
    assert "context 64" in str(table.title)
    assert rendered(table) == [["0", "-", "1", "2"], ["4", "0", "5", "6"], ["4", "7", "7", "8"]]
    assert "held-out error, mixed: unknown, too few points to hold any out" in lines(make_tables(mixed=mixed))
    titles = [item.title for item in tables_report(make_tables(mixed=mixed)) if isinstance(item, Table)]
    assert table.title in titles


def test_a_host_time_that_was_given() -> None:
    given = make_tables(overhead_ms=np.full(5, 0.125))
    assert lines(given)[0] == "host time per step: 0.125 ms at 1 request, 0.125 ms at 4"


def test_measured_terms_and_their_error() -> None:
    bare = make_tables()
    source = np.zeros(5, dtype=np.uint8)
    source[4] = Source.EXTRAPOLATED
    measured = make_tables(
        overhead_ms=np.array([0.25, 0.25, 0.3, 0.4, 0.5]),
        overhead_source=source,
        draft_prefill_ms=np.concatenate(([0.0], np.full(15, 0.75), [1.5])),
        draft_prefill_source=np.zeros(17, dtype=np.uint8),
        error=msgspec.structs.replace(
            bare.error, overhead=RegionError(method="halves", mape=0.01, p95=0.02, bias=-0.01, points=4)
        ),
    )
    shown = lines(measured)
    assert shown[:2] == [
        "host time per step: 0.25 ms at 1 request, 0.5* ms at 4 (* rests on extrapolation)",
        "drafter prefill: 0.75 ms at 1 prompt token, 1.5 ms at 16",
    ]
    assert shown[-2:] == [
        "held-out error, host: MAPE 1.0%, p95 2.0%, bias -1.0% over 4 points (halves)",
        "held-out error, drafter prefill: unknown, too few points to hold any out",
    ]


def test_tables_that_are_not_padded_say_how_they_are_read_before_what_was_found() -> None:
    assert not any("these tables are" in line for line in lines(make_tables()))
    for semantics, told in (
        ("linear", "costs what lies between its neighbours"),
        ("floor", "past the last one too, costs what the measured one below it does"),
        ("exact", "has no cost"),
    ):
        (note,) = (line for line in lines(make_tables(semantics=semantics)) if line.startswith("these tables are"))
        assert note.startswith(f"these tables are {semantics}: ")
        assert told in note
        assert "is of padded ones, as an engine runs them" in note
