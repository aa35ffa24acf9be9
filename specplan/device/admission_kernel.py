"""Admission in one launch: gather, product, selection, counts and both offset arrays of the trimmed batch.

A single program holds every slot of the step in registers. Survivals are not negative, so their bits order as integers
do, and the budget's threshold is found bit by bit: thirty counts over all slots, where a sort would move them.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from specplan.errors import ConfigError

__all__ = ["MAX_ROWS", "MAX_SLOTS", "admit_and_compact", "admit_and_compact_kernel", "is_fused"]

# What one program holds in registers: two rows and 16 slots a thread.
MAX_ROWS: Final = 2048
MAX_SLOTS: Final = 16_384


# Specialised on none of what changes from step to step: a serving step must not stop to compile.
@triton.jit(
    do_not_specialize=["draft_budget", "num_reqs", "padded_reqs"],
    do_not_specialize_on_alignment=[
        "idx_mapping",
        "scheduled",
        "num_non_draft_tokens",
        "admitted",
        "cu_num_logits",
        "query_start_loc",
    ],
)  # type: ignore[untyped-decorator]
def admit_and_compact_kernel(  # type: ignore[no-untyped-def]
    confidence,  # [num_slots, K] float
    idx_mapping,  # [num_reqs] int
    scheduled,  # [num_reqs] int
    num_non_draft_tokens,  # [num_reqs] int
    draft_budget,  # int, or a pointer to one
    admitted,  # [num_reqs] int32, out
    cu_num_logits,  # [padded_reqs + 1] int32, out
    query_start_loc,  # [padded_reqs + 1] int32, out
    num_reqs,
    padded_reqs,
    num_positions,
    slot_stride,
    num_bonus_tokens,
    BUDGET_ON_DEVICE: tl.constexpr,
    ROWS: tl.constexpr,  # a power of two >= padded_reqs
    POSITIONS: tl.constexpr,  # a power of two >= K
):
    SMALLEST_NORMAL: tl.constexpr = 1.1754943508222875e-38  # of float32
    ONE_BITS: tl.constexpr = 30  # 1.0 is 0x3F800000: no survival sets bit 30 or the sign
    row = tl.arange(0, ROWS)
    is_row = row < num_reqs
    slot = tl.load(idx_mapping + row, mask=is_row, other=0).to(tl.int64)
    offered = tl.minimum(tl.load(scheduled + row, mask=is_row, other=0).to(tl.int32), num_positions)
    position = tl.arange(0, POSITIONS)
    running = tl.full([ROWS], 1.0, tl.float32)
    bits = tl.full([POSITIONS, ROWS], -1, tl.int32)  # -1: not offered, below every survival
    for p in tl.static_range(POSITIONS):  # unrolled: the loads of all positions are under way at once
        is_offered = is_row & (p < offered)
        c = tl.load(confidence + slot * slot_stride + p, mask=is_offered, other=0.0).to(tl.float32)
        running = running * tl.where((c >= 0.0) & (c <= 1.0), c, 0.0)
        running = tl.where(running < SMALLEST_NORMAL, 0.0, running)
        here = (position == p)[:, None] & is_offered[None, :]
        bits = tl.where(here, running.to(tl.int32, bitcast=True)[None, :], bits)

    # One line of slots, position by position: one reduction a count, and the order in which ties are broken.
    line = tl.reshape(bits, [POSITIONS * ROWS])
    num_offered = tl.sum((line >= 0).to(tl.int32), axis=0)
    budget = tl.load(draft_budget).to(tl.int32) if BUDGET_ON_DEVICE else draft_budget
    budget = tl.minimum(budget, num_offered)
    # The largest threshold that at least `budget` slots reach; what exceeds it is admitted, and ties fill the rest.
    threshold = tl.full([], 0, tl.int32)
    for i in tl.static_range(ONE_BITS):
        candidate = threshold | (1 << (ONE_BITS - 1 - i))
        reach = tl.sum((line >= candidate).to(tl.int32), axis=0)
        threshold = tl.where(reach >= budget, candidate, threshold)
    above = (line > threshold).to(tl.int32)
    tied = (line == threshold).to(tl.int32)
    still_free = budget - tl.sum(above, axis=0)
    chosen = above + tied * (tl.cumsum(tied, axis=0) <= still_free).to(tl.int32)
    counts = tl.sum(tl.reshape(chosen, [POSITIONS, ROWS]), axis=0)
    tl.store(admitted + row, counts, mask=is_row)

    # Rows past the batch add nothing, so the padded tail holds the total.
    is_padded_row = row < padded_reqs
    num_logits = tl.where(is_row, counts + num_bonus_tokens, 0)
    non_draft = tl.load(num_non_draft_tokens + row, mask=is_row, other=0).to(tl.int32)
    num_tokens = tl.where(is_row, counts + non_draft, 0)
    tl.store(cu_num_logits + 1 + row, tl.cumsum(num_logits, axis=0), mask=is_padded_row)
    tl.store(query_start_loc + 1 + row, tl.cumsum(num_tokens, axis=0), mask=is_padded_row)
    tl.store(cu_num_logits, 0)
    tl.store(query_start_loc, 0)


def admit_and_compact(
    confidence: Tensor,  # [num_slots, K] float, rows contiguous
    idx_mapping: Tensor,  # [num_reqs] int
    scheduled: Tensor,  # [num_reqs] int
    num_non_draft_tokens: Tensor,  # [num_reqs] int
    draft_budget: int | Tensor,
    out: Tensor,  # [num_reqs + 2 * (padded_reqs + 1)] int32: admitted, cu_num_logits, query_start_loc
    *,
    padded_reqs: int,
    num_bonus_tokens: int,
    max_reqs: int | None = None,
) -> None:
    """Fills `out` in one launch, where `is_fused` says that it can. A captured launch is good for any content of its
    tensors; the budget too where it is one.

    `max_reqs` sizes the program: one for every step, compiled once, where it is the most requests there can be.
    """
    num_reqs, num_positions = idx_mapping.shape[0], confidence.shape[1]
    max_reqs = padded_reqs if max_reqs is None else max_reqs
    lines = (idx_mapping, scheduled, num_non_draft_tokens, out)
    if not (
        0 < num_reqs <= padded_reqs <= max_reqs
        and is_fused(max_reqs, num_positions)
        and out.shape == (num_reqs + 2 * (padded_reqs + 1),)
        and confidence.stride(1) == 1
        and all(line.is_contiguous() for line in lines)
    ):
        raise ConfigError(
            f"{num_reqs} requests padded to {padded_reqs} of at most {max_reqs}, {num_positions} positions, strides "
            f"{[confidence.stride(), *(line.stride() for line in lines)]}, an output of {list(out.shape)}",
            "pass contiguous rows and lines, and an output of num_reqs + 2 (padded_reqs + 1)",
        )
    rows, positions = padded_shape(max_reqs, num_positions)
    kernel: Any = admit_and_compact_kernel
    with torch.cuda.device_of(confidence):  # type: ignore[no-untyped-call]  # Triton launches on the current device
        kernel[(1,)](
            confidence,
            idx_mapping,
            scheduled,
            num_non_draft_tokens,
            draft_budget if isinstance(draft_budget, Tensor) else min(draft_budget, num_reqs * num_positions),
            out[:num_reqs],
            out[num_reqs : num_reqs + padded_reqs + 1],
            out[num_reqs + padded_reqs + 1 :],
            num_reqs,
            padded_reqs,
            num_positions,
            confidence.stride(0),
            num_bonus_tokens,
            BUDGET_ON_DEVICE=isinstance(draft_budget, Tensor),
            ROWS=rows,
            POSITIONS=positions,
            num_warps=num_warps(rows * positions),
            enable_fp_fusion=False,  # products must round as they do elsewhere
        )


def padded_shape(max_reqs: int, num_positions: int) -> tuple[int, int]:
    """Rows and positions of the program's tile."""
    return triton.next_power_of_2(max_reqs), triton.next_power_of_2(num_positions)


def is_fused(max_reqs: int, num_positions: int) -> bool:
    """Whether one program holds the step."""
    if max_reqs < 1 or num_positions < 1:
        return False
    rows, positions = padded_shape(max_reqs, num_positions)
    return rows <= MAX_ROWS and rows * positions <= MAX_SLOTS


def num_warps(num_slots: int) -> int:
    """Eight slots a thread, from 1 to 32 warps."""
    return max(1, min(32, num_slots // (32 * 8)))
