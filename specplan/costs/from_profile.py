"""Cost tables from a profile: costs by context, requests and tokens, with their uncertainty."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import msgspec
import numpy as np

from specplan import __version__
from specplan.costs.additive import fit_additive
from specplan.costs.build import check_at_least, check_monotone, check_semantics
from specplan.costs.conditions import judge_conditions
from specplan.costs.error import LEAVE_ONE_OUT, leave_one_out, split_half, summarise
from specplan.costs.feeds import compare_feeds, judge_feeds
from specplan.costs.findings import Evidence, judge_costs, judge_profile
from specplan.costs.layouts import compare_layouts
from specplan.costs.limits import judge_limits
from specplan.costs.machinery import host_in_parts, price_machinery
from specplan.costs.mixed import price_mixed
from specplan.costs.plausibility import judge_plausibility, outliers
from specplan.costs.ragged import judge_ragged, ragged_error
from specplan.costs.rows import MEASURE_ANEW, Pricing, curves_of, draft_table, row_of
from specplan.costs.samples import Points, draft_prefill_points, host_points, of_lengths, verify_points
from specplan.costs.verification import judge_verification, strata_of
from specplan.errors import CoverageError
from specplan.files.profile import Profile
from specplan.files.tables import CostTables, Finding, HeldOutError, Monotone, Semantics
from specplan.shapes import Lengths

__all__ = ["judge_samples", "tables_from_profile"]


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
    whole = profile
    ragged = verify_points(of_lengths(profile, "ragged")) if lengths == "even" else None
    profile = of_lengths(profile, lengths)
    verify = verify_points(profile)
    replayed = np.unique(verify.size[verify.size <= profile.capture_limit]).tolist()
    _require_verify(profile, verify, replayed)
    # Replays of other sizes than the engine's were timed unpadded. Sizes of a sweep that was cut short are fewer.
    is_unpadded = not set(replayed) <= set(profile.capture_sizes)
    captured = list(profile.capture_sizes) if is_unpadded else replayed
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
    verify_curves = list(curves_of(verify, verify_ms, verify_ci_ms, "{row} requests, context {page}"))
    as_padded = Pricing(
        name="verify",
        capture_limit=capture_limit,
        monotone=monotone,
        resampled_to=tuple(captured) if is_unpadded else (),
    )
    pricing = as_padded if semantics == "padded" else replace(as_padded, semantics=semantics, resampled_to=())
    verify_rows = pricing.price(verify, verify_ms, verify_ci_ms, rows=rows, max_size=max_num_tokens)
    as_measured = replace(as_padded, semantics="linear" if is_unpadded else "padded", resampled_to=())
    # Findings are of what was measured, however it is read between.
    padded = verify_rows
    if semantics != "padded":
        padded = as_padded.price(verify, verify_ms, verify_ci_ms, rows=rows, max_size=max_num_tokens)
    smooth_errors = [leave_one_out(curve.sizes, curve.ms, capture_limit=capture_limit) for curve in verify_curves]
    draft = draft_table(profile, max_num_reqs, monotone)
    overhead = row_of(host_points(profile), "host", max_num_reqs, monotone)
    draft_prefill = row_of(draft_prefill_points(profile), "draft-prefill", step_tokens, monotone)
    pages = np.unique(verify.page)
    of_ragged = None if ragged is None else ragged_error(ragged, pages=pages, rows=rows, table_ms=verify_rows.ms)
    feeds = compare_feeds(profile)
    machinery = price_machinery(profile, max_num_reqs)
    with no_table_holds():
        tables = CostTables(
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
                captured=split_half(verify, as_measured.predictor(verify), verify.size <= capture_limit),
                smooth=summarise(np.concatenate(smooth_errors), LEAVE_ONE_OUT),
                draft=draft.error,
                overhead=overhead.error,
                mixed=mixed.error,
                draft_prefill=draft_prefill.error,
                ragged=of_ragged,
            ),
            findings=[
                *judge_profile(profile),
                *judge_plausibility(whole),
                *outliers("verify", verify_curves),
                *judge_conditions(profile),
                *judge_costs(Evidence(name="verify", unit="tokens", curves=verify_curves, cells_ms=padded.ms)),
                *judge_ragged(of_ragged),
                *draft.findings,
                *judge_feeds(feeds),
                *([host_in_parts(machinery)] if machinery and overhead.source is None else overhead.findings),
                *mixed.findings,
                *(draft_prefill.findings if profile.draft is not None else ()),
            ],
            contexts=pages.tolist(),
            num_reqs=rows.tolist(),
            verify_table_ms=verify_rows.ms,
            verify_source=verify_rows.source,
            verify_ci_ms=verify_rows.ci_ms if verify.is_repeated else None,
            draft_ks=draft.ks,
            draft_table_ms=draft.rows.ms,
            draft_source=draft.rows.source,
            draft_ci_ms=draft.rows.ci_ms if draft.is_repeated else None,
            overhead_ms=overhead.ms,
            overhead_source=overhead.source,
            overhead_ci_ms=overhead.ci_ms,
            draft_prefill_ms=draft_prefill.ms,
            draft_prefill_source=draft_prefill.source,
            draft_prefill_ci_ms=draft_prefill.ci_ms,
            mixed=mixed.costs,
            machinery=machinery,
            additive=fit_additive(verify),
            layout_costs=compare_layouts(profile),
            feed_costs=feeds,
        )
    strata = strata_of(whole, tables)
    as_run = (
        tables
        if semantics == "padded"
        else msgspec.structs.replace(tables, verify_table_ms=padded.ms, verify_source=padded.source, semantics="padded")
    )
    return msgspec.structs.replace(
        tables,
        error=msgspec.structs.replace(tables.error, strata=strata),
        findings=[*tables.findings, *judge_limits(as_run), *judge_verification(strata)],
    )


def judge_samples(profile: Profile, refused: CoverageError) -> list[Finding]:
    """What there is to say of samples that no table can be made of, and of that."""
    finding = Finding(code="no-tables", severity="warning", place="profile", message=refused.message, hint=refused.hint)
    return [finding, *judge_profile(profile), *judge_plausibility(profile), *judge_conditions(profile)]


@contextmanager
def no_table_holds() -> Iterator[None]:
    """What a file of tables would be refused for is no fault of the caller's, but of the samples."""
    try:
        yield
    except ValueError as error:
        raise CoverageError(
            f"these samples come to costs that no table can hold: {error}",
            "price fewer tokens and requests than this, or measure the samples it rests on anew: specplan profile",
        ) from error


def _require_verify(profile: Profile, points: Points, captured: list[int]) -> None:
    if profile.capture_sizes and not captured:
        raise CoverageError(
            f"the profile names {len(profile.capture_sizes)} capture sizes and has no graph samples of the verify pass",
            MEASURE_ANEW,
        )
    if not len(points.size):
        raise CoverageError(
            "the profile has no samples of the verify pass",
            MEASURE_ANEW,
        )
