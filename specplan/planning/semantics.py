"""What it loses to plan by one reading of a cost table where steps cost what another says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from specplan.errors import CoverageError
from specplan.files.tables import CostTables, Semantics
from specplan.planning.budget import choose_draft_budget
from specplan.planning.choices import nearest_draft_k

__all__ = ["RUNNING", "Loss", "SemanticsComparison", "compare_semantics"]

# What a step can cost: an engine that replays graphs pads, and one whose replays fit any size would not. No engine runs
# a step in the time of a smaller one, or not at all, so that floor and exact are ways of planning only.
RUNNING: Final[tuple[Semantics, ...]] = ("padded", "linear")
NUM_BATCHES: Final = 50  # of each number of requests and acceptance
ACCEPTANCE: Final = (0.5, 0.7, 0.85)  # means of a draft's confidence
SPREAD: Final = 4.0  # Beta(SPREAD * mean, SPREAD * (1 - mean)) of each draft


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of the best expected tokens/ms that planning by `planned` forgoes in batches of `num_reqs` requests."""

    planned: Semantics
    running: Semantics
    num_reqs: int
    mean: float
    p95: float


class SemanticsComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Confidences are drawn: of each batch from Beta distributions of one of three means. Where drafting was not timed
    at K, `num_speculative_tokens` is the nearest that it was timed at."""

    context_len: int
    num_speculative_tokens: int
    num_batches: int  # of each number of requests
    losses: list[Loss]

    def over_requests(self, planned: Semantics, running: Semantics) -> tuple[float, float]:
        """The mean of the means, and the largest 95th percentile."""
        of = [loss for loss in self.losses if (loss.planned, loss.running) == (planned, running)]
        return float(np.mean([loss.mean for loss in of])), max(loss.p95 for loss in of)


def compare_semantics(readings: Mapping[Semantics, CostTables], *, seed: int = 0) -> SemanticsComparison:
    """`readings`: the tables of one profile under each semantics, those in RUNNING among them.

    With B* the budget that `choose_draft_budget` takes by the planner's reading, and rate(B) = tokens(B) / cost(B) by
    the reading that is charged, a batch loses 1 - rate(B*) / max over B of rate(B).
    """
    tables = readings["padded"]
    context_len = tables.contexts[-1]
    k = nearest_draft_k(tables, tables.num_speculative_tokens or 1)
    if k < 1:
        raise CoverageError(
            "drafting was timed at k = 0 alone, so that no step of these tables has a draft",
            "measure or import drafts of one token or more",
        )
    draft_row, rng = tables.draft_row(k), np.random.default_rng(seed)
    overhead_ms = tables.step_overhead_ms(has_drafts=True, has_budget=True)
    counts = [n for n in tables.num_reqs if n < tables.max_num_tokens]
    if not counts:
        raise CoverageError(
            f"these tables reach {tables.max_num_tokens} tokens, and the fewest requests of them are "
            f"{min(tables.num_reqs)}: no step of theirs has a draft",
            "measure or import steps with drafts: more tokens than requests",
        )
    losses = []
    for num_reqs in counts:
        rows = {name: each.verify_row(num_reqs, context_len) for name, each in readings.items()}
        fixed_ms = float(draft_row[num_reqs] + overhead_ms[num_reqs])
        lost: dict[tuple[Semantics, Semantics], list[float]] = {}
        for mean in ACCEPTANCE:
            for _ in range(NUM_BATCHES):
                confidence = rng.beta(SPREAD * mean, SPREAD * (1 - mean), size=(num_reqs, k)).astype(np.float32)
                most = min(confidence.size, tables.max_num_tokens - num_reqs)
                rates = {name: rates_of(confidence, rows[name], fixed_ms)[: most + 1] for name in RUNNING}
                for planned, row in rows.items():
                    budget = choose_draft_budget(
                        confidence,
                        np.full(num_reqs, k),
                        num_sampling=num_reqs,
                        num_non_draft_tokens=num_reqs,
                        draft_ms=fixed_ms,
                        verify_ms=row,
                        max_draft_budget=most,
                    ).draft_budget
                    for running, rate in rates.items():
                        lost.setdefault((planned, running), []).append(1 - rate[budget] / rate.max())
        losses += [
            Loss(
                planned=planned,
                running=running,
                num_reqs=num_reqs,
                mean=float(np.mean(each)),
                p95=float(np.percentile(each, 95)),
            )
            for (planned, running), each in lost.items()
        ]
    return SemanticsComparison(
        context_len=context_len,
        num_speculative_tokens=k,
        num_batches=NUM_BATCHES * len(ACCEPTANCE),
        losses=losses,
    )


def rates_of(
    confidence: NDArray[np.float32],  # [num_reqs, K]
    verify_ms: NDArray[np.float64],  # by tokens
    fixed_ms: float,
) -> NDArray[np.float64]:  # [num_reqs * K + 1]
    """Expected tokens per millisecond at every budget that the row reaches, all drafts offered."""
    num_reqs, num_drafts = len(confidence), confidence.size
    survival = np.cumprod(confidence, axis=1, dtype=np.float32).ravel()
    tokens = num_reqs + np.concatenate(([0.0], np.cumsum(np.sort(survival)[::-1].astype(np.float64))))
    costs = fixed_ms + verify_ms[num_reqs : num_reqs + num_drafts + 1]
    rates: NDArray[np.float64] = tokens[: len(costs)] / costs
    return rates
