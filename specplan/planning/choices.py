"""Whether what a budget chooses under these tables rests on what was measured."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from specplan.files.tables import CostTables, Finding
from specplan.planning.budget import choose_draft_budget

__all__ = ["judge_choices", "nearest_draft_k"]

CONFIDENCES = (0.5, 0.7, 0.9, 1.0)


def judge_choices(tables: CostTables) -> Iterator[Finding]:
    """Every number of requests that was measured, at the longest context, with drafts that are all equally sure."""
    asked = tables.num_speculative_tokens
    if not asked:
        return
    k = nearest_draft_k(tables, asked)
    if k != asked and tables.draft_ks is not None:
        first, last = tables.draft_ks[0], tables.draft_ks[-1]
        yield Finding(
            code="draft-k-not-measured",
            severity="warning",
            place="draft",
            message=f"these costs are for K = {asked}, and drafting was timed at "
            f"{f'k = {first}' if first == last else f'k from {first} to {last}'}: a step that drafts {asked} tokens "
            "each has no cost",
            hint=f"time drafting at k = {asked} too (specplan profile -k {asked}), or plan with what was timed: "
            f"specplan simulate -k {max(last, 1)}",
        )
    if not k:
        return
    draft_row, overhead_ms = tables.draft_row(k), tables.step_overhead_ms(has_drafts=True, has_budget=True)
    tried, guessed = 0, []
    for num_reqs in tables.num_reqs:
        most = min(num_reqs * k, tables.max_num_tokens - num_reqs)
        if most < 1:
            continue
        row = tables.verify_row(num_reqs, tables.contexts[-1])
        sources = tables.verify_sources(num_reqs, tables.contexts[-1])
        for confidence in CONFIDENCES:
            chosen = (
                num_reqs
                + choose_draft_budget(
                    np.full((num_reqs, k), confidence),
                    np.full(num_reqs, k),
                    num_sampling=num_reqs,
                    num_non_draft_tokens=num_reqs,
                    draft_ms=float(draft_row[num_reqs]),
                    verify_ms=row,
                    max_draft_budget=most,
                    overhead_ms=float(overhead_ms[num_reqs]),
                ).draft_budget
            )
            tried += 1
            if sources[chosen] in ("x", "u"):
                guessed.append((num_reqs, chosen, confidence))
    if guessed:
        num_reqs, chosen, confidence = guessed[-1]
        yield Finding(
            code="choice-extrapolated",
            severity="warning",
            place=f"verify, {num_reqs} requests",
            message=f"{len(guessed)} of {tried} budgets rest on costs that were not measured: with {num_reqs} "
            "requests and "
            f"confidences of {confidence}, a step of {chosen} tokens",
            hint=f"measure that far: specplan profile --max-num-seqs {num_reqs} --max-num-batched-tokens {2 * chosen}",
        )


def nearest_draft_k(tables: CostTables, k: int) -> int:
    """`k`, or the nearest to it that the tables know what drafting costs at."""
    return k if tables.draft_ks is None else min(max(k, tables.draft_ks[0]), tables.draft_ks[-1])
