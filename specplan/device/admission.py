"""Which drafts a budget admits, decided on the device from the confidences of this very step."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from specplan.errors import ConfigError

__all__ = ["admit_drafts"]

_SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)
_INELIGIBLE = -1.0  # ranks below a survival of 0


def admit_drafts(
    confidence: Tensor,  # [num_slots, K] float; the live confidences of every slot
    idx_mapping: Tensor,  # [num_reqs] int; the slot of each row of the step
    scheduled: Tensor,  # [num_reqs] int; drafts offered, 0 for a row without any
    draft_budget: int | Tensor,  # drafts to admit; a tensor of one int is read on the device
) -> Tensor:  # [num_reqs] int32
    """How many leading drafts of each row are among the `draft_budget` best offered ones.

    Survival is s[r, i] = c[r, 0] * ... * c[r, i] in float32 and in that order; a confidence that is NaN or outside
    [0, 1] counts as 0, and below float32's smallest normal survival is 0. Higher survival wins, then the earlier
    position, then the lower row. Slots past `scheduled` are never admitted, even where the budget would reach them.

    Bit-equal to `planning.admit_by_survival`, which the simulator uses, on every device and compiled. No host
    synchronisation. Raises ConfigError for shapes that do not belong together, or a negative budget.
    """
    check_admission(confidence, idx_mapping, scheduled, draft_budget)
    num_reqs, num_positions = idx_mapping.shape[0], confidence.shape[1]
    rows = confidence[idx_mapping].to(torch.float32)
    usable = torch.where((rows >= 0) & (rows <= 1), rows, 0.0)
    survival = []
    running = torch.ones(num_reqs, dtype=torch.float32, device=confidence.device)
    for column in usable.unbind(1):  # one after the other: a parallel product rounds differently
        running = running * column
        running = torch.where(running < _SMALLEST_NORMAL, 0.0, running)
        survival.append(running)
    if not survival:
        return torch.zeros(num_reqs, dtype=torch.int32, device=confidence.device)
    # Laid out position by position, a stable sort leaves equals in the order that ties ask for.
    positions = torch.arange(num_positions, device=confidence.device)
    eligible = positions.unsqueeze(1) < scheduled  # [K, num_reqs]
    ranked = torch.where(eligible, torch.stack(survival), _INELIGIBLE).flatten()
    order = ranked.sort(descending=True, stable=True).indices
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(order.shape[0], device=order.device))
    budget = draft_budget.reshape(()) if isinstance(draft_budget, Tensor) else min(draft_budget, order.shape[0])
    admitted = eligible & (rank.view(num_positions, num_reqs) < budget)
    return admitted.sum(0, dtype=torch.int32)


def check_admission(confidence: Tensor, idx_mapping: Tensor, scheduled: Tensor, draft_budget: int | Tensor) -> None:
    """Refuse what does not belong together, as far as a look that does not wait for the device can tell."""
    if confidence.dim() != 2 or idx_mapping.dim() != 1 or scheduled.shape != idx_mapping.shape:
        raise ConfigError(
            f"confidences of shape {list(confidence.shape)}, idx_mapping of {list(idx_mapping.shape)}, scheduled of "
            f"{list(scheduled.shape)}: expected [num_slots, K], [num_reqs] and [num_reqs]",
            "pass one row of K confidences per slot, and one slot and one count of drafts per row of the step",
        )
    for tensor, name in ((idx_mapping, "idx_mapping"), (scheduled, "scheduled")):
        if tensor.dtype not in (torch.int32, torch.int64):
            raise ConfigError(f"{name} is {tensor.dtype}, expected torch.int32 or torch.int64", "convert it")
    if isinstance(draft_budget, Tensor):
        if draft_budget.numel() != 1 or draft_budget.dtype not in (torch.int32, torch.int64):
            raise ConfigError(
                f"a draft_budget of {list(draft_budget.shape)} {draft_budget.dtype}, expected one int32 or int64",
                "pass the budget of one step",
            )
    elif not isinstance(draft_budget, int) or draft_budget < 0:
        raise ConfigError(
            f"draft_budget is {draft_budget!r}, expected an int of 0 or more", "pass the budget of one step"
        )
