"""From points to rows of costs: those of a verify pass, of the drafter, and of what has one axis and is never "
"captured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from specplan.costs.build import free_draft
from specplan.costs.error import split_half
from specplan.costs.findings import Evidence, MeasuredCurve, free_drafter, judge_costs, unmeasured
from specplan.costs.lending import Cells, lend_contexts
from specplan.costs.pricing import Rows, plan_row, price_rows
from specplan.costs.samples import Points, draft_points
from specplan.costs.sheets import Sheet, at_capture_sizes, fill_sheet, fill_verify_sheet, hold_impossible
from specplan.errors import CoverageError
from specplan.files.profile import Profile
from specplan.files.tables import Finding, Monotone, RegionError, Semantics, Source

__all__ = ["MEASURE_ANEW", "DraftTable", "Pricing", "Row", "curves_of", "draft_table", "row_of"]

MEASURE_ANEW = "measure it anew, with more time: specplan profile --time-budget SECONDS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pricing:
    """The rule by which points become a table. `resampled_to`: the sizes that an engine captures, where its replays
    were timed at others.
    """

    name: str
    capture_limit: int
    monotone: Monotone
    semantics: Semantics = "padded"
    resampled_to: tuple[int, ...] = ()

    def price(
        self,
        points: Points,
        ms: NDArray[np.float64],  # [P]
        ci_ms: NDArray[np.float64],  # [P]
        *,
        rows: NDArray[np.int64],  # [R]
        max_size: int,
    ) -> Rows:  # [pages, R, max_size + 1]
        pages = []
        cells = lend_contexts(points, ms, ci_ms)
        for page in np.unique(points.page):
            sheet = self.sheet(cells, cells.page == page, rows)
            plan = plan_row(
                sheet.sizes,
                capture_limit=self.capture_limit,
                max_size=max_size,
                name=self.name,
                semantics=self.semantics,
            )
            pages.append(
                price_rows(plan, sheet.ms, sheet.ci_ms, sheet.source, monotone=self.monotone, semantics=self.semantics)
            )
        return Rows(
            ms=np.stack([page.ms for page in pages]),
            ci_ms=np.stack([page.ci_ms for page in pages]),
            source=np.stack([page.source for page in pages]),
        )

    def sheet(
        self,
        cells: Cells,
        at: NDArray[np.bool_],  # [L], those of one page
        rows: NDArray[np.int64],  # [R]
    ) -> Sheet:
        row, size, ms, ci_ms = cells.row[at], cells.size[at], cells.ms[at], cells.ci_ms[at]
        if self.name != "verify":
            return fill_sheet(row, size, ms, ci_ms, rows=rows)
        filled = fill_verify_sheet(
            row,
            size,
            ms,
            ci_ms,
            rows=rows,
            capture_limit=self.capture_limit if self.semantics == "padded" else 0,
            is_floor=self.semantics == "floor",
            is_lent=cells.is_lent[at],
        )
        held = hold_impossible(filled, rows)
        return at_capture_sizes(held, self.resampled_to) if self.resampled_to else held

    def predictor(self, points: Points) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
        """From costs at `points` to what tables made from those costs say at the same `points`."""
        rows = np.unique(points.row)
        cells = (np.searchsorted(np.unique(points.page), points.page), np.searchsorted(rows, points.row), points.size)

        def predict(ms: NDArray[np.float64]) -> NDArray[np.float64]:
            priced = self.price(points, ms, np.zeros(len(ms)), rows=rows, max_size=int(points.size.max()))
            return priced.ms[cells]

        return predict


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTable:
    ks: list[int] | None
    rows: Rows  # [D, max_num_reqs + 1]
    capture_limit: int | None
    is_repeated: bool
    error: RegionError | None
    findings: list[Finding]


def draft_table(profile: Profile, max_num_reqs: int, monotone: Monotone) -> DraftTable:
    points = draft_points(profile)
    if not len(points.size):
        if profile.draft is not None:
            raise CoverageError(
                f"the profile names a draft ({profile.draft.name}) and has no draft samples",
                MEASURE_ANEW,
            )
        free = free_draft(max_num_reqs)
        rows = Rows(ms=free.ms[None], ci_ms=free.ci_ms[None], source=free.source[None])
        return DraftTable(
            ks=None, rows=rows, capture_limit=None, is_repeated=False, error=None, findings=[free_drafter()]
        )
    graphs = any(sample.model == "draft" and sample.mode == "graph" for sample in profile.samples)
    capture_limit = int(points.size.max()) if graphs else 0
    ms, ci_ms = points.median_ms, points.half_width_ms
    ks = np.unique(points.row)
    pricing = Pricing(name="draft", capture_limit=capture_limit, monotone=monotone)
    pages = pricing.price(points, ms, ci_ms, rows=ks, max_size=max_num_reqs)
    curves = list(curves_of(points, ms, ci_ms, "k = {row}"))
    return DraftTable(
        ks=ks.tolist(),
        rows=Rows(ms=pages.ms[0], ci_ms=pages.ci_ms[0], source=pages.source[0]),
        capture_limit=None if graphs else 0,
        is_repeated=points.is_repeated,
        error=split_half(points, pricing.predictor(points), np.ones(len(points.size), dtype=bool)),
        findings=judge_costs(Evidence(name="draft", unit="requests", curves=curves, cells_ms=pages.ms)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    ms: NDArray[np.float64]  # [max_size + 1]
    source: NDArray[np.uint8] | None  # [max_size + 1] of Source; None where nothing was measured, and ms is 0
    ci_ms: NDArray[np.float64] | None  # [max_size + 1]
    error: RegionError | None
    findings: list[Finding]


def row_of(
    points: Points,
    name: Literal["host", "draft-prefill"],
    max_size: int,
    monotone: Monotone,
) -> Row:
    """What is never captured and has one axis: smooth along it, 0 where nothing of it was measured."""
    if not len(points.size):
        return Row(ms=np.zeros(max_size + 1), source=None, ci_ms=None, error=None, findings=[unmeasured(name)])
    ms, ci_ms = points.median_ms, points.half_width_ms
    pricing = Pricing(name=name, capture_limit=0, monotone=monotone)
    # The host's work of one number of requests holds for any: it is small, and a slope from it would be a guess.
    known = int(points.size[0]) if name == "host" and len(points.size) == 1 else max_size
    pages = pricing.price(points, ms, ci_ms, rows=np.zeros(1, dtype=np.int64), max_size=min(known, max_size))
    more = (0, max(max_size - known, 0))
    row = Rows(
        ms=np.pad(pages.ms[0, 0], more, "edge"),
        ci_ms=np.pad(pages.ci_ms[0, 0], more, "edge"),
        source=np.pad(pages.source[0, 0], more, constant_values=Source.EXTRAPOLATED),
    )
    if name == "draft-prefill":
        row.ms[0], row.ci_ms[0], row.source[0] = 0.0, 0.0, Source.MEASURED  # without tokens there is no pass
    curves = list(curves_of(points, ms, ci_ms, name))
    unit: Literal["tokens", "requests"] = "requests" if name == "host" else "tokens"
    return Row(
        ms=row.ms,
        source=row.source,
        ci_ms=row.ci_ms if points.is_repeated else None,
        error=split_half(points, pricing.predictor(points), np.ones(len(points.size), dtype=bool)),
        findings=judge_costs(Evidence(name=name, unit=unit, curves=curves, cells_ms=row.ms)),
    )


def curves_of(
    points: Points,
    ms: NDArray[np.float64],  # [P]
    ci_ms: NDArray[np.float64],  # [P]
    place: str,
) -> Iterator[MeasuredCurve]:
    """The points of each page and row along their sizes."""
    for page, row in np.unique(np.stack([points.page, points.row], 1), axis=0):
        at = (points.page == page) & (points.row == row)
        yield MeasuredCurve(place=place.format(page=page, row=row), sizes=points.size[at], ms=ms[at], ci_ms=ci_ms[at])
