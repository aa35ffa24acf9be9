"""A static KV cache: one row per request, allocated once, so that a captured graph finds it where it was."""

from __future__ import annotations

import torch
from torch import Tensor

from specplan.errors import MeasurementError
from specplan.models.config import DecoderConfig

__all__ = ["KVCache"]


class KVCache:
    """Keys and values of `num_rows` requests of up to `max_len` tokens, and one scratch row for padding tokens.

    How much of a row is in use is not kept here: a pass is told each request's context, so rolling back rejected drafts
    is to name a shorter one. Raises MeasurementError where there is no memory for it.
    """

    def __init__(
        self, config: DecoderConfig, *, num_rows: int, max_len: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        shape = (config.num_hidden_layers, num_rows + 1, max_len, config.kv_heads, config.head_size)
        try:
            # Both [layers, rows + 1, max_len, kv_heads, head_size].
            self.keys, self.values = (torch.zeros(shape, device=device, dtype=dtype) for _ in range(2))
        except RuntimeError as error:  # a CPU's allocator raises nothing more specific
            raise MeasurementError(
                f"no memory for the KV cache of {num_rows} requests of {max_len} tokens: {str(error).splitlines()[0]}",
                "run fewer or shorter requests, or use a device with more memory",
            ) from error
        self.num_rows = num_rows
        self.max_len = max_len
        self.config = config

    @property
    def scratch_index(self) -> int:
        """Where padding tokens are written: the first place of the scratch row, in a layer's flat token index."""
        return self.num_rows * self.max_len

    def flat(self, layer: int) -> tuple[Tensor, Tensor]:  # each [(rows + 1) * max_len, kv_heads, head_size]
        """A layer's keys and values as one line of tokens; request r's position p is at r * max_len + p."""
        return self.keys[layer].flatten(0, 1), self.values[layer].flatten(0, 1)

    def write(
        self,
        layer: int,
        index: Tensor,  # [num_tokens] int64, places in the flat token index
        key: Tensor,  # [num_tokens, kv_heads, head_size]
        value: Tensor,  # [num_tokens, kv_heads, head_size]
    ) -> None:
        """Puts tokens' keys and values where they belong."""
        keys, values = self.flat(layer)
        keys.index_copy_(0, index, key)
        values.index_copy_(0, index, value)
