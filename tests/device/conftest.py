"""Random steps to hold implementations of admission against each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specplan.planning import admit_by_survival, survival_probability

# Few values, so that ties are the rule: ones, zeros of both signs, products that round, that fall below the smallest
# normal, that are subnormal to begin with, and what is no probability at all.
VALUES = np.array(
    [1, 0, -0.0, 0.5, 0.25, 0.9, 0.3, 1 / 3, 1e-20, 1.5e-38, 1e-45, np.nan, np.inf, -np.inf, -0.5, 1.0000001, 2],
    dtype=np.float32,
)


@dataclass(frozen=True, kw_only=True)
class AdmissionCase:
    confidence: NDArray[np.float32]  # [num_slots, K]
    idx_mapping: NDArray[np.int64]  # [num_reqs]
    scheduled: NDArray[np.int64]  # [num_reqs]
    draft_budget: int

    def expected(self) -> NDArray[np.int32]:
        survival = survival_probability(self.confidence[self.idx_mapping], self.scheduled)
        return admit_by_survival(survival, self.scheduled, self.draft_budget)


def make_case(
    rng: np.random.Generator, *, num_reqs: int | None = None, num_positions: int | None = None
) -> AdmissionCase:
    """A step of random size, or of the one asked for, with ragged and empty rows and budgets past what is offered."""
    num_reqs = int(rng.integers(0, 10)) if num_reqs is None else num_reqs
    num_positions = int(rng.integers(1, 8)) if num_positions is None else num_positions
    num_slots = num_reqs + int(rng.integers(0, 4))
    scheduled = rng.integers(0, num_positions + 1, num_reqs)
    if rng.random() < 0.2:
        scheduled[:] = rng.choice([0, num_positions])
    if rng.random() < 0.7:
        confidence = rng.choice(VALUES, (num_slots, num_positions))
    else:
        confidence = rng.random((num_slots, num_positions), dtype=np.float32)
    return AdmissionCase(
        confidence=confidence,
        idx_mapping=rng.permutation(num_slots)[:num_reqs],
        scheduled=scheduled,
        draft_budget=int(rng.integers(0, num_reqs * num_positions + 3)),
    )


@pytest.fixture
def admission_case() -> Any:
    """`admission_case(rng, num_reqs=..., num_positions=...)`."""
    return make_case
