"""The trimmed batch: offsets on the device, and what the host may say about it without asking the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from specplan.errors import ConfigError

__all__ = ["HostCounts", "compact_batch", "host_counts"]


def compact_batch(
    admitted: Tensor,  # [num_reqs] int; drafts kept of each row
    num_non_draft_tokens: Tensor,  # [num_reqs] int; 1 for a verifying row, the chunk for one in prefill
    *,
    padded_reqs: int | None = None,
    num_bonus_tokens: int = 1,
) -> tuple[Tensor, Tensor]:  # cu_num_logits, query_start_loc: both [padded_reqs + 1] int32
    """Running totals of the trimmed batch's logits and of its tokens, the padded tail filled with the total.

    A row takes `num_bonus_tokens` + admitted logits and its non-draft tokens + admitted queries. No host
    synchronisation. Raises ConfigError if `padded_reqs` does not hold the batch.
    """
    num_reqs = admitted.shape[0]
    padded_reqs = num_reqs if padded_reqs is None else padded_reqs
    if padded_reqs < num_reqs or num_non_draft_tokens.shape != admitted.shape:
        raise ConfigError(
            f"{num_reqs} admitted counts, {num_non_draft_tokens.shape[0]} counts of other tokens, padded to "
            f"{padded_reqs} requests",
            "pass one of each per request, and pad to no fewer",
        )
    admitted = admitted.to(torch.int32)
    rows = torch.stack((admitted + num_bonus_tokens, admitted + num_non_draft_tokens.to(torch.int32)))
    padded = F.pad(rows, (1, padded_reqs - num_reqs))
    cu_num_logits, query_start_loc = padded.cumsum(1, dtype=torch.int32)
    return cu_num_logits, query_start_loc


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostCounts:
    """The trimmed batch as the host sees it: totals are true, rows are where `is_exact`, bounds always hold.

    Which drafts are admitted is decided on the device, and asking would stall it.
    """

    num_drafts: NDArray[np.int32]  # [num_reqs]
    num_tokens: NDArray[np.int32]  # [num_reqs], of which the sum is the step's
    max_query_lens: NDArray[np.int32]  # [num_reqs]; what each row may have, untrimmed
    max_seq_lens: NDArray[np.int64]  # [num_reqs]; its context and that
    is_exact: bool

    @property
    def total_drafts(self) -> int:
        return int(self.num_drafts.sum())

    @property
    def total_tokens(self) -> int:
        return int(self.num_tokens.sum())

    def cu_num_logits(self, num_bonus_tokens: int = 1) -> NDArray[np.int32]:  # [num_reqs + 1]
        """Running totals of logits, true row by row only where `is_exact`."""
        return np.concatenate(([0], np.cumsum(self.num_drafts + num_bonus_tokens))).astype(np.int32)


def host_counts(
    scheduled: NDArray[np.integer[Any]],  # [num_reqs], drafts offered
    num_non_draft_tokens: NDArray[np.integer[Any]],  # [num_reqs]
    context_lens: NDArray[np.integer[Any]],  # [num_reqs], tokens in the cache before the step
    draft_budget: int,
) -> HostCounts:
    """Exact counts where the budget is 0 or not binding; otherwise an even split over the rows with drafts, the first
    of them taking what does not divide, which carries the true total.

    No row of the split passes the longest offer, for it is at most the mean of what was offered, rounded up.
    """
    # Sums of narrow integers wrap.
    scheduled, num_non_draft_tokens = scheduled.astype(np.int64), num_non_draft_tokens.astype(np.int64)
    offered = int(scheduled.sum())
    if draft_budget < 0 or scheduled.min(initial=0) < 0:
        raise ConfigError(
            f"draft_budget is {draft_budget} and the fewest drafts of a row {scheduled.min(initial=0)}, expected 0 or "
            "more",
            "pass the budget of one step, and the drafts that its rows offer",
        )
    is_exact = draft_budget == 0 or draft_budget >= offered
    if draft_budget >= offered:
        num_drafts = scheduled.astype(np.int32)
    else:
        num_drafts = np.zeros(len(scheduled), dtype=np.int32)
        with_drafts = np.flatnonzero(scheduled)
        each, extra = divmod(draft_budget, len(with_drafts))
        num_drafts[with_drafts] = each + (np.arange(len(with_drafts)) < extra)
    max_query_lens = (num_non_draft_tokens + scheduled).astype(np.int32)
    return HostCounts(
        num_drafts=num_drafts,
        num_tokens=(num_non_draft_tokens + num_drafts).astype(np.int32),
        max_query_lens=max_query_lens,
        max_seq_lens=context_lens.astype(np.int64) + max_query_lens,
        is_exact=is_exact,
    )
