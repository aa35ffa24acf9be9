"""Cached attention for CUDA: which kernels a layer launches, on which grid, in blocks of which sizes.

The kernels are in attention_kernel.py and rope_kernel.py. Importing this module needs Triton.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import e, log2, sqrt

import torch
import triton
from torch import Tensor

from specplan.errors import ConfigError
from specplan.models.attention import RaggedBatch
from specplan.models.attention_kernel import attend_slice, combine_slices
from specplan.models.cache import KVCache
from specplan.models.rope import Rope
from specplan.models.rope_kernel import rotate_and_cache
from specplan.shapes import Layout

__all__ = ["Blocks", "SplitAttention", "choose_blocks", "choose_num_slices"]

# A slice of fewer keys saves less than its partial result costs.
MIN_KEYS_PER_SLICE = 128
# What fits a multiprocessor at the blocks below: two programs of 4 warps, which have loads enough in flight to keep
# memory busy, or one of 8.
WARPS_PER_SM = 8
# Keys and values of one turn of the loop, in bytes. Three of them, two in flight while one is used.
STAGE_BYTES = 32 * 1024
NUM_STAGES = 3
COMBINED_AT_ONCE = 8  # slices
MAX_HEAD_SIZE = 256


class SplitAttention:
    """Cached attention for CUDA: a layer is one launch that rotates its tokens and caches them, and one that attends.

    Where requests are too few to fill the device, their contexts are split over it, and a third launch combines them.
    In batch expansion every query is a request of its own to the kernels, and to the arrays that they read.

    `query_starts`, `used_lens` and `cache_rows` are on the device and read when the kernels run. Rewritten in place,
    with the batch's positions and cache places, they make a captured pass one over other lengths and other rows: up to
    the longest query and the number of tokens that it was made for. The cost follows the lengths, not the cache's size.
    """

    def __init__(
        self, batch: RaggedBatch, cache: KVCache, *, layout: Layout = "multi-query", num_slices: int | None = None
    ) -> None:
        """`num_slices` is chosen for the device if it is not given."""
        config = cache.config
        if config.head_size > MAX_HEAD_SIZE:
            raise ConfigError(
                f"a head of {config.head_size} elements, and the attention kernel takes up to {MAX_HEAD_SIZE}",
                "measure with --device cpu, or another model",
            )
        self.batch = batch
        self.cache = cache
        device = cache.keys.device
        query_lens, context_lens, cache_rows = (
            (batch.query_lens, batch.context_lens, batch.rows) if layout == "multi-query" else one_query_each(batch)
        )
        lens = torch.tensor(query_lens, dtype=torch.int32)
        starts = torch.cat((torch.zeros(1, dtype=torch.int32), lens.cumsum(0, dtype=torch.int32)))
        self.query_starts = starts.to(device)  # [num_reqs + 1]
        self.used_lens = (lens + torch.tensor(context_lens, dtype=torch.int32)).to(device)  # [num_reqs]
        self.cache_rows = torch.tensor(cache_rows, dtype=torch.int32, device=device)  # [num_reqs]

        self.group = config.num_attention_heads // config.kv_heads
        rows = max(query_lens) * self.group
        hopper = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9
        self.blocks = choose_blocks(rows, config.head_size, cache.keys.element_size(), hopper=hopper)
        self.row_blocks = triton.cdiv(rows, self.blocks.rows)
        if num_slices is None:
            programs = self.row_blocks * config.kv_heads * len(query_lens)
            sm_count = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
            at_once = sm_count * WARPS_PER_SM // self.blocks.num_warps
            num_slices = choose_num_slices(programs, max_len=cache.max_len, at_once=at_once)
        self.num_slices = num_slices
        # One workspace for all layers, which run one after the other; none where one slice needs none.
        places = (num_slices if num_slices > 1 else 0, batch.padded_tokens, config.num_attention_heads)
        self.partials = torch.empty((*places, config.head_size), dtype=torch.float32, device=device)
        self.maxima, self.sums = (torch.empty(places, dtype=torch.float32, device=device) for _ in range(2))

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rope: Rope) -> Tensor:
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        num_tokens, num_heads, head_size = query.shape
        num_reqs, kv_heads = self.used_lens.shape[0], key.shape[1]
        out = torch.empty_like(query)
        padded_head = max(16, triton.next_power_of_2(head_size))
        # Triton launches on the current device; a CPU's tensor changes nothing.
        with torch.cuda.device_of(query):  # type: ignore[no-untyped-call]
            rotated = rotate_and_cache(
                query,
                key,
                value,
                rope,
                keys=self.cache.keys[layer],
                values=self.cache.values[layer],
                kv_index=self.batch.kv_index,
                query_starts=self.query_starts,
                padded_out=out,
            )
            attend_slice[(self.row_blocks * kv_heads, self.num_slices, num_reqs)](
                out,
                self.partials,
                self.maxima,
                self.sums,
                rotated,
                self.cache.keys[layer],
                self.cache.values[layer],
                self.query_starts,
                self.used_lens,
                self.cache_rows,
                self.cache.max_len,
                num_tokens,
                log2(e) / sqrt(head_size),
                HEAD_SIZE=head_size,
                PADDED_HEAD=padded_head,
                GROUP=self.group,
                KV_HEADS=kv_heads,
                BLOCK_ROWS=self.blocks.rows,
                BLOCK_KEYS=self.blocks.keys,
                NUM_STAGES=NUM_STAGES,
                ONE_SLICE=self.num_slices == 1,
                ONE_BLOCK=self.row_blocks == 1,
                num_warps=self.blocks.num_warps,
                enable_fp_fusion=True,  # Triton 3.9 warns where nobody says
            )
            if self.num_slices > 1:
                combine_slices[(num_tokens, num_heads)](
                    out,
                    self.partials,
                    self.maxima,
                    self.sums,
                    self.query_starts,
                    num_reqs,
                    self.num_slices,
                    num_tokens,
                    HEAD_SIZE=head_size,
                    PADDED_HEAD=padded_head,
                    AT_ONCE=COMBINED_AT_ONCE,
                    num_warps=4,
                    enable_fp_fusion=True,
                )
        return out


def one_query_each(batch: RaggedBatch) -> tuple[list[int], list[int], list[int]]:  # each [padded_tokens]
    """Query lengths, context lengths and cache rows in batch expansion, where every token is a request.

    Padding tokens are requests without a query: a captured pass, rewritten in place, may bring any number of tokens.
    """
    query_lens: list[int] = []
    context_lens: list[int] = []
    cache_rows: list[int] = []
    for queries, context, row in zip(batch.query_lens, batch.context_lens, batch.rows, strict=True):
        query_lens += [1] * queries
        context_lens += range(context, context + queries)
        cache_rows += [row] * queries
    padding = [0] * (batch.padded_tokens - batch.num_tokens)
    return query_lens + padding, context_lens + padding, cache_rows + padding


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """What one program works on: `rows` (queries times heads of a group) against `keys` at a time."""

    rows: int
    keys: int
    num_warps: int


def choose_blocks(
    num_reqs: int,  # of the longest request: queries times heads per KV head
    head_size: int,
    element_bytes: int,
    *,
    hopper: bool,
) -> Blocks:
    """The smallest block that holds all rows, up to what registers hold; keys by the bytes of a stage.

    A thread keeps rows * head / threads float32 sums, beside the scores and its part of the operands. Room is left for
    32 of them, or 64 where operands stay in shared memory: in Hopper's warp-group products, which start at 64 rows.
    Float32 has no tensor cores at full precision, and its products take the registers. All of this was found by
    compiling, none of it by running: heads of 64 and 128 in 16 bits spill nothing on sm_90; others, a few bytes.
    """
    padded_head = max(16, triton.next_power_of_2(head_size))
    needed = max(16, triton.next_power_of_2(num_reqs))
    if element_bytes == 4:
        rows = min(needed, 32, 4096 // padded_head)
        return Blocks(rows=rows, keys=32 if padded_head <= 64 else 16, num_warps=8)
    rows = min(needed, 128, (64 if hopper else 32) * 256 // padded_head)
    most_sums = 64 if hopper and rows >= 64 else 32
    num_warps = 8 if rows == 128 or rows * padded_head > most_sums * 128 else 4
    keys = min(64, STAGE_BYTES // (2 * padded_head * element_bytes))
    return Blocks(rows=rows, keys=keys, num_warps=num_warps)


def choose_num_slices(
    num_programs: int,  # of one slice: requests x KV heads x blocks of rows
    *,
    max_len: int,  # of the cache
    at_once: int,  # programs that the device runs at the same time
) -> int:
    """As many as run at once, none so short that it does not pay.

    Slices are of equal length, so more than one wave of them balances nothing.
    """
    return max(1, min(at_once // num_programs, max_len // MIN_KEYS_PER_SLICE))
