"""What steps cost, laid out so that a replay can look a million of them up."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from specplan.errors import CoverageError
from specplan.files.axis import corners, place_on

if TYPE_CHECKING:
    from specplan.files.mixed_costs import MixedCosts
    from specplan.files.tables import CostTables
    from specplan.planning import Policy

__all__ = ["DrafterInput", "MixedPrices", "Region", "StepPrices", "StepSize", "VerifyPrices"]

DrafterInput = Literal["last", "step"]
Region = Literal["captured", "smooth", "mixed"]
_FAR = 2.0  # times the longest context that was measured, where its slope goes on


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VerifyPrices:
    """Verify cost by context, requests and tokens; linear between contexts, and the shortest holds below it. Past the
    longest, each token of context costs `context_ms` more: 0 where the longest holds.
    """

    contexts: NDArray[np.float64]  # [C], ascending
    verify_ms: NDArray[np.float64]  # [C, max_num_reqs + 1, max_num_tokens + 1]
    extrapolated: NDArray[np.bool_]  # [C, max_num_reqs + 1, max_num_tokens + 1]
    context_ms: float = 0.0
    furthest_context: float = math.inf  # past which a step counts as extrapolated
    capture_limit: int = 0  # in tokens

    @classmethod
    def from_tables(
        cls, tables: CostTables, *, max_num_reqs: int, max_num_tokens: int, num_speculative_tokens: int
    ) -> VerifyPrices:
        """As far as steps of so many requests with K drafts each go; and of as many tokens as a step may hold, where
        steps that hold prompts are priced as verify passes."""
        num_tokens = max_num_tokens
        if tables.mixed is not None:
            num_tokens = min(num_tokens, max_num_reqs * (1 + num_speculative_tokens))
        reached = num_tokens <= tables.max_num_tokens and max_num_tokens <= tables.max_step_tokens
        if max_num_reqs > tables.max_num_reqs or not reached:
            most = tables.max_num_tokens if num_tokens > tables.max_num_tokens else tables.max_step_tokens
            raise CoverageError(
                f"the cost tables reach {tables.max_num_reqs} requests and {most} tokens, and steps of {max_num_reqs} "
                f"requests and {num_tokens if most == tables.max_num_tokens else max_num_tokens} tokens are asked for",
                _reach_hint(tables, max_num_reqs),
            )
        contexts = np.asarray(tables.contexts, dtype=np.float64)
        shape = (len(contexts), max_num_reqs + 1, num_tokens + 1)
        verify_ms, extrapolated = np.zeros(shape), np.zeros(shape, dtype=np.bool_)
        for c, context in enumerate(contexts):
            for n in range(1, max_num_reqs + 1):
                verify_ms[c, n] = tables.verify_row(n, context)[: num_tokens + 1]
                extrapolated[c, n] = (tables.verify_sources(n, context) == "x")[: num_tokens + 1]
        return cls(
            contexts=contexts,
            verify_ms=verify_ms,
            extrapolated=extrapolated,
            context_ms=tables.context_ms,
            furthest_context=_furthest(tables),
            capture_limit=tables.capture_limit,
        )

    def half_widths(self, tables: CostTables) -> VerifyPrices:
        """Of the 95% intervals of these costs."""
        ci_ms = np.zeros_like(self.verify_ms)
        for c, context in enumerate(self.contexts):
            for n in range(1, len(ci_ms[c])):
                ci_ms[c, n] = tables.verify_ci_row(n, context)[: len(ci_ms[c, n])]
        return VerifyPrices(contexts=self.contexts, verify_ms=ci_ms, extrapolated=self.extrapolated)

    def beyond_ms(self, num_reqs: int, context_len: float, longest: float) -> float:
        """What contexts past the longest measured add."""
        return float(self.context_ms * (num_reqs * max(context_len - longest, 0.0)))

    def row(self, num_reqs: int, context_len: float) -> NDArray[np.float64]:  # [max_num_tokens + 1]
        low, high, weight = place_on(self.contexts, context_len)
        below: NDArray[np.float64] = self.verify_ms[low, num_reqs]
        above: NDArray[np.float64] = self.verify_ms[high, num_reqs]
        if weight in (0.0, 1.0):  # a size without a cost is infinite, and 0 times that is no number
            return above if weight else below
        return (1.0 - weight) * below + weight * above

    def is_extrapolated(self, num_reqs: int, context_len: float, num_tokens: int) -> bool:
        low, high, weight = place_on(self.contexts, context_len)
        cells = self.extrapolated[:, num_reqs, num_tokens]
        return bool((weight < 1 and cells[low]) or (weight > 0 and cells[high]))


def _reach_hint(tables: CostTables, max_num_reqs: int) -> str:
    larger = "measure larger steps and rebuild the tables"
    if max_num_reqs > tables.max_num_reqs:
        return f"keep --concurrency to {tables.max_num_reqs} or less, or {larger} (--max-num-seqs)"
    return f"plan for fewer drafts a request (-k), or {larger} (-k, --max-num-batched-tokens)"


def _furthest(tables: CostTables) -> float:
    """Past which context a cost rests on what nobody measured: soon where the longest is held, later where what each
    token adds is known. Curves without a context hold for any."""
    longest = tables.contexts[-1]
    if longest == 0:
        return math.inf
    return _FAR * longest if tables.context_ms > 0 else float(longest)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MixedPrices:
    """The target's pass in a step that holds prompt tokens; see files/mixed_costs.py."""

    contexts: NDArray[np.float64]  # [C], ascending, as is every axis
    num_verifying: NDArray[np.float64]  # [V]
    drafts: NDArray[np.float64]  # [D]
    prompt_tokens: NDArray[np.float64]  # [P]
    ms: NDArray[np.float64]  # [C, V, D, P]

    @classmethod
    def from_costs(cls, costs: MixedCosts, ms: NDArray[np.float64]) -> MixedPrices:
        """`ms`: the grid's costs, or the half-widths of their intervals."""
        axes = (costs.contexts, costs.num_verifying, costs.drafts, costs.prompt_tokens)
        # A copy: a table's own array is read-only, which numba would compile for once more.
        contexts, num_verifying, drafts, prompt_tokens = (np.array(axis, dtype=np.float64) for axis in axes)
        return cls(
            contexts=contexts,
            num_verifying=num_verifying,
            drafts=drafts,
            prompt_tokens=prompt_tokens,
            ms=ms.copy(),
        )

    def by_drafts(self, num_verifying: int, num_prompt_tokens: int, context_len: float) -> NDArray[np.float64]:  # [D]
        """Costs at each measured number of drafts per verifying request."""
        by_drafts = np.zeros(len(self.drafts))
        low, high, weight = place_on(self.prompt_tokens, num_prompt_tokens)
        beyond = 0.0
        if len(self.prompt_tokens) > 1:
            last, before = self.prompt_tokens[-1], self.prompt_tokens[-2]
            beyond = max(num_prompt_tokens - last, 0.0) / (last - before)
        for c, context_weight in corners(place_on(self.contexts, context_len)):
            for v, row_weight in corners(place_on(self.num_verifying, num_verifying)):
                by_size = self.ms[c, v]  # [D, P]
                at_size = (1.0 - weight) * by_size[:, low] + weight * by_size[:, high]
                if beyond > 0:  # the last slope goes on; one that falls would make large steps free
                    at_size = at_size + np.maximum(by_size[:, -1] - by_size[:, -2], 0.0) * beyond
                by_drafts += context_weight * row_weight * at_size
        return by_drafts

    def budget_row(
        self, num_verifying: int, num_prompt_tokens: int, context_len: float, most_drafts: int
    ) -> NDArray[np.float64]:  # [most_drafts + 1]
        """The cost with 0 to `most_drafts` drafts in all, linear in them between those that were measured."""
        by_drafts = self.by_drafts(num_verifying, num_prompt_tokens, context_len)
        each = np.arange(most_drafts + 1) / max(num_verifying, 1)
        # np.interp, whose roundings are its own, would not do: the compiled replay has to agree to the bit.
        low = np.clip(np.searchsorted(self.drafts, each) - 1, 0, max(len(self.drafts) - 2, 0))
        high = np.minimum(low + 1, len(self.drafts) - 1)
        span = np.where(high > low, self.drafts[high] - self.drafts[low], 1.0)
        weight = np.clip((each - self.drafts[low]) / span, 0.0, 1.0)
        row: NDArray[np.float64] = (1.0 - weight) * by_drafts[low] + weight * by_drafts[high]
        return row

    def is_extrapolated(self, num_verifying: int, num_prompt_tokens: int, num_drafts: int) -> bool:
        return bool(
            not self.num_verifying[0] <= num_verifying <= self.num_verifying[-1]
            or not self.prompt_tokens[0] <= num_prompt_tokens <= self.prompt_tokens[-1]
            or not num_verifying * self.drafts[0] <= num_drafts <= num_verifying * self.drafts[-1]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSize:
    """What a step's price hangs on, before its drafts are known.

    `context_len` is the mean over the requests that verify; over all where none does.
    """

    num_reqs: int
    num_verifying: int
    num_sampling: int  # of which each drafts for the next step: those that verify, and those whose prompt ends
    num_prompt_tokens: int
    context_len: float

    @property
    def num_non_draft_tokens(self) -> int:
        return self.num_verifying + self.num_prompt_tokens


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepPrices:
    """cost_ms = draft_ms[k, N] + target_ms + feed_ms[v] * fed + (overhead_ms[n] + draft_prefill_ms[p]) of a step of n
    requests.

    k is what each of the N that sample drafts, for the next step to verify; where none does the drafter does not run. p
    of its t tokens are prompt tokens. target_ms is verify(c, n)[t]; of a mixed step, where those were measured,
    mixed(c, v, p)[B] with v verifying requests and B drafts; and both more by context_ms * v * (c - the longest
    measured context) past that. Where the drafter's first pass takes all tokens of the verifying requests, fed = max(v
    + B - feed_len * v, 0) are those that draft_ms does not hold; elsewhere feed_ms is None and nothing is.
    """

    verify: VerifyPrices
    mixed: MixedPrices | None
    draft_ms: NDArray[np.float64]  # [most k + 1, max_num_reqs + 1]; NaN at a k that is never drafted
    overhead_ms: NDArray[np.float64]  # [max_num_reqs + 1]
    draft_prefill_ms: NDArray[np.float64]  # [max_num_tokens + 1]; 0 without a drafter
    feed_ms: NDArray[np.float64] | None = (
        None  # [max_num_reqs + 1]; None: the first pass takes feed_len of each request
    )
    feed_len: int = 0

    @classmethod
    def from_tables(
        cls,
        verify: VerifyPrices,
        tables: CostTables,
        *,
        policy: Policy,
        num_speculative_tokens: int,
        drafter_input: DrafterInput = "last",
    ) -> StepPrices:
        """Holds every k that `policy` may draft where K are configured. No other need have been measured.

        `drafter_input`: what the drafter's first pass takes. "last": the last tokens of each request, as specplan's
        engine runs it. "step": all that the step verified, as engines do that do not wait for how many were accepted.
        """
        prices = cls._assemble(
            verify,
            tables,
            mixed_ms=None if tables.mixed is None else tables.mixed.ms,
            draft_row=tables.draft_row,
            overhead_ms=tables.step_overhead_ms(
                has_drafts=policy.num_drafts(num_speculative_tokens) > 0, has_budget=policy.has_budget
            ),
            draft_prefill_ms=tables.draft_prefill_ms,
            policy=policy,
            num_speculative_tokens=num_speculative_tokens,
        )
        return prices._fed(tables, tables.feed_ms, policy, drafter_input)

    def _fed(
        self,
        tables: CostTables,
        feed_ms: Callable[[], NDArray[np.float64]],
        policy: Policy,
        drafter_input: DrafterInput,
    ) -> StepPrices:
        """With what a drafter pays whose first pass takes the whole step; where drafting is free, it pays nothing."""
        if drafter_input == "last" or not policy.loads_drafter or not tables.draft_table_ms.any():
            return self
        return replace(self, feed_ms=feed_ms(), feed_len=tables.feed_costs[0].narrow_len)

    @classmethod
    def half_widths(
        cls,
        verify: VerifyPrices,
        tables: CostTables,
        *,
        policy: Policy,
        num_speculative_tokens: int,
        drafter_input: DrafterInput = "last",
    ) -> StepPrices:
        """Of the 95% intervals of the costs that `from_tables` holds; 0 where nobody knows. `verify` is of costs too.

        What a step adds up is the interval of its cost if all that it rests on erred together, which is the most. A
        context past the longest measured has no interval: such a step counts as extrapolated.
        """
        prefill_ci_ms = tables.draft_prefill_ci_ms
        half_widths = cls._assemble(
            verify.half_widths(tables),
            tables,
            mixed_ms=None if tables.mixed is None else tables.mixed.ci_ms,
            draft_row=tables.draft_ci_row,
            overhead_ms=tables.step_overhead_ci_ms(
                has_drafts=policy.num_drafts(num_speculative_tokens) > 0, has_budget=policy.has_budget
            ),
            draft_prefill_ms=np.zeros_like(tables.draft_prefill_ms) if prefill_ci_ms is None else prefill_ci_ms,
            policy=policy,
            num_speculative_tokens=num_speculative_tokens,
        )
        return half_widths._fed(tables, tables.feed_ci_ms, policy, drafter_input)

    @classmethod
    def _assemble(
        cls,
        verify: VerifyPrices,
        tables: CostTables,
        *,
        mixed_ms: NDArray[np.float64] | None,
        draft_row: Callable[[int], NDArray[np.float64]],
        overhead_ms: NDArray[np.float64],
        draft_prefill_ms: NDArray[np.float64],
        policy: Policy,
        num_speculative_tokens: int,
    ) -> StepPrices:
        fewest = policy.fewest_drafts(num_speculative_tokens)
        most = policy.num_drafts(num_speculative_tokens)
        draft_ms = np.full((most + 1, tables.max_num_reqs + 1), np.nan)
        for k in range(fewest, most + 1):
            draft_ms[k] = draft_row(k) if policy.loads_drafter else 0.0
        prefill_ms = draft_prefill_ms.copy() if policy.loads_drafter else np.zeros(len(draft_prefill_ms))
        mixed = tables.mixed
        return cls(
            verify=verify,
            mixed=None if mixed is None or mixed_ms is None else MixedPrices.from_costs(mixed, mixed_ms),
            draft_ms=draft_ms,
            overhead_ms=overhead_ms,
            draft_prefill_ms=prefill_ms,
        )

    def fixed_ms(self, size: StepSize) -> float:
        """What a step costs whatever its budget, besides drafting: the `overhead_ms` of the budget rule."""
        if size.num_prompt_tokens >= len(self.draft_prefill_ms):
            raise CoverageError(
                f"drafter prefill costs reach {len(self.draft_prefill_ms) - 1} tokens, and this step may run "
                f"{size.num_prompt_tokens} prompt tokens",
                "measure or build the cost tables up to more tokens, or give steps fewer",
            )
        return float(self.overhead_ms[size.num_reqs] + self.draft_prefill_ms[size.num_prompt_tokens])

    def drafting_ms(self, size: StepSize, k: int) -> float:
        return float(self.draft_ms[k, size.num_sampling]) if size.num_sampling else 0.0

    def target_row(self, size: StepSize, most_drafts: int) -> NDArray[np.float64]:  # [> T + most_drafts]
        """What a step costs by its tokens, for the budget rule: read from its T non-draft tokens on. The target's pass,
        and where the drafter's first pass takes all that was verified, what that adds to it."""
        mixed = self._mixed(size)
        longest = (self.verify if mixed is None else mixed).contexts[-1]
        beyond_ms = self.verify.beyond_ms(size.num_verifying, size.context_len, longest)
        if mixed is None:
            row = self.verify.row(size.num_reqs, size.context_len) + beyond_ms
        else:
            costs = mixed.budget_row(size.num_verifying, size.num_prompt_tokens, size.context_len, most_drafts)
            row = np.concatenate((np.full(size.num_non_draft_tokens, np.nan), costs + beyond_ms))
        if self.feed_ms is not None:
            drafts = np.arange(len(row)) - size.num_non_draft_tokens
            fed = np.maximum(size.num_verifying + drafts - self.feed_len * size.num_verifying, 0)
            row = row + self.feed_ms[size.num_verifying] * fed
        return row

    def target_ms(self, size: StepSize, num_drafts: int) -> float:
        return float(self.target_row(size, num_drafts)[size.num_non_draft_tokens + num_drafts])

    def step_ms(self, size: StepSize, *, num_drafts: int, k: int) -> float:
        return self.drafting_ms(size, k) + self.target_ms(size, num_drafts) + self.fixed_ms(size)

    def region_of(self, size: StepSize, num_drafts: int) -> Region:
        """Which costs the target's pass of a step is charged by."""
        if self._mixed(size) is not None:
            return "mixed"
        num_tokens = size.num_non_draft_tokens + num_drafts
        return "captured" if num_tokens <= self.verify.capture_limit else "smooth"

    def draft_total_ms(self, size: StepSize, k: int) -> float:
        """What the drafter takes of a step: drafting, and its pass over the prompts."""
        return self.drafting_ms(size, k) + float(self.draft_prefill_ms[size.num_prompt_tokens])

    def is_extrapolated(self, size: StepSize, num_drafts: int) -> bool:
        if size.num_verifying and size.context_len > self.verify.furthest_context:
            return True
        mixed = self._mixed(size)
        if mixed is not None:
            return mixed.is_extrapolated(size.num_verifying, size.num_prompt_tokens, num_drafts)
        num_tokens = size.num_non_draft_tokens + num_drafts
        return self.verify.is_extrapolated(size.num_reqs, size.context_len, num_tokens)

    def _mixed(self, size: StepSize) -> MixedPrices | None:
        return self.mixed if size.num_prompt_tokens else None
