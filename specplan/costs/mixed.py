"""Mixed steps: from a profile's samples to a grid of costs by context, verifying requests, drafts and prompt tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from specplan.costs.error import LEAVE_ONE_OUT, leave_one_out, summarise
from specplan.costs.samples import require_positive
from specplan.costs.uncertainty import median_half_widths
from specplan.files.mixed_costs import MixedCosts
from specplan.files.profile import Profile
from specplan.files.tables import Finding, Monotone, RegionError

__all__ = ["MixedPricing", "mixed_cells", "price_mixed"]

_MOST_CELLS = 2**16  # of compositions: a grid of more is none
Composition = tuple[int, int, int]  # context, verifying requests, drafts of each


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPricing:
    costs: MixedCosts | None  # None where no mixed step was measured, or no whole grid of them
    error: RegionError | None
    findings: list[Finding]


def price_mixed(profile: Profile, monotone: Monotone) -> MixedPricing:
    """A grid over what was measured. A composition (context, verifying requests, drafts) has sizes of prompts of its
    own, for the most that a step holds beside it differs; the grid has all of them.

    Unless `monotone` is "none", a step with more prompt tokens, drafts or verifying requests costs no less: beside many
    prompt tokens what a draft costs is less than the noise.
    """
    rows = _rows(profile)
    if not rows:
        return MixedPricing(costs=None, error=None, findings=[_unmeasured()])
    verifying = {row for row in rows if row[1]}
    contexts = sorted({context for context, _, _ in verifying}) or [0]
    counts = sorted({num_verifying for _, num_verifying, _ in rows})
    drafts = sorted({drafts for _, _, drafts in verifying}) or [0]
    needed = len(contexts) * len(drafts) * sum(count > 0 for count in counts) + (0 in counts)
    rows = {each: row for each, row in rows.items() if len(row.sizes) > 1}
    num_known = len(rows)
    if needed <= _MOST_CELLS:
        rows |= _full_steps(rows, list(product(contexts, counts, drafts)), profile.max_num_batched_tokens)
    if not verifying or needed > len(rows):
        return MixedPricing(costs=None, error=None, findings=[_too_few(needed, num_known, profile)])
    sizes = _sizes(list(rows.values()))
    compositions = [_composition(*each) for each in product(contexts, counts, drafts)]
    shape = (len(contexts), len(counts), len(drafts), len(sizes))
    ms = np.array([rows[each].at(sizes, rows[each].ms) for each in compositions]).reshape(shape)
    ci_ms = np.array([rows[each].at(sizes, rows[each].ci_ms) for each in compositions]).reshape(shape)
    errors = [leave_one_out(row.sizes, row.ms, capture_limit=0) for row in rows.values()]
    return MixedPricing(
        costs=MixedCosts(
            contexts=contexts,
            num_verifying=counts,
            drafts=drafts,
            prompt_tokens=sizes.tolist(),
            ms=ms if monotone == "none" else rising(ms),
            ci_ms=ci_ms,
        ),
        error=summarise(np.concatenate(errors), LEAVE_ONE_OUT),
        findings=list(_failed(profile)),
    )


def _full_steps(
    rows: dict[Composition, _Row],
    grid: Sequence[Composition],
    most_tokens: int,
) -> dict[Composition, _Row]:
    """Rows of those that fill a step, and leave room for fewer than two prompt tokens. No step runs them: the nearest
    with fewer drafts, or else requests, stands in their place."""
    found: dict[Composition, _Row] = {}
    for context, num_verifying, drafts in grid:
        missing = _composition(context, num_verifying, drafts) not in rows
        if missing and num_verifying and most_tokens - num_verifying * (1 + drafts) < 2:
            smaller = [
                each
                for each in rows
                if each[0] == context and each[1] <= num_verifying and each[2] <= drafts and each[1]
            ]
            if smaller:
                found[context, num_verifying, drafts] = rows[max(smaller, key=lambda each: each[1:])]
    return found


def rising(ms: NDArray[np.float64]) -> NDArray[np.float64]:  # [C, V, D, P], as is the result
    """The dearest so far along every axis but the contexts'."""
    for axis in (1, 2, 3):
        ms = np.maximum.accumulate(ms, axis)
    return ms


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One composition by prompt tokens."""

    sizes: NDArray[np.int64]  # [P], ascending
    ms: NDArray[np.float64]  # [P]
    ci_ms: NDArray[np.float64]  # [P]

    def at(
        self,
        sizes: NDArray[np.int64],  # [S]
        values: NDArray[np.float64],  # [P], this row's ms or ci_ms
    ) -> NDArray[np.float64]:  # [S]
        """Linear between the row's own sizes, the last slope past them where it rises, the first value before them."""
        slope = max(values[-1] - values[-2], 0.0) / (self.sizes[-1] - self.sizes[-2])
        beyond = np.maximum(sizes - self.sizes[-1], 0)
        filled: NDArray[np.float64] = np.interp(sizes, self.sizes, values) + slope * beyond
        return filled


