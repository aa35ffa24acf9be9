"""Cost tables from curves: the costs of one batch composition, by size."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import get_args

import numpy as np

from specplan import __version__
from specplan.costs.curve import Curve, clean_curve
from specplan.costs.error import LEAVE_ONE_OUT, leave_one_out, summarise
from specplan.costs.findings import Evidence, MeasuredCurve, free_drafter, judge_costs, lowered_limit
from specplan.costs.pricing import Rows, plan_row, price_rows
from specplan.errors import ConfigError
from specplan.files.tables import CostTables, Finding, HeldOutError, Monotone, Semantics

__all__ = ["build_cost_tables", "check_at_least", "check_monotone", "check_semantics", "free_draft"]


def build_cost_tables(
    draft_curve: Iterable[tuple[int, float]] | None,
    verify_curve: Iterable[tuple[int, float]],
    *,
    max_num_reqs: int,
    max_num_tokens: int,
    capture_limit: int = 0,
    draft_capture_limit: int | None = None,
    monotone: Monotone = "running-max",
    semantics: Semantics = "padded",
    overhead_ms: float = 0.0,
) -> CostTables:
    """Tables of one row each from `(num_reqs, ms)` and `(num_tokens, ms)` points.

    Args:
        draft_curve: Any order, duplicates count with their median. None: a drafter that costs nothing.
        verify_curve: The same.
        capture_limit: In tokens, of the verify pass only; lowered to the largest point at or below it. 0: nothing is
            captured, and costs are smooth everywhere.
        draft_capture_limit: In requests. None: every draft point is a captured size.
        monotone: "running-max" keeps costs non-decreasing; "pad-up" prices a captured size at the cheapest one that
            holds it; "none" shows the data.
        semantics: What a verify pass of a size between the points costs: "padded" up to the next captured one, "linear"
            between any two, "floor" what the one below it does, "exact" nothing but the points.
        overhead_ms: Added to every step, whatever its requests. The drafter's prefill costs nothing here.
    """
    check_monotone(monotone)
    check_semantics(semantics)
    max_num_reqs = check_at_least(1, "max_num_reqs", max_num_reqs)
    max_num_tokens = check_at_least(1, "max_num_tokens", max_num_tokens)
    capture_limit = check_at_least(0, "capture_limit", capture_limit)
    if draft_capture_limit is not None:
        draft_capture_limit = check_at_least(0, "draft_capture_limit", draft_capture_limit)
    if not (math.isfinite(overhead_ms) and overhead_ms >= 0):
        raise ConfigError(f"overhead_ms: expected a finite number of 0 or more, got {overhead_ms}", "pass 0 for none")

    verify = clean_curve(verify_curve, name="verify", axis="num_tokens")
    captured = verify.sizes[verify.sizes <= capture_limit].tolist()
    used_limit = max(captured, default=0)
    verify_row = _price(verify, used_limit, max_num_tokens, monotone, "verify", semantics)
    padded = verify_row if semantics == "padded" else _price(verify, used_limit, max_num_tokens, monotone, "verify")
    findings = [
        *lowered_limit(capture_limit, used_limit, name="verify", unit="tokens"),
        *judge_costs(Evidence(name="verify", unit="tokens", curves=[_measured(verify, "verify")], cells_ms=padded.ms)),
    ]
    if draft_curve is None:
        draft_row, draft_capture_limit = free_draft(max_num_reqs), None
        findings.append(free_drafter())
    else:
        draft = clean_curve(draft_curve, name="draft", axis="num_reqs")
        draft_row, draft_capture_limit, draft_findings = _draft(draft, draft_capture_limit, max_num_reqs, monotone)
        findings += draft_findings
    smooth_errors = leave_one_out(verify.sizes, verify.ms, capture_limit=used_limit)
    return CostTables(
        specplan_version=__version__,
        source="curves",
        environment=None,
        profile_digest=None,
        num_speculative_tokens=None,
        capture_sizes=captured,
        capture_limit=used_limit,
        draft_capture_limit=draft_capture_limit,
        monotone=monotone,
        semantics=semantics,
        error=HeldOutError(
            captured=None,
            smooth=summarise(smooth_errors, LEAVE_ONE_OUT),
            draft=None,
            overhead=None,
            mixed=None,
            draft_prefill=None,
        ),
        findings=findings,
        contexts=[0],
        num_reqs=[max_num_reqs],
        verify_table_ms=verify_row.ms[None, None],
        verify_source=verify_row.source[None, None],
        verify_ci_ms=None,
        draft_ks=None,
        draft_table_ms=draft_row.ms[None],
        draft_source=draft_row.source[None],
        draft_ci_ms=None,
        overhead_ms=np.full(max_num_reqs + 1, float(overhead_ms)),
        overhead_source=None,
        overhead_ci_ms=None,
        draft_prefill_ms=np.zeros(max_num_tokens + 1),
        draft_prefill_source=None,
        draft_prefill_ci_ms=None,
    )


def free_draft(max_num_reqs: int) -> Rows:
    zero = np.zeros(max_num_reqs + 1)
    return Rows(ms=zero, ci_ms=zero, source=np.zeros(max_num_reqs + 1, dtype=np.uint8))


def check_at_least(least: int, name: str, value: int) -> int:
    try:
        whole = operator.index(value)
    except TypeError:
        raise ConfigError(f"{name}: expected a whole number, got {value!r}", f"pass {least} or more") from None
    if whole < least:
        raise ConfigError(f"{name}: expected {least} or more, got {value}", f"pass {least} or more")
    return whole


def check_monotone(monotone: str) -> None:
    _check_one_of("monotone", monotone, get_args(Monotone))


def check_semantics(semantics: str) -> None:
    _check_one_of("semantics", semantics, get_args(Semantics))


def _check_one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{name}: expected one of {', '.join(known)}, got {value!r}", f"pass {known[0]!r}")


def _draft(
    draft: Curve, asked_limit: int | None, max_num_reqs: int, monotone: Monotone
) -> tuple[Rows, int | None, list[Finding]]:
    limit = int(draft.sizes[-1])
    findings: list[Finding] = []
    if asked_limit is not None:
        limit = max(draft.sizes[draft.sizes <= asked_limit].tolist(), default=0)
        findings += lowered_limit(asked_limit, limit, name="draft", unit="requests")
    row = _price(draft, limit, max_num_reqs, monotone, "draft")
    findings += judge_costs(
        Evidence(name="draft", unit="requests", curves=[_measured(draft, "draft")], cells_ms=row.ms)
    )
    return row, None if asked_limit is None else limit, findings


def _price(
    curve: Curve, capture_limit: int, max_size: int, monotone: Monotone, name: str, semantics: Semantics = "padded"
) -> Rows:
    plan = plan_row(curve.sizes, capture_limit=capture_limit, max_size=max_size, name=name, semantics=semantics)
    measured = np.zeros(len(curve.sizes), dtype=np.uint8)
    unknown_ci = np.zeros(len(curve.sizes))
    return price_rows(plan, curve.ms, unknown_ci, measured, monotone=monotone, semantics=semantics)


def _measured(curve: Curve, place: str) -> MeasuredCurve:
    return MeasuredCurve(place=place, sizes=curve.sizes, ms=curve.ms, ci_ms=None)
