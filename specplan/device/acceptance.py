"""Which drafts a verify pass accepts: those before their request's first mismatch."""

from __future__ import annotations

import torch
from torch import Tensor

from specplan.errors import ConfigError

__all__ = [
    "PADDING_SLOT",
    "PADDING_TOKEN",
    "accepted_counts",
    "accepted_prefix_mask",
    "accepted_prefix_mask_reference",
    "accepted_slot_mapping",
]

PADDING_TOKEN = -1  # matches nothing, not even itself
PADDING_SLOT = -1  # the cache slot of what must not be written


def accepted_prefix_mask(
    draft_token_ids: Tensor,  # [num_tokens] int; the requests' drafts one after the other
    sampled_token_ids: Tensor,  # [num_reqs, >= K] int; what the target says at each of a request's positions
    num_drafts: Tensor,  # [num_reqs] int
) -> Tensor:  # [num_tokens] bool
    """True for each draft up to its request's first mismatch, False from there on.

    Tokens past the last request's drafts are padding, and False; so is a draft past the last column. No loop over
    requests and no host synchronisation: every shape follows from the arguments' shapes, so a CUDA graph can hold it.
    `accepted_prefix_mask_reference` says the same thing request by request. Raises ConfigError for shapes that do not
    belong together.
    """
    check_shapes(draft_token_ids, sampled_token_ids, num_drafts)
    num_reqs, num_columns = sampled_token_ids.shape
    if 0 in (draft_token_ids.shape[0], num_reqs, num_columns):
        return torch.zeros_like(draft_token_ids, dtype=torch.bool)
    index = torch.arange(draft_token_ids.shape[0], device=draft_token_ids.device)
    ends = num_drafts.cumsum(0, dtype=torch.int64)
    # right=True: a draft whose index equals an end belongs to the request after it, also past requests without drafts.
    owner = torch.bucketize(index, ends, right=True)
    is_draft = owner < num_reqs
    owner = owner.clamp(max=num_reqs - 1)
    position = index - (ends - num_drafts)[owner]
    said = sampled_token_ids[owner, position.clamp(max=num_columns - 1)]
    matches = (draft_token_ids == said) & (draft_token_ids != PADDING_TOKEN) & (position < num_columns) & is_draft
    first_mismatch = torch.full_like(ends, num_columns)
    first_mismatch.scatter_reduce_(0, owner, torch.where(matches, num_columns, position), "amin")
    return position < first_mismatch[owner]


def accepted_prefix_mask_reference(draft_token_ids: Tensor, sampled_token_ids: Tensor, num_drafts: Tensor) -> Tensor:
    """`accepted_prefix_mask`, as one compares by hand: request by request, a cumulative product of matches."""
    check_shapes(draft_token_ids, sampled_token_ids, num_drafts)
    mask = torch.zeros_like(draft_token_ids, dtype=torch.bool)
    num_columns = sampled_token_ids.shape[1]
    start = 0
    for row, count in enumerate(num_drafts.tolist()):
        compared = min(count, num_columns)
        drafts = draft_token_ids[start : start + compared]
        matches = (drafts == sampled_token_ids[row, :compared]) & (drafts != PADDING_TOKEN)
        mask[start : start + compared] = matches.cumprod(0).bool()
        start += count
    return mask


def check_shapes(draft_token_ids: Tensor, sampled_token_ids: Tensor, num_drafts: Tensor) -> None:
    """Refuse tensors that do not belong together, as far as a look that does not wait for the device can tell."""
    shapes = (draft_token_ids.dim(), sampled_token_ids.dim(), num_drafts.dim())
    if shapes != (1, 2, 1) or sampled_token_ids.shape[0] != num_drafts.shape[0]:
        raise ConfigError(
            f"drafts of shape {list(draft_token_ids.shape)}, samples of {list(sampled_token_ids.shape)}, counts of "
            f"{list(num_drafts.shape)}: expected [num_tokens], [num_reqs, >= K] and [num_reqs]",
            "pass the drafts of all requests in one line, and one row of samples and one count per request",
        )
    for tensor in (draft_token_ids, sampled_token_ids, num_drafts):
        require_integers(tensor)
    if not num_drafts.is_cuda and num_drafts.numel():
        total = int(num_drafts.sum())
        if total > draft_token_ids.shape[0] or int(num_drafts.min()) < 0:
            raise ConfigError(
                f"{draft_token_ids.shape[0]} drafts, and counts from {int(num_drafts.min())} that sum to {total}",
                "pass as many drafts as the counts say",
            )


def require_integers(tensor: Tensor) -> None:
    """Refuse what cannot hold -1, or is taken for a mask where it should index."""
    if tensor.dtype not in (torch.int8, torch.int16, torch.int32, torch.int64):
        raise ConfigError(
            f"tokens, counts or slots of {str(tensor.dtype).removeprefix('torch.')}, expected signed integers",
            "pass int32 or int64",
        )


def accepted_counts(
    mask: Tensor,  # [num_tokens] bool, from accepted_prefix_mask
    num_drafts: Tensor,  # [num_reqs] int
) -> Tensor:  # [num_reqs] int64
    """How many drafts of each request are accepted."""
    # Running totals at each request's two ends: a request without drafts has both in the same place.
    totals = torch.cat((mask.new_zeros(1, dtype=torch.int64), mask.cumsum(0)))
    ends = num_drafts.cumsum(0, dtype=torch.int64)
    return totals[ends] - totals[ends - num_drafts]


def accepted_slot_mapping(
    slot_mapping: Tensor,  # [num_tokens] int; the KV cache slot of each draft
    mask: Tensor,  # [num_tokens] bool, from accepted_prefix_mask
) -> Tensor:  # [num_tokens], as slot_mapping
    """The slots to write once acceptance is known: a rejected draft's is -1, so that nothing is written on reject.

    Cache writes of serving engines skip negative slots. Where keys and values are written during the pass, as here
    in models/, rejected ones are rolled back by naming a shorter context instead.
    """
    require_integers(slot_mapping)
    if slot_mapping.shape != mask.shape:
        raise ConfigError(
            f"{list(slot_mapping.shape)} slots and a mask of {list(mask.shape)}", "pass one slot for each draft"
        )
    return torch.where(mask, slot_mapping, PADDING_SLOT)
