"""What a validation serves and times: its plan, the points that price it, and what a trace must be to be imposed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from specplan.engine.passes import FEED_LEN
from specplan.errors import ConfigError
from specplan.files import Trace
from specplan.measure.grid import MeasuredPoint, ProfilePlan
from specplan.models import LoadedModel
from specplan.planning import Policy
from specplan.shapes import CONTEXT_SPREAD
from specplan.simulation.verdicts import FEWEST_ROUNDS

__all__ = [
    "ValidationPlan",
    "context_lens",
    "points_to_measure",
    "profile_plan",
    "random_prompts",
    "require_imposable",
]


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


def points_to_measure(plan: ValidationPlan, plans: Sequence[ProfilePlan]) -> list[MeasuredPoint]:
    """What prices the cases: the modes that run, at the requests that are served."""
    points = [point for each in plans for point in each.points() if is_priced(point, each.capture_sizes[-1])]
    return list(dict.fromkeys(points))


def is_priced(point: MeasuredPoint, capture_limit: int) -> bool:
    if point.model == "verify":
        return (point.mode == "graph") == (point.shape.num_tokens <= capture_limit)
    return point.model == "draft-prefill" or point.mode == "graph"


def profile_plan(plan: ValidationPlan, context_len: int) -> ProfilePlan:
    return ProfilePlan.default(
        max_num_seqs=max(plan.concurrencies),
        num_speculative_tokens=plan.num_speculative_tokens,
        max_num_batched_tokens=plan.max_num_batched_tokens,
        context_len=context_len,
        # Requests of a batch differ in length, and a budget makes their queries differ as well.
        num_reqs=tuple(sorted({*plan.concurrencies})),
        lengths=("spread", "ragged") if any(policy.has_budget for policy in plan.policies) else ("spread",),
    )


def context_lens(trace: Trace, target: LoadedModel, draft: LoadedModel, plan: ValidationPlan) -> list[int]:
    """A short and a long context of the trace, where the models hold them: its tenth and ninetieth percentile."""
    in_cache = trace.prompt_len[trace.request] + trace.position  # [rows]
    positions = min(model.decoder.config.max_position_embeddings for model in (target, draft))
    longest_query = profile_plan(plan, FEED_LEN).longest_query
    most = int((positions - longest_query) / (1 + CONTEXT_SPREAD))
    if most < FEED_LEN:
        raise ConfigError(
            f"steps of up to {longest_query} tokens per request leave no context of the models' {positions} positions",
            "lower --max-num-batched-tokens, or raise --concurrency",
        )
    lens = {max(FEED_LEN, min(most, int(length))) for length in np.percentile(in_cache, (10, 90))}
    return sorted(lens)


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
