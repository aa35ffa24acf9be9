"""Cost tables as a person reads them: the lines below the two tables."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from specplan.costs import build_cost_tables
from specplan.files import CostTables, RegionError
from specplan.files.tables import Source
from specplan.report.tables import tables_report


def make_tables(**changes: Any) -> CostTables:
    built = build_cost_tables(
        [(1, 0.2), (4, 0.4)], [(1, 2.0), (16, 2.4)], max_num_reqs=4, max_num_tokens=16, capture_limit=16
    )
    return msgspec.structs.replace(built, **changes)


def lines(tables: CostTables) -> list[str]:
    return [line for line in tables_report(tables) if isinstance(line, str)]


def test_without_host_or_prefill_there_is_no_line_of_them() -> None:
    assert [line.partition(":")[0] for line in lines(make_tables())] == [
        "held-out error, captured",
        "held-out error, smooth",
        "held-out error, draft",
    ]


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
