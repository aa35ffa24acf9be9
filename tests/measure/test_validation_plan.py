"""What a validation times and serves: sizes, contexts and prompts of the trace."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from builders import make_validation_plan as make_plan

from specplan.errors import ConfigError
from specplan.measure import ProfilePlan, ValidationPlan
from specplan.measure.steps import StepFactory
from specplan.measure.validation_plan import profile_plan, spread_of, timed_points
from specplan.models import load_model
from specplan.planning import parse_policy


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"policies": ()}, "the number of policies is 0"),
        ({"concurrencies": (0, 4)}, "the least concurrency is 0"),
        ({"num_rounds": 1}, "num_rounds is 1, expected 2 or more"),
        ({"lag": -1}, "lag is -1, expected 0 or more"),
        ({"concurrencies": (1, 16)}, "16 requests with 2 drafts each reserve 48 tokens a step, and a step holds 32"),
        ({"policies": (parse_policy("fixed:9"),)}, "fixed:9 drafts more than K = 2"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_plan(**changes)


def test_every_concurrency_is_measured() -> None:
    points = timed_points(plan_of(make_plan(concurrencies=(3, 5), max_num_batched_tokens=40)))
    assert len(points) == len(set(points))
    of = {
        model: {point.shape.num_reqs for point in points if point.model == model and not point.shape.is_mixed}
        for model in ("verify", "draft")
    }
    assert of == {"verify": {3, 5}, "draft": {1, 2, 3, 5}}  # and half of each
    mixed = [point.shape for point in points if point.shape.is_mixed]
    assert {shape.num_verifying for shape in mixed} == {0, 3, 5}
    assert {shape.num_prompt_tokens for shape in mixed if not shape.num_verifying} == {1, 4, 16, 40}


def test_what_is_never_served_is_not_timed() -> None:
    """Eager steps that a graph would run, wide first passes, and machinery, which is timed as it is served."""
    points = timed_points(plan_of(make_plan(concurrencies=(3, 5), max_num_batched_tokens=40)))
    assert {point.model for point in points} == {"verify", "head", "draft", "draft-prefill"}
    assert {point.mode for point in points if point.model == "draft"} == {"graph"}
    assert {point.mode for point in points if point.model == "verify" and not point.shape.is_mixed} == {"graph"}
    drafts = [(point.shape.num_reqs, point.k) for point in points if point.model == "draft"]
    assert len(drafts) == len(set(drafts))


def plan_of(plan: ValidationPlan, prompt_lens: Sequence[int] = (10, 20, 60), num_positions: int = 999) -> ProfilePlan:
    """Requests that ran from these tokens on, for four steps each."""
    num_requests = len(prompt_lens)
    trace: Any = SimpleNamespace(
        request=np.repeat(np.arange(num_requests), 4),
        position=np.tile(np.arange(1, 5), num_requests),
        prompt_len=np.array(prompt_lens),
    )
    return profile_plan(plan, trace, num_positions=num_positions)


def test_a_trace_of_few_long_requests_is_timed_at_all_its_points() -> None:
    """The mean context lies above the ninetieth percentile, and caches hold what is timed at it."""
    plan = plan_of(make_plan(concurrencies=(1, 4), max_num_batched_tokens=64), [20] * 95 + [200] * 5, num_positions=256)
    assert plan.contexts[0] < plan.drafting_context_len == plan.contexts[1] == 31
    target, draft = (
        load_model("tiny", role, device=torch.device("cpu"), dtype=torch.float32) for role in ("target", "draft")
    )
    factory = StepFactory(target.decoder, draft.decoder, plan)
    for point in timed_points(plan):
        factory.make(point)


def test_steps_are_timed_as_long_and_as_unlike_as_the_traces() -> None:
    plan = plan_of(make_plan(concurrencies=(3, 6), max_num_batched_tokens=40))
    assert (plan.contexts, plan.drafting_context_len) == ((12, 62), 32)
    assert plan.prompt_len == 46  # (10^2 + 20^2 + 60^2) / 90: as many squares of lengths as the trace's
    assert plan.prompts(90) == (45, 45)
    contexts = plan.context_lens(6, 63, "spread")
    assert sum(contexts) == pytest.approx(6 * 63, abs=1)
    assert max(contexts) / min(contexts) > 4
    points = timed_points(plan)
    assert {point.shape.context_len for point in points if point.model == "draft"} == {32}
    assert {point.shape.context_len for point in points if point.model == "verify"} == {0, 12, 62}


def test_contexts_stay_within_the_models_positions() -> None:
    plan = plan_of(make_plan(concurrencies=(3, 6), max_num_batched_tokens=40), num_positions=100)
    assert plan.contexts[1] < 62
    assert 98 <= plan.longest_sequence <= 100  # as long as they can be
    with pytest.raises(ConfigError, match="leave no context of the models' 2 positions"):
        plan_of(make_plan(concurrencies=(3, 6), max_num_batched_tokens=40), num_positions=2)


def test_a_spread_is_of_lengths_over_their_mean() -> None:
    spread = spread_of(np.array([10, 20, 60]))
    assert (len(spread), spread[0], spread[16], spread[-1]) == (33, 1 / 3, 2 / 3, 2.0)
    assert spread == tuple(sorted(spread))
