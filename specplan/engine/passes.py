"""The two halves of a step: the target's verify pass, and the drafter's passes for the step after it.

Both are laid out when they are made and run later, any number of times, on tensors that stay where they are: that is
what a CUDA graph can capture. Nothing in `run` waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from specplan.device import accepted_counts, accepted_prefix_mask
from specplan.device.acceptance import PADDING_TOKEN
from specplan.models import Decoder, KVCache, RaggedBatch, cached_attention
from specplan.shapes import Layout

__all__ = ["FEED_LEN", "DraftPasses", "PromptPass", "VerifyPass", "prefill"]

# An autoregressive drafter is fed the last two committed tokens of every request: the newest one always, and the one
# before it because, if all drafts were accepted, the last of them never went through the drafter. Feeding a token again
# rewrites the same key and value, so one shape serves every outcome.
FEED_LEN = 2


class VerifyPass:
    """One pass of the target over several queries of each request: its last committed token followed by its drafts.

    A request in prefill brings a chunk of its prompt instead, and no drafts: of its tokens the last one alone is
    judged, so that the head runs over nothing that is not sampled from.
    """

    def __init__(
        self,
        decoder: Decoder,
        cache: KVCache,
        *,
        query_lens: Sequence[int],  # [num_reqs]
        context_lens: Sequence[int],  # [num_reqs], tokens in the cache before this pass
        num_drafts: Sequence[int] | None = None,  # [num_reqs]; where not given, all but each request's first token
        rows: Sequence[int] | None = None,  # [num_reqs], of the cache, ascending; 0, 1, 2, ... where not given
        padded_tokens: int | None = None,
        layout: Layout = "multi-query",
    ) -> None:
        if num_drafts is None:
            num_drafts = [length - 1 for length in query_lens]
        self.decoder = decoder
        self.batch = RaggedBatch(query_lens, context_lens, cache=cache, rows=rows, padded_tokens=padded_tokens)
        self.attention = cached_attention(self.batch, cache, layout)
        device = self.batch.positions.device
        self.num_drafts = torch.tensor(num_drafts, device=device)  # [num_reqs]
        self.most_drafts = max(num_drafts)
        # The place of each token among its request's judged ones; negative for prompt tokens that are not.
        owner = self.batch.owner
        place = self.batch.offsets - (self.batch.query_lens_tensor - 1 - self.num_drafts)[owner]  # [num_tokens]
        judged = (place >= 0).nonzero().squeeze(1)  # [judged tokens]
        self.sample_row, self.sample_column = owner[judged], place[judged]
        self.draft_index = (place > 0).nonzero().squeeze(1)  # [drafts in all], where they stand among the tokens
        # Where all are judged, so is the padding: a captured graph has no other way.
        self.judged = None if judged.shape[0] == self.batch.num_tokens else judged

    @property
    def executed_num_tokens(self) -> int:
        """Tokens that go through the decoder, padding included."""
        return self.batch.positions.shape[0]

    def run(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:  # [padded_tokens] -> [num_reqs], [num_reqs, 1 + most]
        """Accepted drafts of each request, and the target's own greedy token after each of its judged tokens."""
        return self.judge(self.forward(token_ids), token_ids)

    def forward(self, token_ids: Tensor) -> Tensor:  # [padded_tokens] -> [padded_tokens, hidden_size]
        """The decoder without its head."""
        hidden: Tensor = self.decoder(token_ids, self.batch.positions, self.attention)
        return hidden

    def judge(self, hidden: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """The rest of `run`: the head, the greedy tokens, the mask and its counts."""
        greedy = self.decoder.logits(hidden if self.judged is None else hidden[self.judged]).argmax(-1)
        shape = (self.num_drafts.shape[0], 1 + self.most_drafts)
        sampled = torch.full(shape, PADDING_TOKEN, dtype=greedy.dtype, device=greedy.device)
        sampled[self.sample_row, self.sample_column] = greedy[: self.sample_row.shape[0]]
        mask = accepted_prefix_mask(token_ids[self.draft_index], sampled, self.num_drafts)
        return accepted_counts(mask, self.num_drafts), sampled


class DraftPasses:
    """The drafter's work of one step: `k` greedy drafts for each request, one pass each.

    The first pass takes the last `feed_len` committed tokens of every request. With k = 0 it is all there is: the
    upkeep of the drafter's cache, without its head.
    """

    def __init__(
        self,
        decoder: Decoder,
        cache: KVCache,
        *,
        committed_lens: Sequence[int],  # [num_reqs], tokens of each request that stand, prompt included
        k: int,
        rows: Sequence[int] | None = None,  # [num_reqs], of the cache, ascending; 0, 1, 2, ... where not given
        feed_len: int = FEED_LEN,
    ) -> None:
        self.decoder = decoder
        self.k = k
        self.feed_lens = [min(feed_len, length) for length in committed_lens]
        contexts = [length - feed for length, feed in zip(committed_lens, self.feed_lens, strict=True)]
        first = RaggedBatch(self.feed_lens, contexts, cache=cache, rows=rows)
        ones = [1] * len(self.feed_lens)
        rest = [RaggedBatch(ones, [n + i for n in committed_lens], cache=cache, rows=rows) for i in range(k - 1)]
        self.passes = [(batch, cached_attention(batch, cache)) for batch in (first, *rest)]

    @property
    def executed_num_tokens(self) -> int:
        """Tokens that go through the decoder, over all passes."""
        return sum(batch.positions.shape[0] for batch, _ in self.passes)

    def run(self, feed_ids: Tensor) -> tuple[Tensor, Tensor]:  # [sum(feed_lens)] -> [num_reqs, k] int64, float32
        """The drafts, and the drafter's probability of each: the largest of its softmax, in float32."""
        batch, attention = self.passes[0]
        hidden = self.decoder(feed_ids, batch.positions, attention)[batch.last_tokens]
        drafts = feed_ids.new_zeros(hidden.shape[0], self.k)
        confidence = torch.zeros(drafts.shape, dtype=torch.float32, device=feed_ids.device)
        for index in range(self.k):
            if index:
                batch, attention = self.passes[index]
                hidden = self.decoder(drafts[:, index - 1], batch.positions, attention)
            probability = F.softmax(self.decoder.logits(hidden).float(), dim=-1)
            confidence[:, index], drafts[:, index] = probability.max(dim=-1)
        return drafts, confidence


class PromptPass:
    """A pass over chunks of prompts, without the head: what fills a cache."""

    def __init__(
        self,
        decoder: Decoder,
        cache: KVCache,
        *,
        query_lens: Sequence[int],  # [num_reqs], tokens of each chunk
        context_lens: Sequence[int],  # [num_reqs], tokens in the cache before it
        rows: Sequence[int] | None = None,  # [num_reqs], of the cache, ascending; 0, 1, 2, ... where not given
    ) -> None:
        self.decoder = decoder
        self.batch = RaggedBatch(query_lens, context_lens, cache=cache, rows=rows)
        self.attention = cached_attention(self.batch, cache)

    def run(self, token_ids: Tensor) -> Tensor:  # [num_tokens] -> [num_reqs, hidden_size]
        """The hidden state of each chunk's last token."""
        hidden: Tensor = self.decoder(token_ids, self.batch.positions, self.attention)
        return hidden[self.batch.last_tokens]


def prefill(
    decoder: Decoder,
    cache: KVCache,
    prompts: Sequence[Sequence[int]],  # token ids of request r, which goes to row r of the cache
    *,
    chunk_tokens: int,
) -> Tensor:  # [num_reqs], the greedy first output token
    """Runs whole prompts into an empty cache, as many requests at a time as fit in `chunk_tokens`, at least one."""
    bounds = [0]
    total = 0
    for row, prompt in enumerate(prompts):
        if row > bounds[-1] and total + len(prompt) > chunk_tokens:
            bounds.append(row)
            total = 0
        total += len(prompt)
    first_tokens = []
    for start, end in pairwise([*bounds, len(prompts)]):
        chunk = prompts[start:end]
        filling = PromptPass(
            decoder, cache, query_lens=[len(p) for p in chunk], context_lens=[0] * len(chunk), rows=range(start, end)
        )
        ids = torch.tensor([token for p in chunk for token in p], device=cache.keys.device)
        first_tokens.append(decoder.logits(filling.run(ids)).argmax(-1))
    return torch.cat(first_tokens)
