"""The simulator held against the engine: rounds of profiling and of serving in turn, so that drift hits both alike."""

from __future__ import annotations

import gc
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from itertools import islice

import msgspec
import numpy as np

from specplan import __version__
from specplan.costs import tables_from_profile
from specplan.engine import Engine, ImposedOutcomes, ServingCase, decode_alone, record_trace, tokenize
from specplan.errors import ConfigError
from specplan.files import CostTables, Profile, Sample, Trace, Validation
from specplan.files.validation import CaseValidation
from specplan.measure.agreement import check_lossless, compare_decisions
from specplan.measure.environment import describe_environment
from specplan.measure.phases import PhaseClock
from specplan.measure.prediction import (
    HOST_PHASES,
    HeadTimes,
    Prediction,
    RoundPrices,
    TimedStep,
    part_errors,
    replay_case,
    size_errors,
    step_errors,
    step_prices,
)
from specplan.measure.profiling import assemble_profile, model_info
from specplan.measure.steps import StepFactory
from specplan.measure.sweep import StoppingRule, Sweep
from specplan.measure.validation_plan import (
    ValidationPlan,
    profile_plan,
    random_prompts,
    require_imposable,
    timed_points,
)
from specplan.models import LoadedModel
from specplan.planning import Policy
from specplan.shapes import Lengths
from specplan.simulation.replay import StepRecord

__all__ = ["validate_pair"]

# No point is ever done: each round gives each one burst, and no round more than another. Points are visited between the
# cases that are served, so that a machine that drifts within a round drifts under both.
EACH_ROUND = StoppingRule(min_repetitions=sys.maxsize, burst=4, burst_ms=0.0)
# Of every four steps that a case takes in a round, one at random tells what the host takes (every fourth would be the
# same step of every output of 24 tokens), and so do the first two, which find what another case has left. They are not
# compared with anything.
CALIBRATION_STRIDE = 4
FEWEST_STEPS = 4  # a round


@dataclass(slots=True, kw_only=True, eq=False)
class Served:
    """One policy at one concurrency, and the steps it has taken so far."""

    case: ServingCase
    planned: list[StepRecord]  # what the simulator does
    engine: Engine
    clock: PhaseClock
    steps_per_round: int
    steps: list[TimedStep] = field(default_factory=list)
    dice: random.Random = field(default_factory=lambda: random.Random(0))

    @property
    def measured(self) -> list[TimedStep]:
        return [timed for timed in self.steps if not timed.is_calibration]

    def calibration(self, number: int) -> list[TimedStep]:
        """Of a round, or of all where the case was done before; of full batches, where there are any.

        The odd step of fewer requests is no basis for a price.
        """
        every = [timed for timed in self.steps if timed.is_calibration]
        timed = [timed for timed in every if timed.round_number == number] or every
        return [timed for timed in timed if timed.step.size.num_reqs == self.case.concurrency] or timed

    def run_round(self, number: int) -> None:
        gc.collect()
        gc.freeze()  # as serving engines do: what is there now is not looked through again while steps are timed
        try:
            self.run_steps(number)
        finally:
            gc.unfreeze()

    def take_phases(self) -> dict[str, float]:
        """On CUDA a pass is launched in one phase and waited for in the next: the two are told apart on a CPU alone."""
        phases_ms = self.clock.take()
        if self.engine.device.type == "cuda":
            phases_ms["verify"] = phases_ms.get("verify", 0.0) + phases_ms.pop("head", 0.0)
        return phases_ms

    def run_steps(self, number: int) -> None:
        calibration = 0
        for index in range(self.steps_per_round):
            if self.engine.is_done:
                return
            if index % CALIBRATION_STRIDE == 0:
                calibration = index + self.dice.randrange(CALIBRATION_STRIDE)
            start_s = time.perf_counter()
            step = self.engine.step()
            wall_ms = (time.perf_counter() - start_s) * 1e3
            self.steps.append(
                TimedStep(
                    place=len(self.steps),
                    step=step,
                    wall_ms=wall_ms,
                    phases_ms=self.take_phases(),
                    round_number=number,
                    is_calibration=index < 2 or index == calibration,
                )
            )


