"""Cost tables from a profile: costs by context, requests and tokens, with their uncertainty."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from specplan import __version__
from specplan.costs.additive import fit_additive
from specplan.costs.build import check_at_least, check_monotone, check_semantics, free_draft
from specplan.costs.conditions import judge_conditions
from specplan.costs.error import LEAVE_ONE_OUT, leave_one_out, split_half, summarise
from specplan.costs.feeds import compare_feeds, judge_feeds
from specplan.costs.findings import Evidence, MeasuredCurve, free_drafter, judge_costs, judge_profile, unmeasured
from specplan.costs.layouts import compare_layouts
from specplan.costs.machinery import price_machinery
from specplan.costs.mixed import price_mixed
from specplan.costs.pricing import Rows, plan_row, price_rows
from specplan.costs.ragged import judge_ragged, ragged_error
from specplan.costs.samples import (
    Points,
    draft_points,
    draft_prefill_points,
    fill_sheet,
    hold_impossible,
    host_points,
    of_lengths,
    verify_points,
)
from specplan.errors import CoverageError
from specplan.files.profile import Profile
from specplan.files.tables import CostTables, Finding, HeldOutError, Monotone, RegionError, Semantics, Source
from specplan.shapes import Lengths

__all__ = ["tables_from_profile"]

_MEASURE_ANEW = "measure it anew, with more time: specplan profile --time-budget SECONDS"


def tables_from_profile(
    profile: Profile,
    *,
    monotone: Monotone = "running-max",
    semantics: Semantics = "padded",
    max_num_tokens: int | None = None,
    max_num_reqs: int | None = None,
    lengths: Lengths = "even",
) -> CostTables:
    """Tables over the contexts, requests and k that were measured.

    Each size (tokens of a verify pass, requests of a draft) is first filled over the other axis (requests, k) from the
    points measured at that size; then each row is priced along its sizes by the one rule of pricing.py. The host's work
    and the drafter's prefill are a row each, mixed steps a grid (mixed.py). By default the tables go as far as the
    profile says the engine does; `max_num_tokens` is of a step, prompts included.

    `semantics`: of the verify pass between the sizes that were measured; see pricing.py.
    `lengths`: of the steps that are priced, where the profile timed several; see `shapes.Lengths`.
    """
    check_monotone(monotone)
    check_semantics(semantics)
    digest = profile.digest()
    ragged = verify_points(of_lengths(profile, "ragged")) if lengths == "even" else None
    profile = of_lengths(profile, lengths)
    verify = verify_points(profile)
    captured = np.unique(verify.size[verify.size <= profile.capture_limit]).tolist()
    _require_verify(profile, verify, captured)
    capture_limit = max(captured, default=0)
    largest = int(verify.row.max())
    max_num_reqs = check_at_least(
        1, "max_num_reqs", min(profile.max_num_seqs, largest) if max_num_reqs is None else max_num_reqs
    )
    if max_num_reqs > largest:
        raise CoverageError(
            f"tables for {max_num_reqs} requests: the profile measured verify passes of at most {largest}",
            f"ask for at most {largest}, or measure more: specplan profile --max-num-seqs {max_num_reqs}",
        )
    step_tokens = check_at_least(
        1, "max_num_tokens", profile.max_num_batched_tokens if max_num_tokens is None else max_num_tokens
    )
    mixed = price_mixed(profile, monotone)
    # Where steps with prompts have a price of their own, no verify pass has more tokens than its requests bring.
    reach = max_num_reqs * (1 + profile.num_speculative_tokens)
    max_num_tokens = step_tokens if mixed.costs is None else min(step_tokens, reach)

    rows = np.union1d(verify.row[verify.row < max_num_reqs], [max_num_reqs])
    verify_ms, verify_ci_ms = verify.median_ms, verify.half_width_ms
    verify_curves = list(_curves(verify, verify_ms, verify_ci_ms, "{row} requests, context {page}"))
    pricing = _Pricing(name="verify", capture_limit=capture_limit, monotone=monotone, semantics=semantics)
    verify_rows = pricing.price(verify, verify_ms, verify_ci_ms, rows=rows, max_size=max_num_tokens)
    # Findings are of what was measured, however it is read between.
    padded = verify_rows
    if semantics != "padded":
        as_padded = replace(pricing, semantics="padded")
        padded = as_padded.price(verify, verify_ms, verify_ci_ms, rows=rows, max_size=max_num_tokens)
    smooth_errors = [leave_one_out(curve.sizes, curve.ms, capture_limit=capture_limit) for curve in verify_curves]
    draft = _draft_table(profile, max_num_reqs, monotone)
    overhead = _row(host_points(profile), "host", max_num_reqs, monotone)
    draft_prefill = _row(draft_prefill_points(profile), "draft-prefill", step_tokens, monotone)
    pages = np.unique(verify.page)
    of_ragged = None if ragged is None else ragged_error(ragged, pages=pages, rows=rows, table_ms=verify_rows.ms)
    feeds = compare_feeds(profile)
    return _tables(
        specplan_version=__version__,
        source=profile.source,
        environment=profile.environment,
        target=profile.target,
        draft=profile.draft,
        profile_digest=digest,
        num_speculative_tokens=profile.num_speculative_tokens,
        capture_sizes=captured,
        capture_limit=capture_limit,
        draft_capture_limit=draft.capture_limit,
        monotone=monotone,
        semantics=semantics,
        error=HeldOutError(
            captured=split_half(verify, pricing.predictor(verify), verify.size <= capture_limit),
            smooth=summarise(np.concatenate(smooth_errors), LEAVE_ONE_OUT),
            draft=draft.error,
            overhead=overhead.error,
            mixed=mixed.error,
            draft_prefill=draft_prefill.error,
            ragged=of_ragged,
        ),
        findings=[
            *judge_profile(profile),
            *judge_conditions(profile),
            *judge_costs(Evidence(name="verify", unit="tokens", curves=verify_curves, cells_ms=padded.ms)),
            *judge_ragged(of_ragged),
            *draft.findings,
            *judge_feeds(feeds),
            *overhead.findings,
            *mixed.findings,
            *(draft_prefill.findings if profile.draft is not None else ()),
        ],
        contexts=pages.tolist(),
        num_reqs=rows.tolist(),
        verify_table_ms=verify_rows.ms,
        verify_source=verify_rows.source,
        verify_ci_ms=verify_rows.ci_ms,
        draft_ks=draft.ks,
        draft_table_ms=draft.rows.ms,
        draft_source=draft.rows.source,
        draft_ci_ms=None if draft.ks is None else draft.rows.ci_ms,
        overhead_ms=overhead.ms,
        overhead_source=overhead.source,
        overhead_ci_ms=overhead.ci_ms,
        draft_prefill_ms=draft_prefill.ms,
        draft_prefill_source=draft_prefill.source,
        draft_prefill_ci_ms=draft_prefill.ci_ms,
        mixed=mixed.costs,
        machinery=price_machinery(profile, max_num_reqs),
        additive=fit_additive(verify),
        layout_costs=compare_layouts(profile),
        feed_costs=feeds,
    )


def _tables(**fields: Any) -> CostTables:
    try:
        return CostTables(**fields)
    except ValueError as error:  # what a file would be refused for
        raise CoverageError(
            f"these samples come to costs that no table can hold: {error}",
            "price fewer tokens and requests than this, or measure the samples it rests on anew: specplan profile",
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pricing:
    """The rule by which points become a table."""

    name: str
    capture_limit: int
    monotone: Monotone
    semantics: Semantics = "padded"

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
        for page in np.unique(points.page):
            at = points.page == page
            sheet = fill_sheet(points.row[at], points.size[at], ms[at], ci_ms[at], rows=rows)
            if self.name == "verify":
                sheet = hold_impossible(sheet, rows)
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

    def predictor(self, points: Points) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
        """From costs at `points` to what tables made from those costs say at the same `points`."""
        rows = np.unique(points.row)
        cells = (np.searchsorted(np.unique(points.page), points.page), np.searchsorted(rows, points.row), points.size)

        def predict(ms: NDArray[np.float64]) -> NDArray[np.float64]:
            priced = self.price(points, ms, np.zeros(len(ms)), rows=rows, max_size=int(points.size.max()))
            return priced.ms[cells]

        return predict


@dataclass(frozen=True, slots=True, kw_only=True)
class _DraftTable:
    ks: list[int] | None
    rows: Rows  # [D, max_num_reqs + 1]
    capture_limit: int | None
    error: RegionError | None
    findings: list[Finding]


def _draft_table(profile: Profile, max_num_reqs: int, monotone: Monotone) -> _DraftTable:
    points = draft_points(profile)
    if not len(points.size):
        if profile.draft is not None:
            raise CoverageError(
                f"the profile names a draft ({profile.draft.name}) and has no draft samples",
                _MEASURE_ANEW,
            )
        free = free_draft(max_num_reqs)
        rows = Rows(ms=free.ms[None], ci_ms=free.ci_ms[None], source=free.source[None])
        return _DraftTable(ks=None, rows=rows, capture_limit=None, error=None, findings=[free_drafter()])
    graphs = any(sample.model == "draft" and sample.mode == "graph" for sample in profile.samples)
    capture_limit = int(points.size.max()) if graphs else 0
    ms, ci_ms = points.median_ms, points.half_width_ms
    ks = np.unique(points.row)
    pricing = _Pricing(name="draft", capture_limit=capture_limit, monotone=monotone)
    pages = pricing.price(points, ms, ci_ms, rows=ks, max_size=max_num_reqs)
    curves = list(_curves(points, ms, ci_ms, "k = {row}"))
    return _DraftTable(
        ks=ks.tolist(),
        rows=Rows(ms=pages.ms[0], ci_ms=pages.ci_ms[0], source=pages.source[0]),
        capture_limit=None if graphs else 0,
        error=split_half(points, pricing.predictor(points), np.ones(len(points.size), dtype=bool)),
        findings=judge_costs(Evidence(name="draft", unit="requests", curves=curves, cells_ms=pages.ms)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    ms: NDArray[np.float64]  # [max_size + 1]
    source: NDArray[np.uint8] | None  # [max_size + 1] of Source; None where nothing was measured, and ms is 0
    ci_ms: NDArray[np.float64] | None  # [max_size + 1]
    error: RegionError | None
    findings: list[Finding]


def _row(
    points: Points,
    name: Literal["host", "draft-prefill"],
    max_size: int,
    monotone: Monotone,
) -> _Row:
    """What is never captured and has one axis: smooth along it, 0 where nothing of it was measured."""
    if not len(points.size):
        return _Row(ms=np.zeros(max_size + 1), source=None, ci_ms=None, error=None, findings=[unmeasured(name)])
    ms, ci_ms = points.median_ms, points.half_width_ms
    pricing = _Pricing(name=name, capture_limit=0, monotone=monotone)
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
    curves = list(_curves(points, ms, ci_ms, name))
    unit: Literal["tokens", "requests"] = "requests" if name == "host" else "tokens"
    return _Row(
        ms=row.ms,
        source=row.source,
        ci_ms=row.ci_ms,
        error=split_half(points, pricing.predictor(points), np.ones(len(points.size), dtype=bool)),
        findings=judge_costs(Evidence(name=name, unit=unit, curves=curves, cells_ms=row.ms)),
    )


def _curves(
    points: Points,
    ms: NDArray[np.float64],  # [P]
    ci_ms: NDArray[np.float64],  # [P]
    place: str,
) -> Iterator[MeasuredCurve]:
    """The points of each page and row along their sizes."""
    for page, row in np.unique(np.stack([points.page, points.row], 1), axis=0):
        at = (points.page == page) & (points.row == row)
        yield MeasuredCurve(place=place.format(page=page, row=row), sizes=points.size[at], ms=ms[at], ci_ms=ci_ms[at])


def _require_verify(profile: Profile, points: Points, captured: list[int]) -> None:
    if profile.capture_sizes and not captured:
        raise CoverageError(
            f"the profile names {len(profile.capture_sizes)} capture sizes and has no graph samples of the verify pass",
            _MEASURE_ANEW,
        )
    if not len(points.size):
        raise CoverageError(
            "the profile has no samples of the verify pass",
            _MEASURE_ANEW,
        )
