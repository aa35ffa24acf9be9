"""What steps cost, laid out so that a replay can look a million of them up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from specplan.errors import ConfigError, CoverageError

if TYPE_CHECKING:
    from specplan.files.tables import CostTables
    from specplan.planning import Policy

__all__ = ["StepPrices", "VerifyPrices"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VerifyPrices:
    """Verify cost by context, requests and tokens; linear between contexts, and the end ones hold beyond them."""

    contexts: NDArray[np.float64]  # [C], ascending
    verify_ms: NDArray[np.float64]  # [C, max_num_reqs + 1, max_num_tokens + 1]
    extrapolated: NDArray[np.bool_]  # [C, max_num_reqs + 1, max_num_tokens + 1]

    def __post_init__(self) -> None:
        used = self.verify_ms[:, 1:, 1:]
        if not (np.isfinite(used) & (used > 0)).all():
            raise ConfigError(
                "the cost tables hold a verify cost that is not finite and positive",
                "build the tables anew from a profile: specplan tables",
            )

    @classmethod
    def from_tables(cls, tables: CostTables, *, max_num_reqs: int, max_num_tokens: int) -> VerifyPrices:
        if max_num_reqs > tables.max_num_reqs or max_num_tokens > tables.max_num_tokens:
            raise CoverageError(
                f"the cost tables reach {tables.max_num_reqs} requests and {tables.max_num_tokens} tokens, "
                f"and steps of {max_num_reqs} requests and {max_num_tokens} tokens are asked for",
                f"keep --concurrency to {tables.max_num_reqs} or less, or profile larger steps (--max-num-seqs) and "
                "rebuild the tables",
            )
        contexts = np.asarray(tables.contexts, dtype=np.float64)
        shape = (len(contexts), max_num_reqs + 1, max_num_tokens + 1)
        verify_ms, extrapolated = np.zeros(shape), np.zeros(shape, dtype=np.bool_)
        for c, context in enumerate(contexts):
            for n in range(1, max_num_reqs + 1):
                verify_ms[c, n] = tables.verify_row(n, context)[: max_num_tokens + 1]
                extrapolated[c, n] = (tables.verify_sources(n, context) == "x")[: max_num_tokens + 1]
        return cls(contexts=contexts, verify_ms=verify_ms, extrapolated=extrapolated)

    def row(self, num_reqs: int, context_len: float) -> NDArray[np.float64]:  # [max_num_tokens + 1]
        low, high, weight = self._between(context_len)
        below, above = self.verify_ms[low, num_reqs], self.verify_ms[high, num_reqs]
        between: NDArray[np.float64] = (1.0 - weight) * below + weight * above
        return between

    def is_extrapolated(self, num_reqs: int, context_len: float, num_tokens: int) -> bool:
        low, high, weight = self._between(context_len)
        cells = self.extrapolated[:, num_reqs, num_tokens]
        return bool((weight < 1 and cells[low]) or (weight > 0 and cells[high]))

    def _between(self, context_len: float) -> tuple[int, int, float]:
        """The two contexts around this one, and how far it is from the first to the second, in [0, 1]."""
        high = int(np.searchsorted(self.contexts, context_len))
        if high == 0:
            return 0, 0, 0.0
        if high == len(self.contexts):
            return high - 1, high - 1, 0.0
        low = high - 1
        return low, high, float((context_len - self.contexts[low]) / (self.contexts[high] - self.contexts[low]))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepPrices:
    """cost_ms(n, t, p, c, k) = draft_ms[k, n] + verify(c, n)[t] + (overhead_ms[n] + draft_prefill_ms[p]).

    k is what the step itself drafts, for the next step to verify; p of its t tokens are prompt tokens.
    """

    verify: VerifyPrices
    draft_ms: NDArray[np.float64]  # [most k + 1, max_num_reqs + 1]; NaN at a k that is never drafted
    overhead_ms: NDArray[np.float64]  # [max_num_reqs + 1]
    draft_prefill_ms: NDArray[np.float64]  # [max_num_tokens + 1]; 0 without a drafter

    @classmethod
    def from_tables(
        cls, verify: VerifyPrices, tables: CostTables, *, policy: Policy, num_speculative_tokens: int
    ) -> StepPrices:
        """Holds every k that `policy` may draft where K are configured. No other need have been measured."""
        fewest = policy.fewest_drafts(num_speculative_tokens)
        most = policy.num_drafts(num_speculative_tokens)
        draft_ms = np.full((most + 1, tables.max_num_reqs + 1), np.nan)
        for k in range(fewest, most + 1):
            draft_ms[k] = tables.draft_row(k) if policy.loads_drafter else 0.0
        return cls(
            verify=verify,
            draft_ms=draft_ms,
            # Copies: a table's own rows are read-only, which numba would compile for once more.
            overhead_ms=tables.overhead_ms.copy(),
            draft_prefill_ms=tables.draft_prefill_ms.copy()
            if policy.loads_drafter
            else np.zeros(len(tables.draft_prefill_ms)),
        )

    def fixed_ms(self, num_reqs: int, num_prompt_tokens: int) -> float:
        """What a step costs whatever its budget, besides drafting: the `overhead_ms` of the budget rule."""
        if num_prompt_tokens >= len(self.draft_prefill_ms):
            raise CoverageError(
                f"drafter prefill costs reach {len(self.draft_prefill_ms) - 1} tokens, and this step may run "
                f"{num_prompt_tokens} prompt tokens",
                "measure or build the cost tables up to more tokens, or give steps fewer",
            )
        return float(self.overhead_ms[num_reqs] + self.draft_prefill_ms[num_prompt_tokens])

    def step_ms(self, num_reqs: int, context_len: float, num_tokens: int, *, num_prompt_tokens: int, k: int) -> float:
        verify_ms = self.verify.row(num_reqs, context_len)[num_tokens]
        return float(self.draft_ms[k, num_reqs] + verify_ms + self.fixed_ms(num_reqs, num_prompt_tokens))
