"""What attends to what in one pass: dense for training, over a static KV cache for serving.

The cached kinds take a ragged batch: request r brings `query_lens[r]` tokens that follow `context_lens[r]` cached ones,
and each token attends to its request's context and to the tokens up to itself (multi-query: one row per request, its
keys and values read once for all its queries). Tokens past the batch's own, up to `padded_tokens`, are padding: they
are written to the cache's scratch row and attend to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from specplan.errors import ConfigError, MeasurementError
from specplan.models.cache import KVCache

__all__ = ["Attention", "DenseAttention", "PaddedAttention", "RaggedBatch", "cached_attention"]


class Attention(Protocol):
    """Attends one layer's queries; the cached kinds first write its keys and values."""

    def attend(
        self,
        layer: int,
        query: Tensor,  # [num_tokens, num_heads, head_size]
        key: Tensor,  # [num_tokens, kv_heads, head_size]
        value: Tensor,  # [num_tokens, kv_heads, head_size]
    ) -> Tensor: ...  # [num_tokens, num_heads, head_size]


class DenseAttention:
    """Causal attention within `num_rows` rows of equal length, nothing cached: what training needs."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        attended = F.scaled_dot_product_attention(
            self.as_rows(query),
            self.as_rows(key),
            self.as_rows(value),
            is_causal=True,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return attended.transpose(1, 2).flatten(0, 1)

    def as_rows(self, heads: Tensor) -> Tensor:  # -> [num_rows, num_heads, row_len, head_size]
        return heads.view(self.num_rows, -1, *heads.shape[1:]).transpose(1, 2)


class RaggedBatch:
    """The lengths of one pass on the host and what follows from them on the device."""

    def __init__(
        self,
        query_lens: Sequence[int],
        context_lens: Sequence[int],
        *,
        cache: KVCache,
        padded_tokens: int | None = None,
        first_row: int = 0,
    ) -> None:
        """Request r of the pass lives in row `first_row + r` of the cache."""
        self.first_row = first_row
        self.query_lens = tuple(query_lens)
        self.context_lens = tuple(context_lens)
        self.num_tokens = sum(self.query_lens)
        self.padded_tokens = self.num_tokens if padded_tokens is None else padded_tokens
        longest = max(q + c for q, c in zip(self.query_lens, self.context_lens, strict=True))
        last_row = first_row + len(self.query_lens)
        if longest > cache.max_len or last_row > cache.num_rows or self.padded_tokens < self.num_tokens:
            raise ConfigError(
                f"a pass of {len(self.query_lens)} requests, {longest} tokens long and padded from {self.num_tokens} "
                f"to {self.padded_tokens}, does not fit a cache of {cache.num_rows} rows of {cache.max_len}",
                "make the cache larger or the pass smaller",
            )
        device = cache.keys.device
        lens = torch.tensor(self.query_lens, device=device)
        contexts = torch.tensor(self.context_lens, device=device)
        first_tokens = lens.cumsum(0) - lens
        owner = torch.repeat_interleave(torch.arange(len(lens), device=device), lens, output_size=self.num_tokens)
        offsets = torch.arange(self.num_tokens, device=device) - first_tokens[owner]
        self.positions = torch.zeros(self.padded_tokens, dtype=torch.int64, device=device)  # [padded_tokens]
        self.positions[: self.num_tokens] = contexts[owner] + offsets
        # Where each token's key and value go, in a layer's flat token index.
        self.kv_index = torch.full((self.padded_tokens,), cache.scratch_index, dtype=torch.int64, device=device)
        self.kv_index[: self.num_tokens] = (first_row + owner) * cache.max_len + self.positions[: self.num_tokens]
        self.query_lens_tensor = lens  # [num_reqs]
        self.owner = owner  # [num_tokens], the request of each token
        self.offsets = offsets  # [num_tokens], its place among its request's queries
        self.last_tokens = first_tokens + lens - 1  # [num_reqs], each request's last token


class PaddedAttention:
    """Cached attention for a CPU: queries are laid out as [num_reqs, longest query] and masked to their own length.

    The mask and the layout are made once per pass, not per layer. The heads that share a key head ride along the query
    axis, so that keys are read once per group and never repeated.
    """

    def __init__(self, batch: RaggedBatch, cache: KVCache) -> None:
        self.batch = batch
        self.cache = cache
        num_reqs, self.longest_query = len(batch.query_lens), max(batch.query_lens)
        self.longest_key = max(q + c for q, c in zip(batch.query_lens, batch.context_lens, strict=True))
        self.place = batch.owner * self.longest_query + batch.offsets  # [num_tokens] in [num_reqs * longest_query]
        # A place no query fills keeps position 0: it attends to one key, so that its softmax is finite, and is dropped.
        positions = torch.zeros(num_reqs * self.longest_query, dtype=torch.int64, device=batch.positions.device)
        positions[self.place] = batch.positions[: batch.num_tokens]
        keys = torch.arange(self.longest_key, device=positions.device)
        mask = keys <= positions.view(num_reqs, 1, self.longest_query, 1)
        group = cache.config.num_attention_heads // cache.config.kv_heads
        self.mask = mask.repeat(1, 1, group, 1)  # [num_reqs, 1, group * longest query, longest key]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        num_tokens, num_heads, head_size = query.shape
        kv_heads = key.shape[1]
        group = num_heads // kv_heads
        self.cache.write(layer, self.batch.kv_index, key, value)
        num_reqs = len(self.batch.query_lens)
        rows = slice(self.batch.first_row, self.batch.first_row + num_reqs)
        keys = self.cache.keys[layer][rows, : self.longest_key].transpose(1, 2)
        values = self.cache.values[layer][rows, : self.longest_key].transpose(1, 2)

        laid_out = query.new_zeros(num_reqs * self.longest_query, num_heads, head_size)
        laid_out.index_copy_(0, self.place, query[: self.batch.num_tokens])
        grouped = laid_out.view(num_reqs, self.longest_query, kv_heads, group, head_size)
        grouped = grouped.permute(0, 2, 3, 1, 4).reshape(num_reqs, kv_heads, group * self.longest_query, head_size)
        attended = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=self.mask)
        attended = attended.view(num_reqs, kv_heads, group, self.longest_query, head_size).permute(0, 3, 1, 2, 4)
        out = query.new_zeros(num_tokens, num_heads, head_size)
        out[: self.batch.num_tokens] = attended.reshape(-1, num_heads, head_size)[self.place]
        return out


def cached_attention(batch: RaggedBatch, cache: KVCache) -> Attention:
    """The cached attention of the cache's device. Raises MeasurementError where CUDA's cannot be compiled."""
    return cuda_attention(batch, cache) if cache.keys.is_cuda else PaddedAttention(batch, cache)


def cuda_attention(batch: RaggedBatch, cache: KVCache) -> Attention:
    """Our own kernel's; imported here, because a CPU's user has no Triton."""
    try:
        from specplan.models.attention_kernel import SplitAttention
    except ImportError as error:
        raise MeasurementError(
            f"the attention of CUDA passes is a Triton kernel, and Triton cannot be imported: {error}",
            "pip install 'triton>=3.5' (CUDA builds of torch for Linux bring theirs), or measure with --device cpu",
        ) from error
    return SplitAttention(batch, cache)
