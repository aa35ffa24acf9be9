"""Which drafts a verify pass accepts: those before their request's first mismatch."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["PADDING_TOKEN", "accepted_counts", "accepted_prefix_mask", "accepted_prefix_mask_reference"]

PADDING_TOKEN = -1  # matches nothing, not even itself


def accepted_prefix_mask(
    draft_token_ids: Tensor,  # [num_drafts in all]; the requests' drafts one after the other
    sampled_token_ids: Tensor,  # [num_reqs, >= K]; what the target says at each of a request's positions
    num_drafts: Tensor,  # [num_reqs] int
) -> Tensor:  # [num_drafts in all] bool
    """True for each draft up to its request's first mismatch, False from there on.

    No loop over requests and no host synchronisation: every shape follows from the arguments' shapes, so a CUDA graph
    can hold it. `accepted_prefix_mask_reference` says the same thing request by request.
    """
    if draft_token_ids.numel() == 0:
        return torch.zeros_like(draft_token_ids, dtype=torch.bool)
    index = torch.arange(draft_token_ids.shape[0], device=draft_token_ids.device)
    ends = num_drafts.to(torch.int64).cumsum(0)
    # right=True: a draft whose index equals an end belongs to the request after it, also past requests without drafts.
    owner = torch.bucketize(index, ends, right=True)
    position = index - (ends - num_drafts)[owner]
    matches = (draft_token_ids == sampled_token_ids[owner, position]) & (draft_token_ids != PADDING_TOKEN)
    never = sampled_token_ids.shape[1]
    first_mismatch = torch.full_like(ends, never)
    first_mismatch.scatter_reduce_(0, owner, torch.where(matches, never, position), "amin")
    return position < first_mismatch[owner]


def accepted_prefix_mask_reference(draft_token_ids: Tensor, sampled_token_ids: Tensor, num_drafts: Tensor) -> Tensor:
    """`accepted_prefix_mask`, as one compares by hand: request by request, a cumulative product of matches."""
    masks = [torch.zeros(0, dtype=torch.bool, device=draft_token_ids.device)]
    start = 0
    for row, count in enumerate(num_drafts.tolist()):
        drafts = draft_token_ids[start : start + count]
        matches = (drafts == sampled_token_ids[row, :count]) & (drafts != PADDING_TOKEN)
        masks.append(matches.cumprod(0).bool())
        start += count
    return torch.cat(masks)


def accepted_counts(
    mask: Tensor,  # [num_drafts in all] bool, from accepted_prefix_mask
    num_drafts: Tensor,  # [num_reqs] int
) -> Tensor:  # [num_reqs] int64
    """How many drafts of each request are accepted."""
    # Running totals at each request's two ends: a request without drafts has both in the same place.
    totals = torch.cat((mask.new_zeros(1, dtype=torch.int64), mask.cumsum(0)))
    ends = num_drafts.to(torch.int64).cumsum(0)
    return totals[ends] - totals[ends - num_drafts]
