"""What a validation serves and times: its plan, the points that price it, and what a trace must be to be imposed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from specplan.engine.passes import FEED_LEN
from specplan.errors import ConfigError
from specplan.files import Trace
from specplan.measure.grid import MeasuredPoint, ProfilePlan
from specplan.models import LoadedModel
from specplan.planning import Policy
from specplan.shapes import powers_of_four
from specplan.simulation.verdicts import FEWEST_ROUNDS

__all__ = [
    "ValidationPlan",
    "profile_plan",
    "random_prompts",
    "require_imposable",
    "timed_points",
]


NUM_QUANTILES = 33


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationPlan:
    """What is served, and how often."""

    policies: tuple[Policy, ...]
    concurrencies: tuple[int, ...]
    num_speculative_tokens: int
    lag: int = 1
    num_rounds: int = 5
    max_output_tokens: int = 64
    max_num_batched_tokens: int = 1024
    seed: int = 0

    def __post_init__(self) -> None:
        limits = {
            "the number of policies": (len(self.policies), 1),
            "the number of concurrencies": (len(self.concurrencies), 1),
            "the least concurrency": (min(self.concurrencies, default=1), 1),
            "num_speculative_tokens": (self.num_speculative_tokens, 1),
            "num_rounds": (self.num_rounds, FEWEST_ROUNDS),
            "max_output_tokens": (self.max_output_tokens, 2),
            "lag": (self.lag, 0),
        }
        for name, (value, least) in limits.items():
            if value < least:
                raise ConfigError(f"{name} is {value}, expected {least} or more", "see specplan validate --help")
        for policy in self.policies:
            if policy.num_drafts(self.num_speculative_tokens) > self.num_speculative_tokens:
                raise ConfigError(
                    f"policy {policy.name} drafts more than K = {self.num_speculative_tokens}",
                    "name a smaller k, or raise -k",
                )
        most_drafts = max(policy.num_drafts(self.num_speculative_tokens) for policy in self.policies)
        reserved = max(self.concurrencies) * (1 + most_drafts)
        if reserved > self.max_num_batched_tokens:
            raise ConfigError(
                f"{max(self.concurrencies)} requests with {most_drafts} drafts each reserve {reserved} tokens a step, "
                f"and a step holds {self.max_num_batched_tokens}",
                "lower --concurrency or -k, or raise --max-num-batched-tokens",
            )


def profile_plan(plan: ValidationPlan, trace: Trace, *, num_positions: int) -> ProfilePlan:
    """What is timed, at contexts of the trace: its tenth and ninetieth percentile, as far as the models hold them.

    Where few contexts are far longer than the rest, the mean is the long one. Tables have no axis of contexts for the
    drafter, which gets the mean. Contexts are as unlike as the trace's: attention that pads to the longest pays for it.
    """
    in_cache = trace.prompt_len[trace.request] + trace.position  # [rows]
    low, mean_len, high = np.percentile(in_cache, 10), in_cache.mean(), np.percentile(in_cache, 90)
    shortest = of_contexts(plan, trace, (FEED_LEN,), FEED_LEN)
    widest = (1 + max(max(shortest.context_lens(n, 1000, "spread")) for n in shortest.draft_num_reqs)) / 1000
    most = int((num_positions - shortest.longest_query) / widest)
    if most < FEED_LEN:
        raise ConfigError(
            f"steps of up to {shortest.longest_query} tokens per request leave no context of the models' "
            f"{num_positions} positions",
            "lower --max-num-batched-tokens, or raise --concurrency",
        )
    short, mean, long = (int(np.clip(length, FEED_LEN, most)) for length in (low, mean_len, max(mean_len, high)))
    return of_contexts(plan, trace, tuple(sorted({short, long})), mean)


def timed_points(plan: ProfilePlan) -> list[MeasuredPoint]:
    """What prices the cases: the modes that run, at the requests that are served; and the end of a pass, apart.

    What the host does is timed as it is served.
    """
    points = [point for point in plan.points() if plan.region_of(point) not in (None, "machinery")]
    largest = max(plan.counts) * (1 + plan.num_speculative_tokens)
    return [*points, *map(plan.head_point, powers_of_four(1, largest))]


def of_contexts(plan: ValidationPlan, trace: Trace, contexts: tuple[int, ...], draft_context_len: int) -> ProfilePlan:
    prompts = np.maximum(trace.prompt_len, 1).astype(np.int64)
    return ProfilePlan(
        max_num_seqs=max(plan.concurrencies),
        num_speculative_tokens=plan.num_speculative_tokens,
        max_num_batched_tokens=plan.max_num_batched_tokens,
        contexts=contexts,
        # Requests of a batch differ in length, and a budget makes their queries differ as well.
        num_reqs=tuple(sorted({*plan.concurrencies})),
        # While prompts wait for room a step holds fewer requests, and what a drafter costs is not linear in them.
        draft_num_reqs=tuple(sorted({max(1, count // by) for count in plan.concurrencies for by in (1, 2)})),
        draft_context_len=draft_context_len,
        lengths=("spread", "ragged") if any(policy.has_budget for policy in plan.policies) else ("spread",),
        context_spread=spread_of(trace.prompt_len[trace.request] + trace.position),
        # The mean over prompt tokens: attention grows with the square of a prompt, and long ones have the most of them.
        prompt_len=round(float((prompts**2).sum() / prompts.sum())),
    )


def spread_of(lengths: NDArray[np.integer]) -> tuple[float, ...]:
    """Quantiles of lengths over their mean; see `shapes.EVEN`."""
    return tuple(np.quantile(lengths / lengths.mean(), np.linspace(0, 1, NUM_QUANTILES)).tolist())


def require_imposable(target: LoadedModel, draft: LoadedModel, trace: Trace, plan: ValidationPlan) -> None:
    """Refuses a trace that this pair cannot be served under, before anything is measured."""
    configs = [model.decoder.config for model in (target, draft)]
    longest = int((trace.prompt_len + trace.output_len).max()) + plan.num_speculative_tokens + 1
    positions = min(config.max_position_embeddings for config in configs)
    if configs[0].vocab_size != configs[1].vocab_size:
        raise ConfigError(
            f"the models know {configs[0].vocab_size} and {configs[1].vocab_size} tokens",
            "use a pair of one vocabulary",
        )
    if longest > positions:
        raise ConfigError(
            f"the trace's longest request, with its drafts, has {longest} tokens, and the models {positions} positions",
            "impose a trace of shorter requests, or use models with more positions",
        )
    if trace.num_speculative_tokens < plan.num_speculative_tokens:
        raise ConfigError(
            f"the trace holds {trace.num_speculative_tokens} drafts a position, and K is {plan.num_speculative_tokens}",
            f"pass -k {trace.num_speculative_tokens} or less",
        )
    if trace.confidence is None and any(policy.needs_confidence for policy in plan.policies):
        raise ConfigError(
            "policy adaptive needs confidences, and the trace to impose holds outcomes only",
            "name other policies, or impose a trace with confidences",
        )


def random_prompts(target: LoadedModel, trace: Trace, seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    vocab_size = target.decoder.config.vocab_size
    return [torch.randint(vocab_size, (max(length, 1),), generator=generator).tolist() for length in trace.prompt_len]
