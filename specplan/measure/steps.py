"""Steps made ready to be timed: a verify or a draft step of one shape, replayed from a graph or run eagerly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from specplan.engine.passes import DraftPasses, VerifyPass
from specplan.errors import ConfigError, MeasurementError
from specplan.measure.grid import MeasuredPoint, ProfilePlan
from specplan.models import Decoder, KVCache
from specplan.shapes import even_query_lens, padded_size

__all__ = ["ReadyStep", "StepFactory"]

Pass = TypeVar("Pass", VerifyPass, DraftPasses)

WARM_UP_RUNS = 3
GRAPH_WARM_UP_REPLAYS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyStep:
    """A step of one point. `run` returns what serving copies to the host; the executed sizes include padding."""

    run: Callable[[], Tensor]
    executed_num_reqs: int
    executed_num_tokens: int


class StepFactory:
    """Holds the pair and its caches, filled with random keys and values, and makes steps of any shape on them.

    Tokens are random too: zeros would be cheaper to multiply on some devices, and would always be accepted.
    """

    def __init__(self, target: Decoder, draft: Decoder, plan: ProfilePlan, *, seed: int = 0) -> None:
        require_room(plan, target, draft)
        self.models = {"verify": target, "draft": draft}
        self.plan = plan
        weight = target.model.embed_tokens.weight
        self.device, dtype = weight.device, weight.dtype
        self.generator = torch.Generator(device=self.device).manual_seed(seed)
        self.caches = {}
        for name, decoder in self.models.items():
            cache = KVCache(
                decoder.config,
                num_rows=plan.max_num_seqs,
                max_len=plan.longest_sequence,
                device=self.device,
                dtype=dtype,
            )
            cache.keys.normal_(generator=self.generator)
            cache.values.normal_(generator=self.generator)
            self.caches[name] = cache
        # One memory pool for all graphs: they never run at once, so the largest, captured first, has room for the rest.
        self.graph_pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None

    def make(self, point: MeasuredPoint) -> ReadyStep:
        """A step that has run before and, in graph mode on CUDA, has been captured and replayed."""
        step = self.verify_step(point) if point.k is None else self.draft_step(point, point.k)
        for _ in range(WARM_UP_RUNS):
            step.run()
        if point.mode == "graph" and self.graph_pool is not None:
            return ReadyStep(
                run=capture(step.run, self.graph_pool),
                executed_num_reqs=step.executed_num_reqs,
                executed_num_tokens=step.executed_num_tokens,
            )
        return step

    def verify_step(self, point: MeasuredPoint) -> ReadyStep:
        decoder, cache, shape = self.models["verify"], self.caches["verify"], point.shape
        padded = shape.num_tokens
        if point.mode == "graph":
            padded = padded_size(shape.num_tokens, self.plan.capture_sizes)
        token_ids = self.random_tokens(decoder, padded)

        def lay_out() -> VerifyPass:
            return VerifyPass(
                decoder,
                cache,
                query_lens=even_query_lens(shape.num_reqs, shape.num_tokens),
                context_lens=[shape.context_len] * shape.num_reqs,
                padded_tokens=padded,
            )

        run = self.runner(point, lay_out, lambda verify: verify.run(token_ids)[0])
        return ReadyStep(run=run, executed_num_reqs=shape.num_reqs, executed_num_tokens=padded)

    def draft_step(self, point: MeasuredPoint, k: int) -> ReadyStep:
        decoder, cache, shape = self.models["draft"], self.caches["draft"], point.shape
        committed = [shape.context_len] * shape.num_reqs

        def lay_out() -> DraftPasses:
            return DraftPasses(decoder, cache, committed_lens=committed, k=k)

        feed_ids = self.random_tokens(decoder, sum(lay_out().feed_lens))
        run = self.runner(point, lay_out, lambda draft: draft.run(feed_ids)[1])
        return ReadyStep(run=run, executed_num_reqs=shape.num_reqs, executed_num_tokens=shape.num_tokens)

    def runner(
        self, point: MeasuredPoint, lay_out: Callable[[], Pass], run: Callable[[Pass], Tensor]
    ) -> Callable[[], Tensor]:
        """A captured step is laid out once; any other lays its batch out anew, as a serving loop does at every step."""
        if point.mode == "graph" and self.device.type == "cuda":
            laid_out = lay_out()
            return lambda: run(laid_out)
        return lambda: run(lay_out())

    def random_tokens(self, decoder: Decoder, count: int) -> Tensor:
        return torch.randint(decoder.config.vocab_size, (count,), generator=self.generator, device=self.device)


def require_room(plan: ProfilePlan, target: Decoder, draft: Decoder) -> None:
    limit = min(target.config.max_position_embeddings, draft.config.max_position_embeddings)
    if plan.longest_sequence > limit:
        raise ConfigError(
            f"a context of {plan.context_len} and a step of up to {plan.longest_query} tokens per request pass "
            f"the models' {limit} positions",
            "lower --context-len, or --max-num-batched-tokens",
        )


def capture(run: Callable[[], Tensor], pool: Any) -> Callable[[], Tensor]:
    """A CUDA graph of `run`, replayed a few times: the first replay uploads it and belongs in no sample.

    `run` must have been warmed up. `torch.cuda.graph` ends the capture whatever happens inside it, so a failure is this
    step's alone, and its own error is what is reported.
    """
    side_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side_stream):
        run()
    torch.cuda.current_stream().wait_stream(side_stream)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, pool=pool):
            result = run()
    except RuntimeError as error:
        first_line = str(error).splitlines()[0]
        raise MeasurementError(f"CUDA graph capture failed: {first_line}", "measure with --mode eager") from error

    def replay() -> Tensor:
        graph.replay()
        return result

    for _ in range(GRAPH_WARM_UP_REPLAYS):
        replay()
    torch.cuda.synchronize()
    return replay
