"""A step's own machinery, to be timed: laying out its pass, choosing its budget, admitting its drafts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from specplan.costs import build_cost_tables
from specplan.device import AdaptiveVerifier, VerifyBatch
from specplan.engine.passes import VerifyPass
from specplan.engine.static import StaticVerify
from specplan.measure.grid import MeasuredPoint, ProfilePlan
from specplan.models import Decoder, KVCache

__all__ = ["MachineryFactory"]


class MachineryFactory:
    """Makes what a serving engine does around the passes of a step, ready to be run again and again.

    Each runs from what the host knows to a result on the device, or back on the host where that waits for it. Budgets
    are chosen from confidences of `lag` 1, drawn at random, under costs that rise: what they are changes nothing.
    """

    def __init__(self, plan: ProfilePlan, decoder: Decoder, cache: KVCache, *, seed: int) -> None:
        self.plan, self.decoder, self.cache = plan, decoder, cache
        self.device = cache.keys.device
        self.rng = np.random.default_rng(seed)
        self.verifier: AdaptiveVerifier | None = None

    def run_of(self, point: MeasuredPoint) -> Callable[[], Tensor]:  # of which each returns a row for each request
        if point.model in ("metadata", "bare-metadata"):
            return self.layout(point)
        if self.verifier is None:
            self.verifier = self.new_verifier()
        verifier, batch = self.verifier, self.batch(point.shape.num_reqs)

        def choose() -> Tensor:
            return torch.full((batch.num_reqs,), verifier.choose_budget(batch), device="cpu")

        budget = batch.num_reqs * self.plan.num_speculative_tokens // 2  # half of them, which takes the longest to sort

        def admit() -> Tensor:
            return verifier.reallocate(batch, budget).admitted

        return choose if point.model == "budget" else admit

    def layout(self, point: MeasuredPoint) -> Callable[[], Tensor]:
        """As the engine does it: into the buffers of a captured step where graphs exist, and anew elsewhere."""
        shape = point.shape
        query_lens = [shape.num_tokens // shape.num_reqs] * shape.num_reqs
        context_lens = [shape.context_len] * shape.num_reqs
        token_ids = self.rng.integers(self.decoder.config.vocab_size, size=shape.num_tokens).tolist()
        if self.device.type == "cuda":
            static = StaticVerify(
                self.decoder,
                self.cache,
                num_reqs=shape.num_reqs,
                padded_tokens=shape.num_tokens,
                most_drafts=self.plan.num_speculative_tokens,
            )
            rows = [token_ids[start : start + query_lens[0]] for start in range(0, shape.num_tokens, query_lens[0])]

            def load() -> Tensor:
                static.load(rows, context_lens=context_lens, slots=range(shape.num_reqs))
                return static.num_drafts

            return load

        def lay_out() -> Tensor:
            verify = VerifyPass(self.decoder, self.cache, query_lens=query_lens, context_lens=context_lens)
            torch.tensor(token_ids)
            return verify.num_drafts

        return lay_out

    def new_verifier(self) -> AdaptiveVerifier:
        """Of every request that there may be, each with confidences of two steps."""
        plan = self.plan
        most_tokens = plan.max_num_seqs * (1 + plan.num_speculative_tokens)
        tables = build_cost_tables(
            [(plan.max_num_seqs, 1.0)],
            [(1, 1.0), (most_tokens, 2.0)],
            max_num_reqs=plan.max_num_seqs,
            max_num_tokens=most_tokens,
        )
        verifier = AdaptiveVerifier(
            max_num_seqs=plan.max_num_seqs,
            num_speculative_tokens=plan.num_speculative_tokens,
            device=self.device,
            tables=tables,
        )
        for slot in range(plan.max_num_seqs):
            verifier.add_request(slot)
        for _ in range(2):
            shape = (plan.max_num_seqs, plan.num_speculative_tokens)
            confidence = torch.from_numpy(self.rng.random(shape, dtype=np.float32)).to(self.device)
            verifier.record_confidences(self.batch(plan.max_num_seqs), confidence)
        return verifier

    def batch(self, num_reqs: int) -> VerifyBatch:
        """Each request is offered K drafts."""
        return VerifyBatch(
            slots=np.arange(num_reqs),
            scheduled=np.full(num_reqs, self.plan.num_speculative_tokens),
            num_non_draft_tokens=np.ones(num_reqs, dtype=np.int64),
            is_prefill=np.zeros(num_reqs, dtype=np.bool_),
            is_sampling=np.ones(num_reqs, dtype=np.bool_),
            context_lens=np.full(num_reqs, self.plan.contexts[0]),
        )