def validate_pair(
    target: LoadedModel,
    draft: LoadedModel,
    texts: Sequence[str] | None,
    plan: ValidationPlan,
    *,
    source: str,
    imposed: Trace | None = None,
    on_progress: Callable[[float, str], None] = lambda fraction, doing: None,
) -> Validation:
    """Records the pair, profiles and serves it in turn, simulates the same, and says how far apart they are.

    With `imposed` nothing is recorded: outcomes are the trace's, and prompts are random tokens of its lengths, so that
    `texts` are not needed and a pair without trained weights will do.
    """
    created = datetime.now(UTC).isoformat(timespec="seconds")
    if imposed is None:
        if texts is None:
            raise ConfigError("no prompts, and no trace to impose", "pass --prompts, or --impose a trace")
        on_progress(0.0, "recording")
        trace = record_trace(
            target, draft, texts, source=source, k=plan.num_speculative_tokens, max_output_tokens=plan.max_output_tokens
        )
        prompts = tokenize(target, draft, texts)
    else:
        require_imposable(target, draft, imposed, plan)
        trace = imposed
        prompts = random_prompts(target, imposed, plan.seed)
    num_positions = min(model.decoder.config.max_position_embeddings for model in (target, draft))
    timed_plan = profile_plan(plan, trace, num_positions=num_positions)
    factory = StepFactory(target.decoder, draft.decoder, timed_plan, seed=plan.seed)
    running = Sweep(factory, timed_points(timed_plan), seed=plan.seed)
    for index, _ in enumerate(running.make_ready()):
        on_progress(0.15 * index / len(running.all_series), "making steps ready")

    @cache
    def profile_of(number: int) -> Profile:
        whole = assemble_profile(target, draft, timed_plan, running.result(stopped_by="cap"), created=created)
        return msgspec.structs.replace(whole, samples=[of_round(sample, number) for sample in whole.samples])

    @cache
    def tables_of(policy: Policy, number: int) -> CostTables:
        """With the host's work under the policy: it is not the same with a drafter and with a budget as without."""
        timed = [
            timed for served in served_cases if served.case.policy == policy for timed in served.calibration(number)
        ]
        profile = profile_of(number)
        lengths: Lengths = "ragged" if policy.has_budget else "spread"
        return tables_from_profile(
            msgspec.structs.replace(profile, samples=[*profile.samples, *host_samples(timed)]), lengths=lengths
        )

    def prices_of(case: ServingCase, number: int) -> RoundPrices:
        return RoundPrices(
            prices=step_prices(case, tables_of(case.policy, number)), head=HeadTimes.from_profile(profile_of(number))
        )

    served_cases: list[Served] = []
    order = random.Random(plan.seed)
    planner: CostTables | None = None
    for number in range(plan.num_rounds):
        visits = running.visit_all(EACH_ROUND)
        if planner is None:
            # Decided by the first round and kept: a budget that moved with the profile would be another policy.
            on_progress(0.15, "round 1: profiling")
            deque(visits, maxlen=0)
            planner = tables_from_profile(profile_of(0), lengths=timed_plan.lengths[-1])
            served_cases = [
                serve(target, draft, prompts, trace, plan, policy, concurrency, planner, imposed)
                for concurrency in plan.concurrencies
                for policy in plan.policies
            ]
        order.shuffle(served_cases)
        share = -(-len(running.all_series) // len(served_cases))
        for index, served in enumerate(served_cases):
            doing = f"round {number + 1}: profiling, and serving {served.case.policy.name} at {served.case.concurrency}"
            on_progress(0.15 + 0.8 * (number + index / len(served_cases)) / plan.num_rounds, doing)
            deque(islice(visits, share), maxlen=0)
            served.run_round(number)
    assert planner is not None
    on_progress(0.95, "comparing")
    alone = None
    if imposed is None:
        alone = decode_alone(target.decoder, prompts, plan.max_output_tokens + plan.num_speculative_tokens)
    return Validation(
        specplan_version=__version__,
        created=created,
        environment=describe_environment(factory.device, target.decoder.lm_head.weight.dtype),
        target=model_info(target),
        draft=model_info(draft),
        source=source,
        num_requests=trace.num_requests,
        num_speculative_tokens=plan.num_speculative_tokens,
        lag=plan.lag,
        max_num_batched_tokens=plan.max_num_batched_tokens,
        max_output_tokens=plan.max_output_tokens,
        num_rounds=plan.num_rounds,
        imposed=None if imposed is None else imposed.metadata.source,
        cases=[
            compare(
                served,
                Prediction(
                    records=served.planned,
                    rounds=[prices_of(served.case, number) for number in range(plan.num_rounds)],
                ),
                trace,
                target,
                prompts,
                alone,
            )
            for concurrency in plan.concurrencies
            for policy in plan.policies
            for served in served_cases
            if (served.case.policy, served.case.concurrency) == (policy, concurrency)
        ],
    )


def serve(
    target: LoadedModel,
    draft: LoadedModel,
    prompts: Sequence[Sequence[int]],
    trace: Trace,
    plan: ValidationPlan,
    policy: Policy,
    concurrency: int,
    planner: CostTables,
    imposed: Trace | None,
) -> Served:
    """An engine at the start of its loop, and how many of its steps make a round."""
    case = ServingCase(
        policy=policy,
        num_speculative_tokens=plan.num_speculative_tokens,
        concurrency=concurrency,
        max_num_batched_tokens=plan.max_num_batched_tokens,
        lag=plan.lag,
        capture_sizes=tuple(planner.capture_sizes),
        tables=planner,
    )
    clock = PhaseClock()
    engine = Engine(
        target.decoder,
        draft.decoder,
        prompts,
        case,
        max_output_tokens=plan.max_output_tokens,
        eos_token_ids=target.decoder.config.eos_token_ids,
        imposed=None if imposed is None else ImposedOutcomes(imposed),
        oracle=ImposedOutcomes(trace),
        on_phase=clock,
    )
    planned = replay_case(trace, case, planner)
    steps_per_round = -(-len(planned) // plan.num_rounds)
    if steps_per_round < FEWEST_STEPS:
        raise ConfigError(
            f"{policy.name} at {concurrency} takes {len(planned)} steps, too few for {plan.num_rounds} rounds",
            "serve more or longer outputs (--max-output-tokens), or run fewer --rounds",
        )
    return Served(case=case, planned=planned, engine=engine, clock=clock, steps_per_round=steps_per_round)


def compare(
    served: Served,
    prediction: Prediction,
    trace: Trace,
    target: LoadedModel,
    prompts: Sequence[Sequence[int]],
    alone: Sequence[Sequence[int]] | None,
) -> CaseValidation:
    measured = served.measured
    errors = step_errors(prediction, measured)
    if not sum(timed.step.num_output_tokens for timed in measured):
        raise ConfigError(
            f"{served.case.policy.name} at {served.case.concurrency} yielded no output token in its "
            f"{len(measured)} measured steps",
            "serve longer outputs, or run fewer --rounds",
        )
    by_round = [
        [timed for timed in measured if timed.round_number == number] for number in range(len(prediction.rounds))
    ]
    steps = [timed.step for timed in served.steps]
    return CaseValidation(
        policy=served.case.policy.name,
        concurrency=served.case.concurrency,
        num_steps=len(measured),
        predicted_tokens_per_s=prediction.tokens_per_s(measured),
        measured_tokens_per_s=tokens_per_s(measured),
        round_predictions=[prediction.tokens_per_s(measured, number) for number in range(len(prediction.rounds))],
        round_measurements=[tokens_per_s(each) for each in by_round if any(t.step.num_output_tokens for t in each)],
        step_mape=float(np.abs(errors).mean()),
        step_bias=float(errors.mean()),
        parts=part_errors(prediction, measured),
        sizes=size_errors(prediction, measured),
        decisions=compare_decisions(steps, served.planned, trace, target.decoder, prompts, alone),
        lossless=None if alone is None else check_lossless(served.engine.served, target.decoder, prompts, alone),
    )


def tokens_per_s(steps: Sequence[TimedStep]) -> float:
    return sum(timed.step.num_output_tokens for timed in steps) / sum(timed.wall_ms for timed in steps) * 1e3


def host_samples(steps: Sequence[TimedStep]) -> list[Sample]:
    """What the steps spent outside the passes, by shape."""
    shapes: dict[tuple[int, int, int], list[TimedStep]] = {}
    for timed in steps:
        shapes.setdefault((timed.step.size.num_reqs, timed.step.num_tokens, timed.step.k), []).append(timed)
    return [
        Sample(
            model="host",
            mode="eager",
            layout="multi-query",
            num_reqs=num_reqs,
            num_tokens=num_tokens,
            executed_num_reqs=num_reqs,
            executed_num_tokens=num_tokens,
            k=k,
            context_len=round(float(np.mean([timed.step.size.context_len for timed in same]))),
            warmup_ms=[],
            repetitions_ms=[timed.sum_ms(HOST_PHASES) for timed in same],
            stop_reason="cap",
        )
        for (num_reqs, num_tokens, k), same in shapes.items()
    ]


def of_round(sample: Sample, number: int) -> Sample:
    """The repetitions of a round alone: each gave every point one burst."""
    burst = slice(number * EACH_ROUND.burst, (number + 1) * EACH_ROUND.burst)
    return msgspec.structs.replace(
        sample, repetitions_ms=sample.repetitions_ms[burst], device_ms=sample.device_ms[burst]
    )
