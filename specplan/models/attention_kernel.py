"""Split-KV attention for CUDA, in Triton: ragged multi-query batches over a static KV cache (flash-decoding).

One program of `attend_slice` takes one block of a request's queries, one KV head and one slice of the keys that the
block may see. The heads that share a KV head are rows of the block, beside the queries, so that a key is read once for
all of them. With several slices it leaves an unfinished softmax, which `combine_slices` finishes:

    row i over slice s:   m_is = max_j x_ij,   l_is = sum_j 2^(x_ij - m_is),   a_is = sum_j 2^(x_ij - m_is) v_j
    over all slices:      out_i = sum_s 2^(m_is - m_i) a_is / sum_s 2^(m_is - m_i) l_is,   m_i = max_s m_is

where x_ij = q_i k_j log2(e) / sqrt(head_size) and j runs over the keys up to query i's own position. What depends on
lengths is read from device memory when a program runs; the host fixes the grid alone, so a captured launch holds for
other lengths, and programs that find nothing to do leave at once.

Dao et al., "Flash-Decoding for long-context inference" (2023). Importing this module needs Triton.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["attend_slice", "combine_slices", "head_at"]


@triton.jit(do_not_specialize=["max_len", "num_tokens"])  # type: ignore[untyped-decorator]
def attend_slice(
    out: tl.tensor,  # [num_tokens, num_heads, head_size]; written if there is one slice
    partials: tl.tensor,  # [num_slices, num_tokens, num_heads, head_size] float32; written if there are several
    maxima: tl.tensor,  # [num_slices, num_tokens, num_heads] float32, likewise; -inf: no key of this slice is seen
    sums: tl.tensor,  # as maxima
    query: tl.tensor,  # [num_tokens, num_heads, head_size]
    keys: tl.tensor,  # [rows, max_len, kv_heads, head_size]
    values: tl.tensor,  # as keys
    query_starts: tl.tensor,  # [num_reqs + 1] int32, where each request's queries begin among the tokens
    used_lens: tl.tensor,  # [num_reqs] int32, keys of each request, those of this pass included
    cache_rows: tl.tensor,  # [num_reqs] int32, where each request's keys and values are
    max_len: int,
    num_tokens: int,
    scale: float,  # log2(e) / sqrt(head_size)
    HEAD_SIZE: tl.constexpr,
    PADDED_HEAD: tl.constexpr,  # the power of two that holds a head
    GROUP: tl.constexpr,  # heads per KV head
    KV_HEADS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,  # row i of a request is its query i // GROUP, and head i % GROUP of the group
    BLOCK_KEYS: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    ONE_SLICE: tl.constexpr,
    ONE_BLOCK: tl.constexpr,  # all of a request's rows fit one block
) -> None:
    """Grid: (row blocks x KV heads, slices, requests)."""
    slice_index, num_slices, request = tl.program_id(1), tl.num_programs(1), tl.program_id(2)
    # A block's programs of all KV heads run side by side and read whole tokens between them. Later blocks see more
    # keys: they go first, so that none of them is left to run alone at the end.
    kv_head = tl.program_id(0) % KV_HEADS
    first_row_of_block = (tl.num_programs(0) // KV_HEADS - 1 - tl.program_id(0) // KV_HEADS) * BLOCK_ROWS

    first_token = tl.load(query_starts + request)
    query_len = tl.load(query_starts + request + 1) - first_token
    if first_row_of_block >= query_len * GROUP:
        return
    context_len = tl.load(used_lens + request) - query_len
    first_query = first_row_of_block // GROUP
    last_query = tl.minimum((first_row_of_block + BLOCK_ROWS - 1) // GROUP, query_len - 1)
    seen = context_len + last_query + 1  # keys, by the block's last query

    # Slices of whole blocks of keys, as even as can be; some are empty where there are fewer blocks than slices.
    key_blocks = tl.cdiv(seen, BLOCK_KEYS)
    first_key = (slice_index * key_blocks // num_slices) * BLOCK_KEYS
    last_key = tl.minimum(((slice_index + 1) * key_blocks // num_slices) * BLOCK_KEYS, seen)

    rows = first_row_of_block + tl.arange(0, BLOCK_ROWS)
    row_query = rows // GROUP
    row_exists = row_query < query_len
    num_heads: tl.constexpr = GROUP * KV_HEADS
    # Places are counted in heads: in int64 from a tensor's start, in int32 from the request's first token.
    first_place = first_token.to(tl.int64) * num_heads + kv_head * GROUP
    slice_place = first_place + slice_index.to(tl.int64) * num_tokens * num_heads
    places = row_query * num_heads + rows % GROUP
    if first_key == last_key:  # only where there are several slices: every query sees itself
        tl.store(maxima + slice_place + places, tl.full((BLOCK_ROWS,), float("-inf"), tl.float32), row_exists)
        return

    in_head = tl.arange(0, PADDED_HEAD)
    offsets = places[:, None] * HEAD_SIZE + in_head[None, :]
    row_mask = row_exists[:, None] & (in_head < HEAD_SIZE)[None, :]
    block_query = tl.load(head_at(query, first_place, HEAD_SIZE) + offsets, mask=row_mask, other=0.0)
    # Rows past the request's last see what its last query sees, so that this one bound also ends the keys.
    position = tl.minimum(context_len + row_query, seen - 1)
    row_place = tl.load(cache_rows + request).to(tl.int64) * max_len * KV_HEADS + kv_head

    maximum = tl.full((BLOCK_ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_ROWS,), tl.float32)
    attended = tl.zeros((BLOCK_ROWS, PADDED_HEAD), tl.float32)
    first_masked = first_key
    if not ONE_BLOCK:
        # Long queries are bound by arithmetic: keys that all rows see go without a mask. Short ones wait for memory,
        # and a loop in two parts would make them wait once more.
        seen_by_all = (context_len + first_query + 1) // BLOCK_KEYS * BLOCK_KEYS
        first_masked = tl.maximum(first_key, tl.minimum(seen_by_all, last_key))
        maximum, total, attended = attend_keys(
            maximum, total, attended, block_query, keys, values, row_place, first_key, first_masked, position, scale,
            HEAD_SIZE, PADDED_HEAD, KV_HEADS, BLOCK_KEYS, NUM_STAGES, False,
        )  # fmt: skip
    maximum, total, attended = attend_keys(
        maximum, total, attended, block_query, keys, values, row_place, first_masked, last_key, position, scale,
        HEAD_SIZE, PADDED_HEAD, KV_HEADS, BLOCK_KEYS, NUM_STAGES, True,
    )  # fmt: skip

    if ONE_SLICE:
        attended /= total[:, None]
        tl.store(head_at(out, first_place, HEAD_SIZE) + offsets, attended.to(out.dtype.element_ty), row_mask)
    else:
        tl.store(head_at(partials, slice_place, HEAD_SIZE) + offsets, attended, row_mask)
        tl.store(maxima + slice_place + places, maximum, row_exists)
        tl.store(sums + slice_place + places, total, row_exists)


@triton.jit  # type: ignore[untyped-decorator]
def head_at(tensor: tl.tensor, place: tl.tensor, HEAD_SIZE: tl.constexpr) -> tl.tensor:
    """The `place`-th head of a tensor.

    All of our tensors begin at a multiple of 16 bytes. Told that their heads do too, the compiler copies 16 at once.
    """
    head = tensor + place * HEAD_SIZE
    if HEAD_SIZE % 8 == 0:
        head = tl.multiple_of(head, 16)
    return head


@triton.jit  # type: ignore[untyped-decorator]
def attend_keys(
    maximum: tl.tensor,  # [BLOCK_ROWS]
    total: tl.tensor,  # [BLOCK_ROWS]
    attended: tl.tensor,  # [BLOCK_ROWS, PADDED_HEAD]
    block_query: tl.tensor,  # [BLOCK_ROWS, PADDED_HEAD]
    keys: tl.tensor,
    values: tl.tensor,
    row_place: tl.tensor,  # of the request's first key, counted in heads
    first_key: tl.tensor,  # a multiple of BLOCK_KEYS
    last_key: tl.tensor,  # exclusive; without a mask a multiple of BLOCK_KEYS
    position: tl.tensor,  # [BLOCK_ROWS], the last key each row sees
    scale: float,
    HEAD_SIZE: tl.constexpr,
    PADDED_HEAD: tl.constexpr,
    KV_HEADS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    MASKED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Takes the keys first_key .. last_key into the rows' softmax, a block at a time."""
    in_block, in_head = tl.arange(0, BLOCK_KEYS), tl.arange(0, PADDED_HEAD)
    offsets = in_block[:, None] * (KV_HEADS * HEAD_SIZE) + in_head[None, :]
    for start in tl.range(first_key, last_key, BLOCK_KEYS, num_stages=NUM_STAGES):
        # What lies past the keys in use is whatever was there before: it is not read, for 0 times NaN is NaN.
        mask = tl.full((BLOCK_KEYS, PADDED_HEAD), True, tl.int1)
        if PADDED_HEAD != HEAD_SIZE:
            mask &= in_head[None, :] < HEAD_SIZE
        if MASKED:
            mask &= (start + in_block < last_key)[:, None]
        place = row_place + start * KV_HEADS
        key_block = tl.load(head_at(keys, place, HEAD_SIZE) + offsets, mask=mask, other=0.0)
        value_block = tl.load(head_at(values, place, HEAD_SIZE) + offsets, mask=mask, other=0.0)
        scores = tl.dot(block_query, tl.trans(key_block), input_precision="ieee") * scale
        if MASKED:
            scores = tl.where(start + in_block[None, :] <= position[:, None], scores, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, 1))
        # A row may see no key of this block, nor of those before it: -inf minus -inf is NaN.
        shift = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        weights = tl.exp2(scores - shift[:, None])
        decay = tl.exp2(maximum - shift)
        total = total * decay + tl.sum(weights, 1)
        attended = tl.dot(weights.to(value_block.dtype), value_block, attended * decay[:, None], input_precision="ieee")
        maximum = new_maximum
    return maximum, total, attended


