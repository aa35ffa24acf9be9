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

    def at(
        self,
        steps: NDArray[np.float64],  # [S, 4]: context, verifying requests, drafts of each, prompt tokens
    ) -> NDArray[np.float64]:  # [S]
        """The cost of steps within the grid; of those outside, which nobody holds out, that of the nearest inside.

        Many at once, for what a verification measured; a replay looks steps up one by one (MixedPrices), and a test
        holds the two equal.
        """
        from scipy.interpolate import interpn

        axes = [np.array(axis, dtype=np.float64) for axis in self.axes]
        inside = np.stack([np.clip(steps[:, i], axis[0], axis[-1]) for i, axis in enumerate(axes)], axis=1)
        several = [i for i, axis in enumerate(axes) if len(axis) > 1]  # scipy takes no axis of one place
        grid = self.ms.reshape([len(axes[i]) for i in several])
        costs: NDArray[np.float64] = interpn([axes[i] for i in several], grid, inside[:, several])
        return costs

    @property
    def axes(self) -> tuple[list[int], list[int], list[int], list[int]]:
        return self.contexts, self.num_verifying, self.drafts, self.prompt_tokens
