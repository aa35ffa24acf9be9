"""Adaptive verification, a step at a time: what a serving engine calls between drafting and verifying."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from specplan.costs.binding import differences, identity_of, in_words
from specplan.device.admission import admit_drafts
from specplan.device.compaction import HostCounts, compact_batch, host_counts
from specplan.device.confidence import ConfidenceBuffer
from specplan.device.identity import identify_device
from specplan.device.upload import upload
from specplan.errors import ConfigError, InfeasibleError
from specplan.planning import Policy, choose_draft_budget
from specplan.planning.prices import StepPrices, StepSize, VerifyPrices
from specplan.shapes import StepShape, profiled_shapes

if TYPE_CHECKING:
    from specplan.files import CostTables

__all__ = ["AdaptiveVerifier", "TrimmedBatch", "VerifyBatch"]

logger = logging.getLogger(__name__)

_FAILED = -1  # what rank 0 sends in place of a budget that it could not choose
_BATCH_ARRAYS: tuple[tuple[str, str, type[np.generic]], ...] = (  # name, kinds of dtype that are taken, dtype kept
    ("slots", "iu", np.int64),
    ("scheduled", "iu", np.int64),
    ("num_non_draft_tokens", "iu", np.int64),
    ("is_prefill", "b", np.bool_),
    ("is_sampling", "b", np.bool_),
    ("context_lens", "iu", np.int64),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VerifyBatch:
    """The rows of one step as the scheduler hands them over, on the host.

    A verifying row brings its newest token and its drafts, and samples. A row in prefill brings a chunk of its prompt
    and no drafts, and samples only where the chunk is its last; the last may be of one token.
    """

    slots: NDArray[np.integer[Any]]  # [num_reqs], where the request's confidences live; distinct
    scheduled: NDArray[np.integer[Any]]  # [num_reqs], drafts offered, after grammar and scheduler cut them
    num_non_draft_tokens: NDArray[np.integer[Any]]  # [num_reqs], 1 for a verifying row
    is_prefill: NDArray[np.bool_]  # [num_reqs]
    is_sampling: NDArray[np.bool_]  # [num_reqs]
    context_lens: NDArray[np.integer[Any]]  # [num_reqs], tokens in the cache before the step

    def __post_init__(self) -> None:
        for name, kinds, dtype in _BATCH_ARRAYS:
            array = np.asarray(getattr(self, name))
            if array.size and array.dtype.kind not in kinds:
                wanted = "flags" if dtype is np.bool_ else "integers"
                raise ConfigError(f"{name} of {array.dtype}, expected {wanted}", "give every array one value a request")
            object.__setattr__(self, name, array.astype(dtype))
        arrays = [getattr(self, name) for name, _, _ in _BATCH_ARRAYS]
        if any(array.shape != (self.num_reqs,) for array in arrays):
            raise ConfigError(
                f"a batch of arrays of {', '.join(str(array.size) for array in arrays)} rows",
                "give every array one value per request",
            )
        if len(np.unique(self.slots)) < self.num_reqs or self.slots.min(initial=0) < 0:
            raise ConfigError(
                f"slots {self.slots.tolist()} are not distinct and 0 or more", "a request has its own slot"
            )
        can_be = np.where(
            self.is_prefill,
            (self.scheduled == 0) & (self.num_non_draft_tokens >= 1),
            (self.scheduled >= 0) & (self.num_non_draft_tokens == 1) & self.is_sampling,
        )
        wrong = np.flatnonzero(~can_be | (self.context_lens < 0))
        if wrong.size:
            row = wrong[0]
            raise ConfigError(
                f"row {row}, {'in prefill' if self.is_prefill[row] else 'verifying'}, offers {self.scheduled[row]} "
                f"drafts after {self.num_non_draft_tokens[row]} other tokens, at a context of {self.context_lens[row]}"
                f"{'' if self.is_sampling[row] else ', and does not sample'}",
                "a verifying row has one token besides its drafts, and samples; a row in prefill has one or more, and "
                "no drafts",
            )

    @property
    def num_reqs(self) -> int:
        return len(self.slots)

    @property
    def size(self) -> StepSize:
        """What the step's price hangs on. There is at least one request."""
        verifying = ~self.is_prefill
        contexts = self.context_lens[verifying] if verifying.any() else self.context_lens
        return StepSize(
            num_reqs=self.num_reqs,
            num_verifying=int(verifying.sum()),
            num_sampling=int(self.is_sampling.sum()),
            num_prompt_tokens=int(self.num_non_draft_tokens[self.is_prefill].sum()),
            context_len=int(contexts.sum()) / len(contexts),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrimmedBatch:
    """What the verify pass runs on, all on the device."""

    admitted: Tensor  # [num_reqs] int32
    cu_num_logits: Tensor  # [padded_reqs + 1] int32
    query_start_loc: Tensor  # [padded_reqs + 1] int32


class AdaptiveVerifier:
    """Keeps confidences, chooses a budget from cost tables, and trims each step's batch to it.

    A step of an engine calls, in this order: `add_request` for each that takes a slot, `choose_budget`, `compact` for
    the host's counts, `reallocate` for the device's, and, once the drafter has run, `record_confidences`.

    Without tables every offered draft is verified, up to `max_total_logits`, and a warning says so. Another warns of
    tables that were measured on another device, or under another tensor-parallel size.

    Under tensor parallel, pass the groups: rank 0's budget and rank 0's admitted counts are everyone's, for ranks may
    differ in the last bits of a confidence. Every rank makes every call. The budget is the host's and goes through
    `cpu_group` (gloo), the counts through `device_group` (NCCL on CUDA).
    """

    def __init__(
        self,
        *,
        max_num_seqs: int,
        num_speculative_tokens: int,
        device: torch.device,
        tables: CostTables | None = None,
        max_num_batched_tokens: int | None = None,
        max_total_logits: int | None = None,
        num_bonus_tokens: int = 1,
        lag: int = 1,
        min_gain: float = 0.0,
        cpu_group: dist.ProcessGroup | None = None,
        device_group: dist.ProcessGroup | None = None,
    ) -> None:
        """`max_num_batched_tokens`: the most tokens of a step, which the tables must price; where not given, as many as
        verifying requests alone can bring. `max_total_logits`: what the rejection sampler takes at once.

        Raises CoverageError if the tables do not reach that far.
        """
        device = torch.device(device)
        if (cpu_group is None) != (device_group is None):
            raise ConfigError("one of cpu_group and device_group alone", "pass both under tensor parallel, or neither")
        if num_bonus_tokens < 0 or (max_num_batched_tokens is not None and max_num_batched_tokens < 1):
            raise ConfigError(
                f"num_bonus_tokens is {num_bonus_tokens} and max_num_batched_tokens {max_num_batched_tokens}, expected "
                "0 or more and 1 or more",
                "pass the limits of the engine",
            )
        self.max_num_seqs = max_num_seqs
        self.num_speculative_tokens = num_speculative_tokens
        self.max_num_batched_tokens = max_num_batched_tokens or max_num_seqs * (1 + num_speculative_tokens)
        self.max_total_logits = max_total_logits
        self.num_bonus_tokens = num_bonus_tokens
        self.min_gain = min_gain
        self.cpu_group, self.device_group = cpu_group, device_group
        self.device = device
        self.confidence = ConfidenceBuffer(
            num_slots=max_num_seqs, num_speculative_tokens=num_speculative_tokens, lag=lag, device=device
        )
        self._is_fused = device.type == "cuda" and self._warm_up_kernel()
        self._prices = None if tables is None else self._step_prices(tables)
        if tables is None:
            logger.warning(
                "no cost tables: every offered draft is verified, up to K = %d a request", num_speculative_tokens
            )
        else:
            self._compare_device(tables)

    @property
    def is_adaptive(self) -> bool:
        """Whether budgets follow cost tables; otherwise K is fixed."""
        return self._prices is not None

    def add_request(self, slot: int) -> None:
        """A new request takes `slot`."""
        self.confidence.add(slot)

    def record_confidences(
        self,
        batch: VerifyBatch,  # the step that has just run
        confidence: Tensor,  # [num_reqs, K] float on the device; rows that do not sample are passed over
    ) -> None:
        """What the drafter said of the drafts that the next step may verify. Ends the step, also an empty one."""
        self.confidence.record(batch.slots, batch.is_sampling, confidence)

    def choose_budget(self, batch: VerifyBatch) -> int:
        """How many drafts to verify, B*, by the confidences of `lag` steps ago; rank 0's under tensor parallel.

        B_max = min(sum(scheduled), max(0, max_total_logits - num_reqs * num_bonus_tokens)).
        """
        if self.cpu_group is None:
            return self._own_budget(batch)
        budget = torch.full((1,), _FAILED, device="cpu")
        try:
            if dist.get_rank(self.cpu_group) == 0:
                budget[0] = self._own_budget(batch)
        finally:  # also where rank 0 could not: the others are waiting
            dist.broadcast(budget, group=self.cpu_group, group_src=0)
        if int(budget) == _FAILED:
            raise InfeasibleError("rank 0 could not choose a budget", "see what rank 0 reports")
        return int(budget)

    def compact(self, batch: VerifyBatch, draft_budget: int) -> HostCounts:
        """The trimmed batch as the host may know it: its true total, and bounds row by row."""
        return host_counts(batch.scheduled, batch.num_non_draft_tokens, batch.context_lens, draft_budget)

    def reallocate(self, batch: VerifyBatch, draft_budget: int, *, padded_reqs: int | None = None) -> TrimmedBatch:
        """Gives the budget to the best drafts by live confidence, on the device and without waiting for it."""
        self._check(batch)
        num_reqs = batch.num_reqs
        padded_reqs = num_reqs if padded_reqs is None else padded_reqs
        if padded_reqs < num_reqs:
            raise ConfigError(f"{num_reqs} requests padded to {padded_reqs}", "pad to no fewer than there are")
        # One upload for the three: slots, offers, other tokens.
        host = np.stack([batch.slots, batch.scheduled, batch.num_non_draft_tokens]).astype(np.int32)
        idx_mapping, scheduled, num_non_draft_tokens = upload(host, self.device)
        out = torch.zeros(num_reqs + 2 * (padded_reqs + 1), dtype=torch.int32, device=self.device)
        admitted, offsets = out[:num_reqs], out[num_reqs:].view(2, padded_reqs + 1)
        if self._is_fused and num_reqs > 0 and padded_reqs <= self.max_num_seqs:
            from specplan.device.admission_kernel import admit_and_compact

            admit_and_compact(
                self.confidence.live,
                idx_mapping,
                scheduled,
                num_non_draft_tokens,
                draft_budget,
                out,
                padded_reqs=padded_reqs,
                num_bonus_tokens=self.num_bonus_tokens,
                max_reqs=self.max_num_seqs,
            )
        else:
            admitted.copy_(admit_drafts(self.confidence.live, idx_mapping, scheduled, draft_budget))
            compacted = compact_batch(
                admitted, num_non_draft_tokens, padded_reqs=padded_reqs, num_bonus_tokens=self.num_bonus_tokens
            )
            offsets.copy_(torch.stack(compacted))
        if self.device_group is not None:
            # Counts and offsets together: they must agree with each other.
            dist.broadcast(out, group=self.device_group, group_src=0)
        return TrimmedBatch(admitted=admitted, cu_num_logits=offsets[0], query_start_loc=offsets[1])

    def profiled_shapes(self, capture_sizes: Sequence[int], *, context_len: int = 2048) -> list[StepShape]:
        """The verify steps that a profile must hold for no step of this verifier to rest on extrapolation.

        `specplan profile` measures the same, drafts at every number of requests in them, and steps that hold prompts.
        """
        return profiled_shapes(
            max_num_seqs=self.max_num_seqs,
            num_speculative_tokens=self.num_speculative_tokens,
            max_num_batched_tokens=self.max_num_batched_tokens,
            capture_sizes=capture_sizes,
            context_len=context_len,
        )

    def _own_budget(self, batch: VerifyBatch) -> int:
        offered = int(batch.scheduled.sum())
        self._check(batch)
        most = offered
        if self.max_total_logits is not None:
            most = min(most, max(0, self.max_total_logits - batch.num_reqs * self.num_bonus_tokens))
        if most == 0 or self._prices is None:
            return most
        size = batch.size
        return choose_draft_budget(
            self.confidence.lagged(batch.slots),
            batch.scheduled,
            num_sampling=size.num_sampling,
            num_non_draft_tokens=size.num_non_draft_tokens,
            draft_ms=self._prices.drafting_ms(size, self.num_speculative_tokens),
            verify_ms=self._prices.target_row(size, most),
            max_draft_budget=most,
            overhead_ms=self._prices.fixed_ms(size),
            min_gain=self.min_gain,
        ).draft_budget

    def _step_prices(self, tables: CostTables) -> StepPrices:
        verify = VerifyPrices.from_tables(
            tables,
            max_num_reqs=self.max_num_seqs,
            max_num_tokens=self.max_num_batched_tokens,
            num_speculative_tokens=self.num_speculative_tokens,
        )
        return StepPrices.from_tables(
            verify, tables, policy=Policy(kind="adaptive"), num_speculative_tokens=self.num_speculative_tokens
        )

    def _compare_device(self, tables: CostTables) -> None:
        """Warns of tables that were measured elsewhere. Of dtype and models only who runs the steps knows."""
        num_ranks = 1 if self.cpu_group is None else dist.get_world_size(self.cpu_group)
        here = replace(identify_device(self.device), tensor_parallel_size=num_ranks)
        aspects = ("device", "processors", "tensor_parallel_size")
        found = differences(identity_of(tables), here, aspects)
        if others := [difference for difference in found if not difference.is_unknown]:
            told = "; ".join(in_words(difference, "the tables", "this process") for difference in others)
            logger.warning("cost tables that were measured elsewhere: %s", told)
        if unknown := [difference.aspect for difference in found if difference.is_unknown]:
            logger.info("cost tables of which nobody knows whether they hold here: %s", ", ".join(unknown))

    def _check(self, batch: VerifyBatch) -> None:
        longest, last_slot = int(batch.scheduled.max(initial=0)), int(batch.slots.max(initial=0))
        if (
            batch.num_reqs > self.max_num_seqs
            or longest > self.num_speculative_tokens
            or last_slot >= self.max_num_seqs
        ):
            raise ConfigError(
                f"a step of {batch.num_reqs} requests with up to {longest} drafts and slots up to {last_slot}, "
                f"configured for {self.max_num_seqs} requests and K = {self.num_speculative_tokens}",
                "configure the verifier for the largest step",
            )

    def _warm_up_kernel(self) -> bool:
        """Whether one launch admits any step of this verifier; compiles it if so, for no step should stop for that."""
        from specplan.device.admission_kernel import admit_and_compact, is_fused

        if not is_fused(self.max_num_seqs, self.num_speculative_tokens):
            return False
        rows = torch.zeros(3 + 5, dtype=torch.int32, device=self.device)
        admit_and_compact(
            self.confidence.live,
            rows[0:1],
            rows[1:2],
            rows[2:3],
            0,
            rows[3:],
            padded_reqs=1,
            num_bonus_tokens=self.num_bonus_tokens,
            max_reqs=self.max_num_seqs,
        )
        return True
