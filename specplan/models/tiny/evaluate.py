"""What the pair reached: bits per byte, and how many of the draft's tokens its target accepts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from specplan.models.attention import PaddedAttention, RaggedBatch
from specplan.models.cache import KVCache
from specplan.models.decoder import Decoder
from specplan.models.tiny.fitting import hidden_states

__all__ = ["Evaluation", "accepted_lens", "bits_per_byte", "greedy_continuations", "judge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """How much is measured: the same for every kind of text."""

    num_drafts: int = 7
    prompts: int = 48
    prompt_len: int = 64
    outputs: int = 128
    tokens: int = 60_000  # of the held-out text, for the bits per byte


def judge(
    target: Decoder,
    draft: Decoder,
    stream: NDArray[np.int64],  # one kind's held-out text
    num_bytes: int,
    size: Evaluation,
) -> dict[str, Any]:
    """Bits per byte of both; acceptance as the mean over all positions of the target's greedy text.

    Prompts are passages spread evenly over the stream, wherever they fall; outputs do not stop at an end of text.
    """
    starts = np.linspace(0, len(stream) - size.prompt_len, size.prompts).astype(int)
    prompts = torch.from_numpy(np.stack([stream[start : start + size.prompt_len] for start in starts]))
    continuations = greedy_continuations(target, prompts, size.outputs + size.num_drafts)
    accepted = accepted_lens(
        draft,
        torch.cat([prompts, continuations], dim=1),
        prompt_len=size.prompt_len,
        num_drafts=size.num_drafts,
    )
    at_least = [(accepted > position).double().mean().item() for position in range(size.num_drafts)]
    read = stream[: size.tokens]
    bytes_read = num_bytes * len(read) / len(stream)
    return {
        "target_bits_per_byte": round(bits_per_byte(target, read, bytes_read), 3),
        "draft_bits_per_byte": round(bits_per_byte(draft, read, bytes_read), 3),
        "accepted_len": round(sum(at_least), 3),
        "accepted_at_least": [round(share, 3) for share in at_least],
    }


@torch.no_grad()
def bits_per_byte(model: Decoder, stream: NDArray[np.int64], num_bytes: float, *, window: int = 512) -> float:
    """The bits of all tokens but the first over the stream's bytes, in float32.

    Windows overlap by half and each predicts its second half (the first window: all of it), so that every token is
    predicted once, from no fewer than half a window of tokens where there are as many before it.
    """
    half = window // 2
    nats = 0.0
    for start in range(0, len(stream) - 1, half):
        rows = torch.from_numpy(stream[start : start + window + 1])[None]
        skip = half if start else 0
        if rows.shape[1] - 1 <= skip:
            break
        logits = model.logits(hidden_states(model, rows[:, :-1])[skip:])
        nats += F.cross_entropy(logits, rows[0, skip + 1 :], reduction="sum").item()
    return nats / math.log(2) / num_bytes


@torch.no_grad()
def greedy_continuations(
    model: Decoder,
    prompts: Tensor,  # [rows, prompt_len] int64
    num_tokens: int,
) -> Tensor:  # [rows, num_tokens]
    """Each row's most likely next token, `num_tokens` times over, through a KV cache."""
    rows, prompt_len = prompts.shape
    cache = new_cache(model, rows, prompt_len + num_tokens)
    tokens = torch.cat([prompts, prompts.new_zeros(rows, num_tokens)], dim=1)
    fed = 0
    for end in range(prompt_len, prompt_len + num_tokens):
        tokens[:, end] = next_tokens(model, cache, tokens[:, fed:end], context_len=fed)
        fed = end
    return tokens[:, prompt_len:]


@torch.no_grad()
def accepted_lens(
    draft: Decoder,
    tokens: Tensor,  # [rows, prompt_len + outputs + num_drafts]: prompts and the target's greedy continuation
    *,
    prompt_len: int,
    num_drafts: int,
) -> Tensor:  # [rows, outputs] int64
    """At every output position, how many of the draft's greedy tokens from there are the target's own."""
    rows, total = tokens.shape
    cache = new_cache(draft, rows, total)
    if prompt_len > 1:
        next_tokens(draft, cache, tokens[:, : prompt_len - 1], context_len=0)
    columns = []
    for start in range(prompt_len, total - num_drafts + 1):
        fed = tokens[:, start - 1]
        alive = torch.ones(rows, dtype=torch.bool)
        accepted = torch.zeros(rows, dtype=torch.int64)
        for step in range(num_drafts):
            # The next position overwrites what these drafts left in the cache.
            fed = next_tokens(draft, cache, fed[:, None], context_len=start - 1 + step)
            alive &= fed == tokens[:, start + step]
            accepted += alive
        columns.append(accepted)
    return torch.stack(columns, dim=1)


def new_cache(model: Decoder, rows: int, max_len: int) -> KVCache:
    return KVCache(model.config, num_rows=rows, max_len=max_len, device=torch.device("cpu"), dtype=torch.float32)


def next_tokens(
    model: Decoder,
    cache: KVCache,
    tokens: Tensor,  # [rows, queries], which follow `context_len` tokens in every row
    *,
    context_len: int,
) -> Tensor:  # [rows]
    """The most likely token after each row."""
    rows, queries = tokens.shape
    batch = RaggedBatch([queries] * rows, [context_len] * rows, cache=cache)
    hidden = model(tokens.flatten(), batch.positions, PaddedAttention(batch, cache))
    return model.logits(hidden[batch.last_tokens]).argmax(dim=-1)
