"""The passes of a served pair: replayed where steps were made ready for it, laid out batch by batch where not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from specplan.engine.passes import DraftPasses, PromptPass, VerifyPass
from specplan.engine.static import StaticSteps
from specplan.models import Decoder, KVCache

__all__ = ["PairRunner", "Phase"]

# What a step spends its time on, in this order. `draft-prefill` and `draft` are a drafter's; all but the passes
# (`verify`, `head`, `draft-prefill`, `draft`) are the host's work. A replay has its head in `verify`.
Phase = Literal["schedule", "plan", "layout", "verify", "head", "commit", "draft-prefill", "draft", "record"]


class PairRunner:
    """A pair and its two caches, where each request keeps a row of its own, its slot.

    Tokens go in and results come out as lists, of requests in the order of their slots. With `static`, steps without
    prompt tokens and the drafter's are replayed, as far as they were made ready.
    """

    def __init__(
        self, target: Decoder, draft: Decoder, *, num_slots: int, max_len: int, on_phase: Callable[[Phase], None]
    ) -> None:
        self.target, self.draft = target, draft
        self.target_cache, self.draft_cache = (new_cache(decoder, num_slots, max_len) for decoder in (target, draft))
        self.device = self.target_cache.keys.device
        self.on_phase = on_phase
        self.static: StaticSteps | None = None

    def verify(
        self,
        tokens: Sequence[Sequence[int]],  # of each request
        *,
        context_lens: Sequence[int],
        slots: Sequence[int],
        num_drafts: Sequence[int] | None,  # None: no request is in prefill, and all but its first token are drafts
        padded_tokens: int,
    ) -> tuple[list[int], list[list[int]]]:
        """Accepted drafts of each request, and the target's own greedy token after each of its judged ones."""
        ready = self.static.verify(padded_tokens) if self.static is not None and num_drafts is None else None
        if ready is not None:
            ready.step.load(tokens, context_lens=context_lens, slots=slots)
            self.on_phase("verify")
            return ready.step.read(ready.replay())
        verify = VerifyPass(
            self.target,
            self.target_cache,
            query_lens=[len(row) for row in tokens],
            context_lens=context_lens,
            num_drafts=num_drafts,
            rows=slots,
            padded_tokens=padded_tokens,
        )
        token_ids = self.in_one_line(tokens, padded_tokens)
        self.on_phase("verify")
        hidden = verify.forward(token_ids)
        self.on_phase("head")
        accepted, sampled = verify.judge(hidden, token_ids)
        return accepted.tolist(), sampled.tolist()

    def propose(
        self,
        feeds: Sequence[Sequence[int]],  # the last `FEED_LEN` committed tokens of each request, or all it has
        *,
        committed_lens: Sequence[int],
        slots: Sequence[int],
        k: int,
    ) -> tuple[list[list[int]], list[list[float]]]:  # both [num_reqs, k]
        """The drafts, and the drafter's probability of each."""
        ready = self.static.draft(len(feeds), k) if self.static is not None else None
        if ready is not None:
            ready.step.load(feeds, committed_lens=committed_lens, slots=slots)
            self.on_phase("draft")
            return ready.step.read(ready.replay())
        passes = DraftPasses(self.draft, self.draft_cache, committed_lens=committed_lens, rows=slots, k=k)
        feed_ids = self.in_one_line(feeds)
        self.on_phase("draft")
        drafts, confidence = passes.run(feed_ids)
        return drafts.tolist(), confidence.tolist()

    def prefill_draft(
        self, tokens: Sequence[Sequence[int]], *, context_lens: Sequence[int], slots: Sequence[int]
    ) -> None:
        """The drafter's pass over prompt chunks, without its head."""
        query_lens = [len(chunk) for chunk in tokens]
        prompt = PromptPass(self.draft, self.draft_cache, query_lens=query_lens, context_lens=context_lens, rows=slots)
        token_ids = self.in_one_line(tokens)
        self.on_phase("draft-prefill")
        prompt.run(token_ids)

    def in_one_line(self, tokens: Sequence[Sequence[int]], padded_tokens: int = 0) -> Tensor:  # [padded_tokens]
        """On the device, one request after the other, and zeros after the last."""
        ids = [token for row in tokens for token in row]
        return torch.tensor(ids + [0] * (padded_tokens - len(ids))).to(self.device)


def new_cache(decoder: Decoder, num_rows: int, max_len: int) -> KVCache:
    weight = decoder.model.embed_tokens.weight
    return KVCache(decoder.config, num_rows=num_rows, max_len=max_len, device=weight.device, dtype=weight.dtype)
