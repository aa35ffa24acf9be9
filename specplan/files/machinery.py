"""What a step's own machinery costs: laying out its pass, choosing its budget, admitting its drafts."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from specplan.files._arrays import check_grid
from specplan.files.profile import Machinery

__all__ = ["MachineryCosts"]


class MachineryCosts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, eq=False):
    """Milliseconds by requests of the step, with K drafts each: `ms[i, n]` is of `terms[i]`.

    "metadata" is in every step with drafts, "bare-metadata" in those without, "budget" and "admission" in those of a
    policy that has a budget. `ci_ms` is the half-width of the median's 95% interval.
    """

    terms: list[Machinery]  # [T]
    ms: NDArray[np.float64]  # [T, max_num_reqs + 1]
    ci_ms: NDArray[np.float64]  # [T, max_num_reqs + 1]

    def __post_init__(self) -> None:
        if not self.terms or len(set(self.terms)) < len(self.terms):
            raise ValueError(f".terms: expected one or more, each once, got {', '.join(self.terms) or 'none'}")
        if self.ms.ndim != 2:
            raise ValueError(
                f".ms: expected a row for each of {len(self.terms)} terms, got shape {list(self.ms.shape)}"
            )
        check_grid((len(self.terms), self.ms.shape[1]), self.ms, self.ci_ms)

    def total(
        self,
        values: NDArray[np.float64],  # [T, max_num_reqs + 1], `ms` or `ci_ms`
        *,
        has_drafts: bool,
        has_budget: bool,
    ) -> NDArray[np.float64]:  # [max_num_reqs + 1]
        """Of a step with or without drafts, under a policy with or without a budget."""
        layout = "metadata" if has_drafts or "bare-metadata" not in self.terms else "bare-metadata"
        charged = [term == layout or (has_budget and term in ("budget", "admission")) for term in self.terms]
        total: NDArray[np.float64] = values[charged].sum(axis=0)
        return total
