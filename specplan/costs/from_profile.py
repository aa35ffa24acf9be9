"""Cost tables from a profile: costs by context, requests and tokens, with their uncertainty."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from specplan import __version__
from specplan.costs.additive import fit_additive
from specplan.costs.build import check_at_least, check_monotone, check_semantics
from specplan.costs.conditions import judge_conditions
from specplan.costs.feeds import compare_feeds, judge_feeds
from specplan.costs.findings import Evidence, judge_costs, judge_profile
from specplan.costs.hints import hints_for
from specplan.costs.layouts import compare_layouts
from specplan.costs.lending import judge_lending
from specplan.costs.limits import judge_limits
from specplan.costs.machinery import host_in_parts, price_machinery
from specplan.costs.mixed import price_mixed
from specplan.costs.plausibility import judge_plausibility, outliers
from specplan.costs.ragged import judge_ragged, ragged_error
from specplan.costs.rows import draft_table, row_of
from specplan.costs.samples import draft_prefill_points, host_points, of_lengths, verify_points
from specplan.costs.verification import judge_verification, strata_of
from specplan.costs.verify_table import price_verify
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
    digest, whole = profile.digest(), profile
    ragged = verify_points(of_lengths(profile, "ragged")) if lengths == "even" else None
    profile = of_lengths(profile, lengths)
    step_tokens = check_at_least(
        1, "max_num_tokens", profile.max_num_batched_tokens if max_num_tokens is None else max_num_tokens
    )
    mixed = price_mixed(profile, monotone)
    verify = price_verify(
        profile,
        monotone=monotone,
        semantics=semantics,
        max_num_reqs=max_num_reqs,
        step_tokens=step_tokens,
        ends_at_reach=mixed.costs is not None,
    )
    draft = draft_table(profile, verify.max_num_reqs, monotone)
    overhead = row_of(host_points(profile), "host", verify.max_num_reqs, monotone)
    draft_prefill = row_of(draft_prefill_points(profile), "draft-prefill", step_tokens, monotone)
    feeds, machinery = compare_feeds(profile), price_machinery(profile, verify.max_num_reqs)
    of_ragged = None
    if ragged is not None:
        of_ragged = ragged_error(ragged, pages=verify.contexts, rows=verify.num_reqs, table_ms=verify.padded.ms)
    with no_table_holds():
        tables = CostTables(
            specplan_version=__version__,
            source=profile.source,
            environment=profile.environment,
            target=profile.target,
            draft=profile.draft,
            profile_digest=digest,
            num_speculative_tokens=profile.num_speculative_tokens,
            capture_sizes=verify.capture_sizes,
            capture_limit=max(verify.capture_sizes, default=0),
            draft_capture_limit=draft.capture_limit,
            monotone=monotone,
            semantics=semantics,
            error=HeldOutError(
                captured=verify.captured_error,
                smooth=verify.smooth_error,
                draft=draft.error,
                overhead=overhead.error,
                mixed=mixed.error,
                draft_prefill=draft_prefill.error,
                ragged=of_ragged,
            ),
            findings=[
                *judge_profile(profile),
                *judge_plausibility(whole),
                *outliers("verify", verify.curves),
                *judge_lending(verify.points),
                *judge_conditions(profile),
                *judge_costs(Evidence(name="verify", unit="tokens", curves=verify.curves, cells_ms=verify.padded.ms)),
                *judge_ragged(of_ragged),
                *draft.findings,
                *judge_feeds(feeds),
                *([host_in_parts(machinery)] if machinery and overhead.source is None else overhead.findings),
                *mixed.findings,
                *(draft_prefill.findings if profile.draft is not None else ()),
            ],
            contexts=verify.contexts.tolist(),
            num_reqs=verify.num_reqs.tolist(),
            verify_table_ms=verify.rows.ms,
            verify_source=verify.rows.source,
            verify_ci_ms=verify.rows.ci_ms if verify.points.is_repeated else None,
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
            additive=fit_additive(verify.points),
            layout_costs=compare_layouts(profile),
            feed_costs=feeds,
        )
    tables = msgspec.structs.replace(tables, findings=hints_for(profile, tables.findings))
    strata = strata_of(whole, tables)
    # Findings are of costs as an engine runs them, however they are read between what was measured.
    with no_table_holds():
        as_run = msgspec.structs.replace(
            tables, verify_table_ms=verify.padded.ms, verify_source=verify.padded.source, semantics="padded"
        )
    return msgspec.structs.replace(
        tables,
        error=msgspec.structs.replace(tables.error, strata=strata),
        findings=[*tables.findings, *judge_limits(as_run), *judge_verification(strata)],
    )


def judge_samples(profile: Profile, refused: CoverageError) -> list[Finding]:
    """What there is to say of samples that no table can be made of, and of that."""
    finding = Finding(code="no-tables", severity="warning", place="profile", message=refused.message, hint=refused.hint)
    of_samples = [*judge_profile(profile), *judge_plausibility(profile), *judge_conditions(profile)]
    return [finding, *hints_for(profile, of_samples)]


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
