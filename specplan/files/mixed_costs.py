"""What the target's pass costs in a mixed step: one that holds prompt tokens."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from specplan.files._arrays import check_axis, check_grid

__all__ = ["MixedCosts"]


class MixedCosts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, eq=False):
    """Costs on a grid of what was measured, in milliseconds. Nothing is captured, so that they are linear in between.

    `contexts` is the mean of the verifying requests, and has no meaning where `num_verifying` is 0; `drafts` are those
    verified for each of them. Outside the grid the nearest cost holds, but past the last `prompt_tokens` the last slope
    goes on. `ci_ms` is the half-width of the median's 95% interval.
    """

    contexts: list[int]  # [C]
    num_verifying: list[int]  # [V]
    drafts: list[int]  # [D]
    prompt_tokens: list[int]  # [P]
    ms: NDArray[np.float64]  # [C, V, D, P]
    ci_ms: NDArray[np.float64]  # [C, V, D, P]

    def __post_init__(self) -> None:
        axes = {name: getattr(self, name) for name in ("contexts", "num_verifying", "drafts", "prompt_tokens")}
        for name, axis in axes.items():
            check_axis(f".{name}", axis, least=1 if name == "prompt_tokens" else 0)
        check_grid(tuple(map(len, axes.values())), self.ms, self.ci_ms)
