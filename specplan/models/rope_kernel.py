"""RoPE and the cache write of one layer in one launch, in Triton.

What a layer does to its tokens before it attends is a dozen small operations, each with less to move than a launch
costs. At the few tokens of a step a large model should wait for its weights alone. Importing this module needs Triton.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specplan.models.attention_kernel import head_at
from specplan.models.rope import Rope

__all__ = ["choose_num_warps", "rotate_and_cache", "rotate_and_cache_kernel"]

# 16 bytes of 16-bit numbers: with a thread to each, a warp's loads are all under way at once.
PAIRS_PER_THREAD = 8
MOST_WARPS = 16


def rotate_and_cache(
    query: Tensor,  # [num_tokens, num_heads, head_size], contiguous as are all others
    key: Tensor,  # [num_tokens, kv_heads, head_size]
    value: Tensor,  # as key
    rope: Rope,
    *,
    keys: Tensor,  # [rows, max_len, kv_heads, head_size], a layer of the cache
    values: Tensor,  # as keys
    kv_index: Tensor,  # [num_tokens] int64, each token's place in the layer's flat token index
    query_starts: Tensor,  # [num_reqs + 1] int32, where each request's queries begin; the last: where padding does
    padded_out: Tensor,  # as query
) -> Tensor:  # as query
    """The rotated query; rotated keys, and values, go to the cache. On a CPU: `rotate` and `KVCache.write`.

    Padding tokens, which attention passes over, get their zeros in `padded_out` here: a fill would be one more launch.
    """
    num_tokens, num_heads, head_size = query.shape
    kv_heads = key.shape[1]
    padded_heads, padded_half = triton.next_power_of_2(num_heads), triton.next_power_of_2(head_size // 2)
    rotated = torch.empty_like(query)
    rotate_and_cache_kernel[(num_tokens,)](
        rotated,
        keys,
        values,
        padded_out,
        query,
        key,
        value,
        *rope,
        kv_index,
        query_starts,
        query_starts.shape[0] - 1,
        NUM_HEADS=num_heads,
        KV_HEADS=kv_heads,
        HEAD_SIZE=head_size,
        PADDED_HEADS=padded_heads,
        PADDED_KV_HEADS=triton.next_power_of_2(kv_heads),
        PADDED_HALF=padded_half,
        num_warps=choose_num_warps(padded_heads * padded_half),
        enable_fp_fusion=True,  # Triton 3.9 warns where nobody says
    )
    return rotated


def choose_num_warps(
    num_pairs: int,  # of a query: padded heads x half a padded head
) -> int:
    """A power of two that gives each thread few pairs, all of which it holds in registers."""
    return max(1, min(MOST_WARPS, num_pairs // (32 * PAIRS_PER_THREAD)))


@triton.jit(do_not_specialize=["num_reqs"])  # type: ignore[untyped-decorator]
def rotate_and_cache_kernel(
    rotated: tl.tensor,  # [num_tokens, num_heads, head_size], out
    keys: tl.tensor,  # [rows * max_len, kv_heads, head_size], out
    values: tl.tensor,  # as keys, out
    padded_out: tl.tensor,  # [num_tokens, num_heads, head_size], out: zeros for padding tokens
    query: tl.tensor,  # [num_tokens, num_heads, head_size]
    key: tl.tensor,  # [num_tokens, kv_heads, head_size]
    value: tl.tensor,  # as key
    cos: tl.tensor,  # [num_tokens, head_size / 2] float32
    sin: tl.tensor,  # as cos
    kv_index: tl.tensor,  # [num_tokens] int64
    query_starts: tl.tensor,  # [num_reqs + 1] int32
    num_reqs: int,
    NUM_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    PADDED_HEADS: tl.constexpr,  # the powers of two that hold all heads, all KV heads, and half a head
    PADDED_KV_HEADS: tl.constexpr,
    PADDED_HALF: tl.constexpr,
) -> None:
    """One token's heads, all at once. Grid: (tokens). Padding tokens share a place in the cache that nobody reads."""
    token = tl.program_id(0).to(tl.int64)
    query_head, key_head = token * NUM_HEADS, token * KV_HEADS
    # All loads come first: one behind a store would wait for memory once more.
    place_head = tl.load(kv_index + token) * KV_HEADS
    first_padding = tl.load(query_starts + num_reqs)
    half: tl.constexpr = HEAD_SIZE // 2
    in_half = tl.arange(0, PADDED_HALF)
    token_cos = tl.load(cos + token * half + in_half, mask=in_half < half)
    token_sin = tl.load(sin + token * half + in_half, mask=in_half < half)
    halves, half_mask = tile_of_heads(NUM_HEADS, half, HEAD_SIZE, PADDED_HEADS, PADDED_HALF)
    kv_halves, kv_half_mask = tile_of_heads(KV_HEADS, half, HEAD_SIZE, PADDED_KV_HEADS, PADDED_HALF)
    wholes, whole_mask = tile_of_heads(NUM_HEADS, HEAD_SIZE, HEAD_SIZE, PADDED_HEADS, 2 * PADDED_HALF)
    kv_wholes, kv_whole_mask = tile_of_heads(KV_HEADS, HEAD_SIZE, HEAD_SIZE, PADDED_KV_HEADS, 2 * PADDED_HALF)
    token_query = head_at(query, query_head, HEAD_SIZE) + halves
    token_key = head_at(key, key_head, HEAD_SIZE) + kv_halves
    query_first, query_second = tl.load(token_query, half_mask), tl.load(token_query + half, half_mask)
    key_first, key_second = tl.load(token_key, kv_half_mask), tl.load(token_key + half, kv_half_mask)
    token_value = tl.load(head_at(value, key_head, HEAD_SIZE) + kv_wholes, kv_whole_mask)

    turned = head_at(rotated, query_head, HEAD_SIZE) + halves
    store_turned(turned, half, query_first, query_second, token_cos, token_sin, half_mask)
    turned = head_at(keys, place_head, HEAD_SIZE) + kv_halves
    store_turned(turned, half, key_first, key_second, token_cos, token_sin, kv_half_mask)
    tl.store(head_at(values, place_head, HEAD_SIZE) + kv_wholes, token_value, kv_whole_mask)
    if token >= first_padding:
        tl.store(head_at(padded_out, query_head, HEAD_SIZE) + wholes, 0.0, whole_mask)


