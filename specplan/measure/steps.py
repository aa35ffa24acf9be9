"""Steps made ready to be timed: a verify or a draft step of one shape, replayed from a graph or run eagerly.

A step's batch (positions, cache indices, lengths, masks) is laid out before anything is timed, in buffers that stay
where they are: laying it out is the engine's work on the host, not the step's on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from specplan.device.graphs import Grapher
from specplan.engine.passes import DraftPasses, PromptPass, VerifyPass
from specplan.errors import ConfigError, MeasurementError
from specplan.measure.grid import MeasuredPoint, ProfilePlan
from specplan.measure.machinery import MachineryFactory
from specplan.models import Decoder, KVCache
from specplan.shapes import StepShape, even_query_lens, padded_size, ragged_query_lens

__all__ = ["ReadyStep", "StepFactory", "require_room"]

WARM_UP_RUNS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyStep:
    """A step of one point. `run` returns what serving copies to the host.

    The executed sizes are read off the tensors that the pass runs over, padding included. `before` runs untimed ahead
    of each repetition: in serving a drafter's pass follows the target's, which leaves little of the drafter in a
    processor's caches.
    """

    run: Callable[[], Tensor]
    executed_num_reqs: int
    executed_num_tokens: int
    before: Callable[[], object] = lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """What one request brings to a verify pass."""

    query_len: int
    context_len: int
    num_drafts: int  # the last of its queries


class StepFactory:
    """Holds the pair and its caches, filled with random keys and values, and makes steps of any shape on them.

    Tokens are random too: zeros would be cheaper to multiply on some devices, and would always be accepted.
    """

    def __init__(self, target: Decoder, draft: Decoder, plan: ProfilePlan, *, seed: int = 0) -> None:
        require_room(plan, target, draft)
        self.target, self.draft, self.plan = target, draft, plan
        self.device = target.model.embed_tokens.weight.device
        self.generator = torch.Generator(device=self.device).manual_seed(seed)
        self.target_cache, self.draft_cache = (self.filled_cache(decoder) for decoder in (target, draft))
        self.grapher = Grapher(self.device) if self.device.type == "cuda" else None
        self.preceding: dict[MeasuredPoint, ReadyStep] = {}  # on a CPU, what others follow
        self.machinery = MachineryFactory(plan, target, self.target_cache, seed=seed)

    def make(self, point: MeasuredPoint) -> ReadyStep:
        """A step that has run before and, in graph mode on CUDA, has been captured and replayed.

        Raises MeasurementError if it cannot be captured, does not fit in memory, or ran another shape than was asked.
        """
        try:
            step = self.laid_out(point)
            for _ in range(WARM_UP_RUNS):
                result = step.run()
            run = step.run
            if point.mode == "graph" and self.grapher is not None:
                run = self.grapher.capture(step.run)
        except torch.OutOfMemoryError as error:
            raise MeasurementError(
                f"out of device memory: {str(error).splitlines()[0]}", "lower --max-num-seqs or --context-len"
            ) from error
        padded = point.shape.num_tokens
        if point.mode == "graph" and point.model == "verify":
            padded = padded_size(padded, self.plan.capture_sizes)
        executed = (step.executed_num_reqs, step.executed_num_tokens, result.shape[0])
        if executed != (point.shape.num_reqs, padded, point.shape.num_reqs):
            raise MeasurementError(
                f"asked for {point.shape.num_reqs} requests and {padded} tokens, and {executed[0]} and {executed[1]} "
                f"ran, with results for {executed[2]}",
                "report this as a bug",
            )
        return ReadyStep(
            run=run,
            executed_num_reqs=executed[0],
            executed_num_tokens=executed[1],
            before=self.what_precedes(point),
        )

    def laid_out(self, point: MeasuredPoint) -> ReadyStep:
        if point.model == "verify":
            return self.verify_step(point)
        if point.model == "head":
            return self.head_step(point)
        if point.model == "draft-prefill":
            return self.draft_prefill_step(point)
        if point.k is not None:
            return self.draft_step(point, point.k)
        return ReadyStep(
            run=self.machinery.run_of(point),
            executed_num_reqs=point.shape.num_reqs,
            executed_num_tokens=point.shape.num_tokens,
        )

    def what_precedes(self, point: MeasuredPoint) -> Callable[[], object]:
        """What a CPU has run just before: the pass that a step follows, and the host's work of laying the batch out.

        Drafts follow the verify pass ahead of them, a verify pass the drafts that it verifies; without drafts there is
        no drafter. Both leave less of a small model in the caches than a loop of its own would find: a tenth of a
        step's time and more. A GPU's cache holds nothing of a model that would be worth it.
        """
        if self.device.type == "cuda" or point.is_machinery:
            return lambda: None
        before = self.followed(point)
        run = None if before is None else self.laid_out_once(before).run

        def precede() -> None:
            if run is not None:
                run()
            self.laid_out(point)

        return precede

    def followed(self, point: MeasuredPoint) -> MeasuredPoint | None:
        shape = point.shape
        if point.model == "draft-prefill":
            return self.plan.mixed_point(0, 0, shape.num_tokens, 0)
        if point.model == "head":
            return None  # laying it out has run the pass that it ends
        if point.k is not None:
            num_tokens = shape.num_reqs * (1 + point.k)
            return self.plan.verify_point("eager", shape.num_reqs, num_tokens, shape.context_len)
        if shape.num_drafts == 0:
            return None
        most = self.plan.num_speculative_tokens
        drafts = most if shape.lengths == "ragged" else min(most, -(-shape.num_drafts // shape.num_verifying))
        return self.plan.draft_point("eager", shape.num_verifying, drafts, context_len=shape.context_len)

    def laid_out_once(self, point: MeasuredPoint) -> ReadyStep:
        if point not in self.preceding:
            self.preceding[point] = self.laid_out(point)
        return self.preceding[point]

    def verify_step(self, point: MeasuredPoint) -> ReadyStep:
        shape = point.shape
        rows = self.rows_of(shape)
        verify = VerifyPass(
            self.target,
            self.target_cache,
            query_lens=[row.query_len for row in rows],
            context_lens=[row.context_len for row in rows],
            num_drafts=[row.num_drafts for row in rows] if shape.is_mixed else None,
            padded_tokens=padded_size(shape.num_tokens, self.plan.capture_sizes) if point.mode == "graph" else None,
            layout=shape.layout,
        )
        token_ids = self.random_tokens(self.target, verify.executed_num_tokens)

        return ReadyStep(
            run=lambda: in_one(verify.run(token_ids)),
            executed_num_reqs=verify.num_drafts.shape[0],
            executed_num_tokens=verify.executed_num_tokens,
        )

    def head_step(self, point: MeasuredPoint) -> ReadyStep:
        shape = point.shape
        verify = VerifyPass(
            self.target,
            self.target_cache,
            query_lens=even_query_lens(shape.num_reqs, shape.num_tokens),
            context_lens=self.context_lens(shape),
        )
        token_ids = self.random_tokens(self.target, shape.num_tokens)
        hidden = verify.forward(token_ids)
        return ReadyStep(
            run=lambda: in_one(verify.judge(hidden, token_ids)),
            executed_num_reqs=verify.num_drafts.shape[0],
            executed_num_tokens=hidden.shape[0],
        )

    def rows_of(self, shape: StepShape) -> list[StepRow]:
        """Prompts stand evenly among the requests that verify: a new request takes the place of any that has ended."""
        verifying = self.verifying_rows(shape)
        prompts = self.plan.prompts(shape.num_prompt_tokens)
        rows = []
        for index, length in enumerate(prompts):
            start, stop = (len(verifying) * place // len(prompts) for place in (index, index + 1))
            rows += [*verifying[start:stop], StepRow(query_len=length, context_len=0, num_drafts=0)]
        return rows or verifying

    def verifying_rows(self, shape: StepShape) -> list[StepRow]:
        num_reqs, num_tokens = shape.num_verifying, shape.num_verifying + shape.num_drafts
        if num_reqs == 0:
            return []
        if shape.lengths == "ragged":
            query_lens = ragged_query_lens(num_reqs, num_tokens, self.plan.num_speculative_tokens)
        else:
            query_lens = even_query_lens(num_reqs, num_tokens)
        return [
            StepRow(query_len=query_len, context_len=context_len, num_drafts=query_len - 1)
            for query_len, context_len in zip(query_lens, self.context_lens(shape), strict=True)
        ]

    def context_lens(self, shape: StepShape) -> tuple[int, ...]:
        """Of the requests that verify or draft."""
        return self.plan.context_lens(shape.num_verifying, shape.context_len, shape.lengths)

    def draft_step(self, point: MeasuredPoint, k: int) -> ReadyStep:
        shape = point.shape
        feed_len = point.feed_len
        assert feed_len is not None
        committed = [max(feed_len, length) for length in self.context_lens(shape)]
        passes = DraftPasses(self.draft, self.draft_cache, committed_lens=committed, k=k, feed_len=feed_len)
        feed_ids = self.random_tokens(self.draft, sum(passes.feed_lens))
        return ReadyStep(
            run=lambda: passes.run(feed_ids)[1],  # the drafts stay on the device; their confidences set the budget
            executed_num_reqs=len(passes.feed_lens),
            executed_num_tokens=passes.executed_num_tokens,
        )

    def draft_prefill_step(self, point: MeasuredPoint) -> ReadyStep:
        lens = self.plan.prompts(point.shape.num_tokens)
        prompt = PromptPass(self.draft, self.draft_cache, query_lens=lens, context_lens=[0] * len(lens))
        token_ids = self.random_tokens(self.draft, point.shape.num_tokens)
        return ReadyStep(
            run=lambda: prompt.run(token_ids)[:, 0],  # nothing of it is needed on the host
            executed_num_reqs=len(lens),
            executed_num_tokens=prompt.batch.positions.shape[0],
        )

    def filled_cache(self, decoder: Decoder) -> KVCache:
        weight = decoder.model.embed_tokens.weight
        cache = KVCache(
            decoder.config,
            num_rows=self.plan.num_cache_rows,
            max_len=self.plan.longest_sequence,
            device=weight.device,
            dtype=weight.dtype,
        )
        cache.keys.normal_(generator=self.generator)
        cache.values.normal_(generator=self.generator)
        return cache

    def random_tokens(self, decoder: Decoder, count: int) -> Tensor:
        return torch.randint(decoder.config.vocab_size, (count,), generator=self.generator, device=self.device)


def in_one(judged: tuple[Tensor, Tensor]) -> Tensor:  # [num_reqs, 1 + longest query]
    """Accepted counts, then the target's own tokens: what the host needs of a verify pass."""
    accepted, sampled = judged
    return torch.cat((accepted.unsqueeze(1), sampled), dim=1)


def require_room(plan: ProfilePlan, target: Decoder, draft: Decoder) -> None:
    """Raises ConfigError if the plan has longer sequences than the models have positions."""
    limit = min(target.config.max_position_embeddings, draft.config.max_position_embeddings)
    if plan.longest_sequence > limit:
        raise ConfigError(
            f"a context of {plan.contexts[-1]}, steps of up to {plan.longest_query} tokens per request and prompts "
            f"make sequences of {plan.longest_sequence}, past the models' {limit} positions",
            "shorten the context, lower --max-num-batched-tokens, or raise the requests of a step: fewer tokens are "
            "then a request's",
        )
