"""What attends to what in one pass: dense for training, over a static KV cache for serving.

An attention also turns queries and keys by their positions (models/rope.py): what it caches are rotated keys.

The cached kinds take a ragged batch: request r brings `query_lens[r]` tokens that follow `context_lens[r]` cached ones,
and each token attends to its request's context and to the tokens up to itself, in one of two layouts. Multi-query: a
row for each request, its keys and values read once for all its queries. Batch expansion: a row for each query. All keys
of the pass are written before any is read. Tokens past the batch's own, up to `padded_tokens`, are padding: they are
written to the cache's scratch row and attend to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from specplan.errors import ConfigError, MeasurementError
from specplan.models.cache import KVCache
from specplan.models.rope import Rope, rotate
from specplan.shapes import Layout

__all__ = [
    "Attention",
    "DenseAttention",
    "ExpandedAttention",
    "PaddedAttention",
    "RaggedBatch",
    "cached_attention",
    "split_into_runs",
]

# What one more call takes is worth about as many idle queries.
QUERIES_PER_CALL = 8
# Keys that batch expansion copies at once, and as much again of values: about what a core's own cache holds.
COPIED_BYTES = 512 * 1024


class Attention(Protocol):
    """Rotates one layer's queries and keys, and attends; the cached kinds first write its keys and values."""

    def attend(
        self,
        layer: int,
        query: Tensor,  # [num_tokens, num_heads, head_size]
        key: Tensor,  # [num_tokens, kv_heads, head_size]
        value: Tensor,  # [num_tokens, kv_heads, head_size]
        rope: Rope,  # of the pass's tokens
    ) -> Tensor: ...  # [num_tokens, num_heads, head_size]


