"""A static KV cache: one row per request, allocated once, so that a captured graph finds it where it was."""

from __future__ import annotations

import torch
from torch import Tensor

from specplan.models.config import DecoderConfig

__all__ = ["KVCache"]


class KVCache:
    """Keys and values of `num_rows` requests of up to `max_len` tokens, and one scratch row for padding tokens.

    How much of a row is in use is not kept here: a pass is told each request's context, so rolling back rejected drafts
    is to name a shorter one.
    """

    def __init__(
        self, config: DecoderConfig, *, num_rows: int, max_len: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        shape = (config.num_hidden_layers, num_rows + 1, max_len, config.kv_heads, config.head_size)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)  # [layers, rows + 1, max_len, kv_heads, head_size]
        self.values = torch.zeros(shape, device=device, dtype=dtype)
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