@triton.jit(do_not_specialize=["num_reqs", "num_slices", "num_tokens"])  # type: ignore[untyped-decorator]
def combine_slices(
    out: tl.tensor,  # [num_tokens, num_heads, head_size]
    partials: tl.tensor,  # [num_slices, num_tokens, num_heads, head_size] float32
    maxima: tl.tensor,  # [num_slices, num_tokens, num_heads] float32
    sums: tl.tensor,
    query_starts: tl.tensor,  # [num_reqs + 1] int32
    num_reqs: int,
    num_slices: int,
    num_tokens: int,
    HEAD_SIZE: tl.constexpr,
    PADDED_HEAD: tl.constexpr,
    AT_ONCE: tl.constexpr,  # slices
) -> None:
    """Finishes one token's and one head's softmax; nothing is written for padding tokens. Grid: (tokens, heads)."""
    token, num_heads = tl.program_id(0), tl.num_programs(1)
    if token >= tl.load(query_starts + num_reqs):
        return
    place = token.to(tl.int64) * num_heads + tl.program_id(1)
    in_head = tl.arange(0, PADDED_HEAD)
    head_mask = in_head < HEAD_SIZE
    maximum = float("-inf")
    total = 0.0
    attended = tl.zeros((PADDED_HEAD,), tl.float32)
    for start in tl.range(0, num_slices, AT_ONCE):
        slices = start + tl.arange(0, AT_ONCE)
        places = place + slices.to(tl.int64) * num_tokens * num_heads
        slice_maxima = tl.load(maxima + places, mask=slices < num_slices, other=float("-inf"))
        seen = slice_maxima > float("-inf")  # nothing else was written where no key is seen
        slice_sums = tl.load(sums + places, mask=seen, other=0.0)
        slice_partials = tl.load(
            partials + places[:, None] * HEAD_SIZE + in_head[None, :],
            mask=seen[:, None] & head_mask[None, :],
            other=0.0,
        )
        new_maximum = tl.maximum(maximum, tl.max(slice_maxima, 0))
        # The first slices may hold no key that this token sees: -inf minus -inf is NaN.
        shift = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        weights = tl.exp2(slice_maxima - shift)
        decay = tl.exp2(maximum - shift)
        total = total * decay + tl.sum(weights * slice_sums, 0)
        attended = attended * decay + tl.sum(weights[:, None] * slice_partials, 0)
        maximum = new_maximum
    tl.store(out + place * HEAD_SIZE + in_head, (attended / total).to(out.dtype.element_ty), head_mask)
