"""Records what a draft/target pair would do at *every* position of its greedy output: a dense trace.

The target decodes alone, `k` tokens past each request's last output, so that every row has its full outcome. The
drafter then walks the same output one position at a time: at each it drafts `k` tokens, which are compared with what
the target said, and is rolled back. A policy replayed on the trace finds whatever it would have drafted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from specplan.engine.passes import DraftPasses, prefill
from specplan.errors import ConfigError
from specplan.models import Decoder, KVCache, RaggedBatch, cached_attention

__all__ = ["RecordedRequest", "decode_alone", "record_pair"]

# Requests that are decoded side by side; past this a batch gains little and its cache costs memory.
MAX_BATCH = 64
PREFILL_CHUNK = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """One request's rows, from position 0 (nothing emitted yet) to its last output token."""

    prompt_len: int
    confidence: NDArray[np.float32]  # [output_len, k]
    accepted_len: NDArray[np.int32]  # [output_len], of the k drafts


@torch.inference_mode()
def record_pair(
    target: Decoder,
    draft: Decoder,
    prompts: Sequence[Sequence[int]],  # token ids, at least one per prompt
    *,
    k: int,
    max_output_tokens: int,
    eos_token_ids: frozenset[int],
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[RecordedRequest]:
    """Greedy decoding and drafting of every prompt; an output ends with its first end-of-text token, or when full.

    `on_progress` is told passes done and passes in all. Raises ConfigError if a prompt and its output do not fit a
    model's positions.
    """
    require_room(target, draft, prompts, k + max_output_tokens)
    batches = [prompts[start : start + MAX_BATCH] for start in range(0, len(prompts), MAX_BATCH)]
    total = len(batches) * (2 * max_output_tokens + k)
    requests: list[RecordedRequest] = []
    for index, batch in enumerate(batches):
        before = index * (2 * max_output_tokens + k)
        outputs = decode(target, batch, max_output_tokens + k, on_pass=partial(tell, on_progress, before, total))
        before += max_output_tokens + k
        drafts, confidence = draft_everywhere(
            draft,
            batch,
            outputs,
            k=k,
            num_positions=max_output_tokens,
            on_pass=partial(tell, on_progress, before, total),
        )
        accepted = accepted_lens(drafts, outputs)
        for row, prompt in enumerate(batch):
            length = output_len(outputs[row, :max_output_tokens], eos_token_ids)
            requests.append(
                RecordedRequest(
                    prompt_len=len(prompt),
                    confidence=confidence[row, :length],
                    accepted_len=accepted[row, :length],
                )
            )
    on_progress(total, total)
    return requests


@torch.inference_mode()
def decode_alone(target: Decoder, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[list[int]]:
    """What the target says without a drafter: `num_tokens` greedy tokens after each prompt."""
    outputs: list[list[int]] = []
    for start in range(0, len(prompts), MAX_BATCH):
        batch = prompts[start : start + MAX_BATCH]
        outputs += decode(target, batch, num_tokens, on_pass=lambda done: None).tolist()
    return outputs


def tell(on_progress: Callable[[int, int], None], before: int, total: int, done: int) -> None:
    on_progress(before + done, total)


def decode(
    target: Decoder, prompts: Sequence[Sequence[int]], num_tokens: int, *, on_pass: Callable[[int], None]
) -> NDArray[np.int64]:  # [num_reqs, num_tokens]
    """The target's greedy continuation, end-of-text tokens included and passed over."""
    cache = new_cache(target, prompts, num_tokens)
    newest = prefill(target, cache, prompts, chunk_tokens=PREFILL_CHUNK)
    tokens = [newest]
    ones = [1] * len(prompts)
    for done in range(1, num_tokens):
        batch = RaggedBatch(ones, [len(prompt) + done - 1 for prompt in prompts], cache=cache)
        hidden = target(newest, batch.positions, cached_attention(batch, cache))
        newest = target.logits(hidden).argmax(-1)
        tokens.append(newest)
        on_pass(done)
    return torch.stack(tokens, dim=1).cpu().numpy()


def draft_everywhere(
    draft: Decoder,
    prompts: Sequence[Sequence[int]],
    outputs: NDArray[np.int64],  # [num_reqs, >= num_positions]
    *,
    k: int,
    num_positions: int,
    on_pass: Callable[[int], None],
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:  # both [num_reqs, num_positions, k]
    """What the drafter proposes, and how sure it is, after every prefix of the output."""
    cache = new_cache(draft, prompts, num_positions + k)
    prefill(draft, cache, prompts, chunk_tokens=PREFILL_CHUNK)
    texts = [[*prompt, *output] for prompt, output in zip(prompts, outputs.tolist(), strict=True)]
    drafts, confidence = [], []
    for position in range(num_positions):
        committed = [len(prompt) + position for prompt in prompts]
        passes = DraftPasses(draft, cache, committed_lens=committed, k=k)
        ends = zip(texts, committed, passes.feed_lens, strict=True)
        feed = [token for text, end, length in ends for token in text[end - length : end]]
        proposed = passes.run(torch.tensor(feed, device=cache.keys.device))
        drafts.append(proposed[0].cpu().numpy())
        confidence.append(proposed[1].cpu().numpy())
        on_pass(position + 1)
    return np.stack(drafts, axis=1), np.stack(confidence, axis=1)


def accepted_lens(
    drafts: NDArray[np.int64],  # [num_reqs, num_positions, k]
    outputs: NDArray[np.int64],  # [num_reqs, num_positions + k]
) -> NDArray[np.int32]:  # [num_reqs, num_positions]
    """Leading drafts at each position that are what the target went on to say."""
    windows = np.lib.stride_tricks.sliding_window_view(outputs, drafts.shape[2], axis=1)[:, : drafts.shape[1]]
    accepted: NDArray[np.int32] = np.cumprod(drafts == windows, axis=2).sum(axis=2).astype(np.int32)
    return accepted


def output_len(tokens: NDArray[np.int64], eos_token_ids: frozenset[int]) -> int:
    """Tokens up to and including the first end-of-text token."""
    ends = np.flatnonzero(np.isin(tokens, list(eos_token_ids)))
    return int(ends[0]) + 1 if ends.size else len(tokens)


def new_cache(decoder: Decoder, prompts: Sequence[Sequence[int]], num_tokens: int) -> KVCache:
    weight = decoder.model.embed_tokens.weight
    longest = max(len(prompt) for prompt in prompts) + num_tokens
    return KVCache(decoder.config, num_rows=len(prompts), max_len=longest, device=weight.device, dtype=weight.dtype)


def require_room(target: Decoder, draft: Decoder, prompts: Sequence[Sequence[int]], num_tokens: int) -> None:
    limit = min(target.config.max_position_embeddings, draft.config.max_position_embeddings)
    for index, prompt in enumerate(prompts):
        if not prompt:
            raise ConfigError(f"prompt {index} has no tokens", "remove empty prompts from the file")
        if len(prompt) + num_tokens > limit:
            raise ConfigError(
                f"prompt {index} has {len(prompt)} tokens; with {num_tokens} more for its output and drafts it passes "
                f"the models' {limit} positions",
                "shorten the prompt, or lower --max-output-tokens or -k",
            )