def _sizes(rows: Sequence[_Row]) -> NDArray[np.int64]:
    """All that were measured, but those at which every row that has them ends: it goes on along the line that led
    there."""
    sizes, counts = np.unique(np.concatenate([row.sizes for row in rows]), return_counts=True)
    num_ending = np.array([sum(row.sizes[-1] == size for row in rows) for size in sizes])
    kept: NDArray[np.int64] = sizes[(num_ending < counts) | (sizes == sizes[-1])]
    return kept


def mixed_cells(profile: Profile) -> dict[Composition, dict[int, list[float]]]:
    """Every repetition of each composition, by prompt tokens; steps of one differ in the number of prompts at most."""
    cells: dict[Composition, dict[int, list[float]]] = {}
    for index, sample in enumerate(profile.samples):
        if sample.model == "verify" and sample.shape.is_mixed and sample.layout == "multi-query":
            require_positive(index, sample)
            verifying = sample.shape.num_verifying
            drafts = sample.shape.num_drafts // verifying if verifying else 0
            row = cells.setdefault(_composition(sample.context_len, verifying, drafts), {})
            row.setdefault(sample.num_prompt_tokens, []).extend(sample.repetitions_ms)
    return cells


def _rows(profile: Profile) -> dict[Composition, _Row]:
    rows = {}
    for composition, row in mixed_cells(profile).items():
        sizes = sorted(row)
        repetitions = [np.array(row[size]) for size in sizes]
        rows[composition] = _Row(
            sizes=np.array(sizes),
            ms=np.array([np.median(each) for each in repetitions]),
            ci_ms=median_half_widths(repetitions),
        )
    return rows


def _composition(context: int, num_verifying: int, drafts: int) -> Composition:
    """Without verifying requests there is no context, and nothing is drafted."""
    return (context, num_verifying, drafts) if num_verifying else (0, 0, 0)


def _unmeasured() -> Finding:
    return Finding(
        code="mixed-not-measured",
        severity="note",
        place="mixed",
        message="steps that run prompts were not measured as such, and cost what verify passes of their size do",
        hint="measure them: specplan profile",
    )


def _too_few(needed: int, known: int, profile: Profile) -> Finding:
    """Of compositions, those at two sizes of prompts or more."""
    failed = [failure for failure in profile.failures if failure.num_prompt_tokens]
    why = f"; the first that failed, {failed[0].num_tokens} tokens: {failed[0].message}" if failed else ""
    return Finding(
        code="mixed-too-few",
        severity="warning",
        place="mixed",
        message=f"of {needed} contexts, numbers of verifying requests and drafts, {known} were measured at two sizes "
        f"of prompts or more: steps that run prompts cost what verify passes of their size do{why}",
        hint=_way_out(profile, has_failed=bool(failed)),
    )


def _way_out(profile: Profile, *, has_failed: bool) -> str:
    if has_failed:
        return "profile smaller steps (--max-num-batched-tokens)"
    if not profile.complete:
        return "give it more time: specplan profile --resume"
    return "profile steps that have room for prompts beside all drafts (a larger --max-num-batched-tokens)"


def _failed(profile: Profile) -> Iterator[Finding]:
    failed = [failure for failure in profile.failures if failure.num_prompt_tokens]
    if failed:
        yield Finding(
            code="mixed-incomplete",
            severity="warning",
            place="mixed",
            message=f"{len(failed)} steps that run prompts could not run, and are priced by the last slope below them; "
            f"the first, {failed[0].num_tokens} tokens: {failed[0].message}",
            hint="profile smaller steps (--max-num-batched-tokens)",
        )