@triton.jit  # type: ignore[untyped-decorator]
def store_turned(
    turned: tl.tensor,  # [heads, half] pointers to the first halves, out
    half: tl.constexpr,  # from there to the second ones
    first: tl.tensor,  # [heads, half]
    second: tl.tensor,  # as first
    cos: tl.tensor,  # [half] float32
    sin: tl.tensor,  # as cos
    mask: tl.tensor,  # as first
) -> None:
    """out_i = x_i cos_i - x_j sin_i and out_j = x_j cos_i + x_i sin_i, j = i + head_size / 2, as `rotate` does."""
    first, second = first.to(tl.float32), second.to(tl.float32)
    cos, sin = cos[None, :], sin[None, :]
    dtype = turned.dtype.element_ty
    tl.store(turned, (first * cos - second * sin).to(dtype), mask)
    tl.store(turned + half, (second * cos + first * sin).to(dtype), mask)


@triton.jit  # type: ignore[untyped-decorator]
def tile_of_heads(
    NUM_HEADS: tl.constexpr,
    SIZE: tl.constexpr,  # of the part of each head that is wanted
    HEAD_SIZE: tl.constexpr,
    PADDED_HEADS: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # both [PADDED_HEADS, PADDED_SIZE]
    """Offsets of the heads' elements from the first of them, and which of these exist."""
    heads, in_part = tl.arange(0, PADDED_HEADS), tl.arange(0, PADDED_SIZE)
    offsets = heads[:, None] * HEAD_SIZE + in_part[None, :]
    return offsets, (heads < NUM_HEADS)[:, None] & (in_part < SIZE)[None, :]
