"""Mixed steps: from a profile's samples to a grid of costs by context, verifying requests, drafts and prompt tokens."""

from __future__ import annotations

from collections.abc import Iterator
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

Cell = tuple[int, int, int, int]  # context, verifying requests, drafts of each, prompt tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPricing:
    costs: MixedCosts | None  # None where no mixed step was measured, or no whole grid of them
    error: RegionError | None
    findings: list[Finding]


def price_mixed(profile: Profile, monotone: Monotone) -> MixedPricing:
    """The largest grid that is whole: of every size of prompts at which each composition was measured.

    Unless `monotone` is "none", a step with more prompt tokens, drafts or verifying requests costs no less: beside many
    prompt tokens what a draft costs is less than the noise.
    """
    cells = mixed_cells(profile)
    if not cells:
        return MixedPricing(costs=None, error=None, findings=[_unmeasured()])
    verifying = {cell for cell in cells if cell[1]}
    contexts = sorted({context for context, _, _, _ in verifying}) or [0]
    counts = sorted({num_verifying for _, num_verifying, _, _ in cells})
    drafts = sorted({drafts for _, _, drafts, _ in verifying}) or [0]
    sizes = sorted({size for _, _, _, size in cells})
    needed = len(contexts) * len(drafts) * sum(count > 0 for count in counts) + (0 in counts)  # of each size
    compositions = list(product(contexts, counts, drafts)) if needed <= len(cells) else []
    whole = [size for size in sizes if compositions and all(_cell(*each, size) in cells for each in compositions)]
    findings = list(_left_out([size for size in sizes if size not in whole], sizes, profile))
    if len(whole) < 2 or not verifying:
        return MixedPricing(costs=None, error=None, findings=[*findings, _too_few(whole)])
    series = [cells[_cell(*each, size)] for each in compositions for size in whole]
    shape = (len(contexts), len(counts), len(drafts), len(whole))
    ms = np.array([np.median(repetitions) for repetitions in series]).reshape(shape)
    ci_ms = median_half_widths([np.array(repetitions) for repetitions in series]).reshape(shape)
    # What stands in several places, for without verifying requests there is neither context nor draft, counts once.
    rows = {_cell(*each, 0): row for each, row in zip(compositions, ms.reshape(-1, len(whole)), strict=True)}
    errors = [leave_one_out(np.array(whole), row, capture_limit=0) for row in rows.values()]
    return MixedPricing(
        costs=MixedCosts(
            contexts=contexts,
            num_verifying=counts,
            drafts=drafts,
            prompt_tokens=whole,
            ms=ms if monotone == "none" else rising(ms),
            ci_ms=ci_ms,
        ),
        error=summarise(np.concatenate(errors), LEAVE_ONE_OUT),
        findings=findings,
    )


def rising(ms: NDArray[np.float64]) -> NDArray[np.float64]:  # [C, V, D, P], as is the result
    """The dearest so far along every axis but the contexts'."""
    for axis in (1, 2, 3):
        ms = np.maximum.accumulate(ms, axis)
    return ms


def mixed_cells(profile: Profile) -> dict[Cell, list[float]]:
    """Every repetition of each composition; steps of one differ in the number of prompts at most."""
    cells: dict[Cell, list[float]] = {}
    for index, sample in enumerate(profile.samples):
        if sample.model == "verify" and sample.is_mixed and sample.layout == "multi-query":
            require_positive(index, sample)
            drafts = sample.num_drafts // sample.num_verifying if sample.num_verifying else 0
            cell = _cell(sample.context_len, sample.num_verifying, drafts, sample.num_prompt_tokens)
            cells.setdefault(cell, []).extend(sample.repetitions_ms)
    return cells


def _cell(context: int, num_verifying: int, drafts: int, num_prompt_tokens: int) -> Cell:
    """Without verifying requests there is no context, and nothing is drafted."""
    return (context, num_verifying, drafts, num_prompt_tokens) if num_verifying else (0, 0, 0, num_prompt_tokens)


def _unmeasured() -> Finding:
    return Finding(
        code="mixed-not-measured",
        severity="note",
        place="mixed",
        message="steps that run prompts were not measured as such, and cost what verify passes of their size do",
        hint="measure them: specplan profile",
    )


def _too_few(sizes: list[int]) -> Finding:
    return Finding(
        code="mixed-too-few",
        severity="warning",
        place="mixed",
        message=f"steps that run prompts were measured beside every number of verifying requests at {len(sizes)} sizes "
        "of prompts, expected 2 or more: they cost what verify passes of their size do",
        hint="measure them: specplan profile",
    )


def _left_out(sizes: list[int], of: list[int], profile: Profile) -> Iterator[Finding]:
    if not sizes:
        return
    failed = [failure for failure in profile.failures if failure.num_prompt_tokens in sizes]
    why = f"; the first that failed, {failed[0].num_tokens} tokens: {failed[0].message}" if failed else ""
    yield Finding(
        code="mixed-incomplete",
        severity="warning",
        place="mixed",
        message=f"of {len(of)} sizes of prompts, {len(sizes)} (the first {sizes[0]}) were not measured at every "
        f"context, number of verifying requests and drafts that others were, and are not used{why}",
        hint="profile smaller steps (--max-num-batched-tokens)"
        if failed
        else "give it more time: specplan profile --resume",
    )
