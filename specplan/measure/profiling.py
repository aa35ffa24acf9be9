"""From a pair of models to a profile: the sweep, with what must be known to read its numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from operator import attrgetter

import msgspec

from specplan import __version__
from specplan.errors import ConfigError
from specplan.files import ModelInfo, Profile
from specplan.measure.environment import describe_environment
from specplan.measure.grid import ProfilePlan
from specplan.measure.series import point_of
from specplan.measure.steps import StepFactory
from specplan.measure.sweep import StoppingRule, SweepProgress, SweepResult, sweep
from specplan.models import LoadedModel

__all__ = ["assemble_profile", "profile_pair"]

SAME_OR_ANEW = "resume with the options, models and device of the sweep that was stopped, or leave out --resume"


def profile_pair(
    target: LoadedModel,
    draft: LoadedModel,
    plan: ProfilePlan,
    rule: StoppingRule,
    *,
    seed: int = 0,
    earlier: Profile | None = None,
    on_progress: Callable[[SweepProgress], None] = lambda progress: None,
    on_checkpoint: Callable[[Profile], None] = lambda profile: None,
) -> Profile:
    """Measures the pair on the device it was loaded to.

    `earlier`: a profile of the same pair, plan and device that was stopped, to go on from; its verification is kept.
    `on_checkpoint` is given the incomplete profile from time to time.

    Raises ConfigError if the plan does not fit the models, or what is to be gone on from is of something else.
    """
    created = datetime.now(UTC).isoformat(timespec="seconds") if earlier is None else earlier.created

    def profile_of(result: SweepResult) -> Profile:
        if earlier is not None:
            readings, sentinels = [*earlier.readings, *result.readings], [*earlier.sentinels, *result.sentinels]
            result = replace(result, readings=readings, sentinels=sentinels)
        profile = assemble_profile(target, draft, plan, result, created=created)
        # What another process measured holds, however many more repetitions it is now held against.
        verification = [] if earlier is None else earlier.verification
        return msgspec.structs.replace(profile, verification=verification)

    if earlier is not None:
        require_same(earlier, profile_of(SweepResult(samples=[], failures=[], complete=False)), plan)
    factory = StepFactory(target.decoder, draft.decoder, plan, seed=seed)
    result = sweep(
        factory,
        plan.points(),
        rule,
        seed=seed,
        earlier=() if earlier is None else earlier.samples,
        on_progress=on_progress,
        on_checkpoint=lambda so_far: on_checkpoint(profile_of(so_far)),
    )
    return profile_of(result)


def require_same(earlier: Profile, now: Profile, plan: ProfilePlan) -> None:
    """Refuses to go on from what another device, pair, plan or version measured: half of it would be of neither."""
    wanted = {
        "specplan_version": now.specplan_version,
        **{f"environment.{name}": value for name, value in msgspec.structs.asdict(now.environment).items()},
        **{name: getattr(now, name) for name in ("target", "draft", "num_speculative_tokens", "max_num_seqs")},
        **{name: getattr(now, name) for name in ("max_num_batched_tokens", "capture_sizes")},
    }
    for place, expected in wanted.items():
        found = attrgetter(place)(earlier)
        if found != expected:
            raise ConfigError(
                f"cannot go on from this profile: its {place} is {found}, and this sweep's {expected}",
                SAME_OR_ANEW,
            )
    planned = set(plan.points())
    others = [sample for sample in earlier.samples if sample.model == "host" or point_of(sample) not in planned]
    if others:
        raise ConfigError(
            f"cannot go on from this profile: {len(others)} of its {len(earlier.samples)} samples are of points that "
            f"this sweep does not measure; the first, {others[0].model} {others[0].mode} of {others[0].num_reqs} "
            f"requests and {others[0].num_tokens} tokens at context {others[0].context_len}",
            SAME_OR_ANEW,
        )


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
        readings=result.readings,
        sentinels=result.sentinels,
    )


def model_info(model: LoadedModel) -> ModelInfo:
    return ModelInfo(
        name=model.name,
        num_params=model.decoder.num_params,
        config_sha256=model.config_sha256,
        weights=model.weights,
    )
