"""From a pair of models to a profile: the sweep, with what must be known to read its numbers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from specplan import __version__
from specplan.files import ModelInfo, Profile
from specplan.measure.environment import describe_environment
from specplan.measure.grid import ProfilePlan
from specplan.measure.steps import StepFactory
from specplan.measure.sweep import StoppingRule, SweepProgress, SweepResult, sweep
from specplan.models import LoadedModel

__all__ = ["assemble_profile", "profile_pair"]


def profile_pair(
    target: LoadedModel,
    draft: LoadedModel,
    plan: ProfilePlan,
    rule: StoppingRule,
    *,
    seed: int = 0,
    on_progress: Callable[[SweepProgress], None] = lambda progress: None,
) -> Profile:
    """Measures the pair on the device it was loaded to. Raises ConfigError if the plan does not fit the models."""
    factory = StepFactory(target.decoder, draft.decoder, plan, seed=seed)
    created = datetime.now(UTC).isoformat(timespec="seconds")
    result = sweep(factory, plan.points(), rule, seed=seed, on_progress=on_progress)
    return assemble_profile(target, draft, plan, result, created=created)


def assemble_profile(
    target: LoadedModel, draft: LoadedModel, plan: ProfilePlan, result: SweepResult, *, created: str
) -> Profile:
    """What was measured under the limits of `plan`, with what must be known to read it."""
    weight = target.decoder.model.embed_tokens.weight
    return Profile(
        specplan_version=__version__,
        created=created,
        source="measured",
        environment=describe_environment(weight.device, weight.dtype),
        target=model_info(target),
        draft=model_info(draft),
        num_speculative_tokens=plan.num_speculative_tokens,
        max_num_seqs=plan.max_num_seqs,
        max_num_batched_tokens=plan.max_num_batched_tokens,
        capture_sizes=list(plan.capture_sizes),
        complete=result.complete,
        samples=result.samples,
        failures=result.failures,
    )


def model_info(model: LoadedModel) -> ModelInfo:
    return ModelInfo(
        name=model.name,
        num_params=model.decoder.num_params,
        config_sha256=model.config_sha256,
        weights=model.weights,
    )
