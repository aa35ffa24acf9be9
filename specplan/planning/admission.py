"""Which drafts a budget admits: the plain definition that every device agrees with."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specplan.errors import ConfigError
from specplan.planning.survival import check_scheduled, eligible_slots

__all__ = ["admit_by_survival"]


def admit_by_survival(
    survival: NDArray[np.floating[Any]],  # [num_reqs, K], non-increasing along axis 1
    scheduled: NDArray[np.integer[Any]],  # [num_reqs], <= K
    draft_budget: int,
) -> NDArray[np.int32]:  # [num_reqs]
    """How many leading drafts of each request are among the `draft_budget` best scheduled ones.

    Higher survival first, then the earlier position, then the lower row. As survival never rises along a request's
    drafts, what is admitted is always a prefix of them. A slot past `scheduled` is never admitted, a scheduled one of
    zero survival is, once the budget reaches it.
    """
    check_scheduled(survival, scheduled)
    num_reqs, num_positions = survival.shape
    if not (survival[:, 1:] <= survival[:, :-1]).all() or np.isnan(survival).any():
        raise ConfigError(
            "survival rises along a request's drafts or is NaN, expected it never to rise",
            "pass what survival_probability returns, not the confidences",
        )
    if draft_budget < 0:
        raise ConfigError(f"draft_budget is {draft_budget}, expected 0 or more", "pass the budget of one step")
    # Laid out position by position, a stable sort leaves equals in the order that ties ask for.
    by_position = np.argsort(-survival.T.ravel(), kind="stable")
    eligible = eligible_slots(scheduled, num_positions).T.ravel()
    admitted = by_position[eligible[by_position]][:draft_budget]
    return np.bincount(admitted % max(num_reqs, 1), minlength=num_reqs).astype(np.int32)