class DenseAttention:
    """Causal attention within `num_rows` rows of equal length, nothing cached: what training needs."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rope: Rope) -> Tensor:
        attended = F.scaled_dot_product_attention(
            self.as_rows(rotate(query, rope)),
            self.as_rows(rotate(key, rope)),
            self.as_rows(value),
            is_causal=True,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return attended.transpose(1, 2).flatten(0, 1)

    def as_rows(self, heads: Tensor) -> Tensor:  # -> [num_rows, num_heads, row_len, head_size]
        return heads.view(self.num_rows, -1, *heads.shape[1:]).transpose(1, 2)


class RaggedBatch:
    """The lengths and cache rows of one pass on the host, and what follows from them on the device."""

    def __init__(
        self,
        query_lens: Sequence[int],
        context_lens: Sequence[int],
        *,
        cache: KVCache,
        padded_tokens: int | None = None,
        rows: Sequence[int] | None = None,
    ) -> None:
        """Request r of the pass lives in row `rows[r]` of the cache; rows ascend, and are 0, 1, 2, ... if not given."""
        self.rows = tuple(range(len(query_lens)) if rows is None else rows)
        self.query_lens = tuple(query_lens)
        self.context_lens = tuple(context_lens)
        self.num_tokens = sum(self.query_lens)
        self.padded_tokens = self.num_tokens if padded_tokens is None else padded_tokens
        if len(self.rows) != len(self.query_lens) or any(row >= later for row, later in pairwise((-1, *self.rows))):
            raise ConfigError(
                f"{len(self.query_lens)} requests in cache rows {list(self.rows)}, expected as many in ascending order",
                "give each request a row of its own, and name requests in the order of their rows",
            )
        longest = max(q + c for q, c in zip(self.query_lens, self.context_lens, strict=True))
        if longest > cache.max_len or self.rows[-1] >= cache.num_rows or self.padded_tokens < self.num_tokens:
            raise ConfigError(
                f"a pass of {len(self.query_lens)} requests, the last in row {self.rows[-1]}, {longest} tokens long "
                f"and padded from {self.num_tokens} to {self.padded_tokens}, does not fit a cache of {cache.num_rows} "
                f"rows of {cache.max_len}",
                "make the cache larger or the pass smaller",
            )
        device = cache.keys.device
        lens = torch.tensor(self.query_lens, device=device)
        contexts = torch.tensor(self.context_lens, device=device)
        first_places = torch.tensor(self.rows, device=device) * cache.max_len  # of each request's row
        first_tokens = lens.cumsum(0) - lens
        owner = torch.repeat_interleave(torch.arange(len(lens), device=device), lens, output_size=self.num_tokens)
        offsets = torch.arange(self.num_tokens, device=device) - first_tokens[owner]
        self.positions = torch.zeros(self.padded_tokens, dtype=torch.int64, device=device)  # [padded_tokens]
        self.positions[: self.num_tokens] = contexts[owner] + offsets
        # Where each token's key and value go, in a layer's flat token index.
        self.kv_index = torch.full((self.padded_tokens,), cache.scratch_index, dtype=torch.int64, device=device)
        self.kv_index[: self.num_tokens] = first_places[owner] + self.positions[: self.num_tokens]
        self.query_lens_tensor = lens  # [num_reqs]
        self.owner = owner  # [num_tokens], the request of each token
        self.offsets = offsets  # [num_tokens], its place among its request's queries
        self.last_tokens = first_tokens + lens - 1  # [num_reqs], each request's last token


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """Requests of a pass that are attended at once: their queries laid out as [num_rows, longest query].

    A cache row between them that the pass leaves out rides along without a query.
    """

    rows: slice  # of the cache
    tokens: slice  # of the pass
    longest_query: int
    longest_key: int
    place: Tensor  # [tokens of the run], where each stands in [num_rows * longest query]
    mask: Tensor  # [num_rows, 1, group * longest query, longest key]


class PaddedAttention:
    """Multi-query attention for a CPU: run by run, queries are padded to the run's longest and masked to their length.

    Runs, their layouts and their masks are made once per pass, not per layer. The heads that share a key head ride
    along the query axis, so that keys are read once per group and never repeated.
    """

    def __init__(self, batch: RaggedBatch, cache: KVCache) -> None:
        self.batch = batch
        self.cache = cache
        self.group = cache.config.num_attention_heads // cache.config.kv_heads
        runs = (self.make_run(requests) for requests in split_into_runs(batch.query_lens, batch.rows))
        self.runs = [run for run in runs if run.longest_query]  # one without queries has nothing to attend

    def make_run(self, requests: slice) -> Run:
        batch = self.batch
        query_lens, rows = batch.query_lens[requests], batch.rows[requests]
        num_rows, longest_query = rows[-1] - rows[0] + 1, max(query_lens)
        longest_key = max(q + c for q, c in zip(query_lens, batch.context_lens[requests], strict=True))
        first_token = sum(batch.query_lens[: requests.start])
        tokens = slice(first_token, first_token + sum(query_lens))
        row = torch.tensor(rows, device=batch.owner.device)[batch.owner[tokens] - requests.start] - rows[0]
        place = row * longest_query + batch.offsets[tokens]
        # A place no query fills keeps position 0: it attends to one key, so that its softmax is finite, and is dropped.
        positions = torch.zeros(num_rows * longest_query, dtype=torch.int64, device=place.device)
        positions[place] = batch.positions[tokens]
        keys = torch.arange(longest_key, device=place.device)
        mask = keys <= positions.view(num_rows, 1, longest_query, 1)
        return Run(
            rows=slice(rows[0], rows[-1] + 1),
            tokens=tokens,
            longest_query=longest_query,
            longest_key=longest_key,
            place=place,
            mask=mask.repeat(1, 1, self.group, 1),
        )

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rope: Rope) -> Tensor:
        self.cache.write(layer, self.batch.kv_index, rotate(key, rope), value)
        rotated = rotate(query, rope)
        out = torch.zeros_like(rotated)
        for run in self.runs:
            out[run.tokens] = self.attend_run(run, layer, rotated[run.tokens])
        return out

    def attend_run(
        self,
        run: Run,
        layer: int,
        query: Tensor,  # [tokens of the run, num_heads, head_size], rotated
    ) -> Tensor:  # as query
        num_rows = run.mask.shape[0]
        kv_heads, (num_heads, head_size) = self.cache.config.kv_heads, query.shape[1:]
        keys = self.cache.keys[layer][run.rows, : run.longest_key].transpose(1, 2)
        values = self.cache.values[layer][run.rows, : run.longest_key].transpose(1, 2)
        laid_out = query.new_zeros(num_rows * run.longest_query, num_heads, head_size)
        laid_out.index_copy_(0, run.place, query)
        grouped = laid_out.view(num_rows, run.longest_query, kv_heads, self.group, head_size)
        grouped = grouped.permute(0, 2, 3, 1, 4).reshape(num_rows, kv_heads, -1, head_size)
        attended = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=run.mask)
        attended = attended.view(num_rows, kv_heads, self.group, run.longest_query, head_size).permute(0, 3, 1, 2, 4)
        return attended.reshape(-1, num_heads, head_size)[run.place]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QueryBlock:
    """Queries of a pass whose keys are copied at once."""

    tokens: slice  # of the pass
    rows: Tensor  # [queries], of the cache
    mask: Tensor  # [queries, 1, 1, longest key]


class ExpandedAttention:
    """Batch expansion for a CPU: every query is a row of its own, with a copy of its request's keys and values.

    The copies are what the layout costs. They are made in blocks of queries that a processor's caches hold: memory for
    all of them at once would be fresh from the system every time, and its first touch would be what is measured. Blocks
    and their masks are made once per pass. The heads of a group ride along the query axis, as in `PaddedAttention`.
    """

    def __init__(self, batch: RaggedBatch, cache: KVCache) -> None:
        self.batch = batch
        self.cache = cache
        longest_key = max(1, *(q + c for q, c in zip(batch.query_lens, batch.context_lens, strict=True)))
        row_bytes = longest_key * cache.config.kv_heads * cache.config.head_size * cache.keys.element_size()
        at_once = max(1, COPIED_BYTES // row_bytes)
        starts = range(0, batch.num_tokens, at_once)
        self.blocks = [self.make_block(slice(at, min(at + at_once, batch.num_tokens))) for at in starts]

    def make_block(self, tokens: slice) -> QueryBlock:
        positions = self.batch.positions[tokens]
        keys = torch.arange(int(positions.max()) + 1, device=positions.device)
        return QueryBlock(
            tokens=tokens,
            rows=torch.tensor(self.batch.rows, device=positions.device)[self.batch.owner[tokens]],
            mask=keys <= positions.view(-1, 1, 1, 1),
        )

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rope: Rope) -> Tensor:
        self.cache.write(layer, self.batch.kv_index, rotate(key, rope), value)
        rotated = rotate(query, rope)
        out = torch.zeros_like(rotated)
        for block in self.blocks:
            out[block.tokens] = self.attend_block(block, layer, rotated[block.tokens])
        return out

    def attend_block(
        self,
        block: QueryBlock,
        layer: int,
        query: Tensor,  # [queries, num_heads, head_size], rotated
    ) -> Tensor:  # as query
        num_queries, num_heads, head_size = query.shape
        kv_heads, longest_key = self.cache.config.kv_heads, block.mask.shape[-1]
        keys = self.cache.keys[layer][:, :longest_key].index_select(0, block.rows).transpose(1, 2)
        values = self.cache.values[layer][:, :longest_key].index_select(0, block.rows).transpose(1, 2)
        grouped = query.view(num_queries, kv_heads, num_heads // kv_heads, head_size)
        return F.scaled_dot_product_attention(grouped, keys, values, attn_mask=block.mask).flatten(1, 2)


def split_into_runs(
    query_lens: Sequence[int],  # [num_reqs]
    rows: Sequence[int],  # [num_reqs], ascending
) -> list[slice]:
    """The requests that are worth attending at once: in cache rows that are close, with queries that are alike.

    Rows from the first to the last are one slice of the cache, and every row of a run pays for its longest query. A
    request joins the run before it unless that costs more idle queries than a call of its own is worth: a prompt
    among requests that decode has its own.
    """
    bounds = [0]
    longest = query_lens[0]
    for request in range(1, len(rows)):
        length = query_lens[request]
        num_rows = rows[request] - rows[bounds[-1]] + 1
        # Of the run with it and without it, beyond its own.
        idle = num_rows * max(longest, length) - (rows[request - 1] - rows[bounds[-1]] + 1) * longest - length
        if idle > QUERIES_PER_CALL:
            bounds.append(request)
            longest = length
        longest = max(longest, length)
    return [slice(start, end) for start, end in pairwise([*bounds, len(rows)])]


def cached_attention(batch: RaggedBatch, cache: KVCache, layout: Layout = "multi-query") -> Attention:
    """The cached attention of the cache's device. Raises MeasurementError where CUDA's cannot be compiled."""
    if cache.keys.is_cuda:
        return cuda_attention(batch, cache, layout)
    return PaddedAttention(batch, cache) if layout == "multi-query" else ExpandedAttention(batch, cache)


def cuda_attention(batch: RaggedBatch, cache: KVCache, layout: Layout = "multi-query") -> Attention:
    """Our own kernels'; imported here, because a CPU's user has no Triton."""
    try:
        from specplan.models.split_attention import SplitAttention
    except ImportError as error:
        raise MeasurementError(
            f"the attention of CUDA passes is in Triton, and Triton cannot be imported: {error}",
            "pip install 'triton>=3.5' (CUDA builds of torch for Linux bring theirs), or measure with --device cpu",
        ) from error
    return SplitAttention(batch, cache, layout=layout)
