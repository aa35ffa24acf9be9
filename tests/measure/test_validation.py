"""The engine held against the simulator on the embedded pair: what is compared, and what agrees whatever the clock."""

from __future__ import annotations

import dataclasses
import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from builders import make_validation_plan as make_plan

from specplan.costs import build_cost_tables
from specplan.engine import EngineStep, ServingCase, record_trace
from specplan.errors import ConfigError
from specplan.files import CostTables, Trace, Validation
from specplan.measure import validate_pair
from specplan.measure.agreement import check_lossless, compare_decisions, confidence_difference, dense_logits
from specplan.measure.phases import PhaseClock
from specplan.measure.prediction import (
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
from specplan.measure.validation import Served, host_samples, of_round
from specplan.models import Decoder, DecoderConfig, LoadedModel, load_model
from specplan.planning import parse_policy
from specplan.planning.prices import StepSize

CPU = torch.device("cpu")
TEXTS = ["def main() -> None:\n    print(", "import os\nimport sys\n\n\nclass", "for index in range(10):\n", "x = ["]


def tiny() -> tuple[LoadedModel, LoadedModel]:
    target, draft = (load_model("tiny", role, device=CPU, dtype=torch.float32) for role in ("target", "draft"))
    return target, draft


@pytest.fixture(scope="module")
def validation() -> Validation:
    told: list[float] = []
    result = validate_pair(
        *tiny(), TEXTS, make_plan(), source="texts", on_progress=lambda fraction, doing: told.append(fraction)
    )
    assert told == sorted(told)
    assert 0 <= told[0] <= told[-1] <= 1
    return result


def test_every_case_is_compared(validation: Validation, tmp_path: Path) -> None:
    cases = [(case.concurrency, case.policy) for case in validation.cases]
    assert cases == [(c, p) for c in (1, 2) for p in ("none", "fixed:1", "adaptive")]
    for case in validation.cases:
        assert case.num_steps > 4
        assert len(case.round_predictions) == 2
        assert case.predicted_tokens_per_s > 0
        assert sum(size.num_steps for size in case.sizes) == case.num_steps
        assert case.error == pytest.approx(case.predicted_tokens_per_s / case.measured_tokens_per_s - 1)
    validation.write(tmp_path / "validation.json")
    assert Validation.read(tmp_path / "validation.json") == validation


def test_output_is_lossless_and_decisions_are_explained(validation: Validation) -> None:
    """In float32 a step may differ from the simulator's, but not without a cause."""
    for case in validation.cases:
        assert case.lossless is not None
        assert case.lossless.num_wrong == 0
        assert case.lossless.num_outputs >= max(len(TEXTS), 8 * case.concurrency)  # as often as each was served
        assert case.decisions.num_steps > 6
        if case.decisions.first_divergence is not None:
            assert case.decisions.first_divergence.cause != "unexplained"


def test_the_parts_of_a_step_are_the_step(validation: Validation) -> None:
    """What the clock saw, up to what lies between its readings."""
    for case in validation.cases:
        parts = {part.part: part for part in case.parts}
        assert list(parts) == ["verify", "prefill", "head", "draft", "draft-prefill", "host"]
        assert parts["head"].measured_ms > 0
        assert parts["head"].predicted_ms > 0
        assert (parts["prefill"].measured_ms > 0) == any(size.has_prompt_tokens for size in case.sizes)
        assert (parts["prefill"].predicted_ms > 0) == (parts["prefill"].measured_ms > 0)
        assert (parts["draft"].measured_ms > 0) == (case.policy != "none")
        assert (parts["draft"].predicted_ms > 0) == (case.policy != "none")
        assert parts["host"].predicted_ms > 0
        for part in case.parts:
            assert sum(part.measured_detail_ms.values()) == pytest.approx(part.measured_ms)


def test_a_pair_with_random_weights_is_timed_under_a_trace(validation: Validation) -> None:
    """Its decisions are the trace's, to the last step."""
    target, draft = tiny()
    trace = record_trace(target, draft, TEXTS, source="texts", k=2, max_output_tokens=6)
    config = DecoderConfig(
        model_type="llama",
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    strangers = [
        LoadedModel(
            name=name,
            folder=Path(name),
            decoder=Decoder(config).requires_grad_(False).eval(),
            weights="random",
            config_sha256="0" * 64,
        )
        for name in ("big", "little")
    ]
    result = validate_pair(*strangers, None, make_plan(concurrencies=(2,)), source="texts", imposed=trace)
    assert result.imposed == "texts"
    for case in result.cases:
        assert case.lossless is None
        assert case.decisions.first_divergence is None
        assert case.decisions.num_equal == case.decisions.num_steps


def test_without_prompts_and_without_a_trace_there_is_nothing_to_serve() -> None:
    with pytest.raises(ConfigError, match="no prompts, and no trace"):
        validate_pair(*tiny(), None, make_plan(), source="texts")


def test_a_phase_clock_adds_up_and_starts_anew() -> None:
    clock = PhaseClock()
    for phase in ("schedule", "plan", "schedule"):
        clock(phase)  # type: ignore[arg-type]
    taken = clock.take()
    assert set(taken) == {"schedule", "plan"}
    assert all(ms >= 0 for ms in taken.values())
    assert clock.take() == {}


def make_tables(times: float = 1.0) -> CostTables:
    """Costs that can be read off: 10 + t ms to verify t tokens, 2 to draft, and so on."""
    return build_cost_tables(
        [(1, 2.0 * times), (4, 2.0 * times)],
        [(t, (10.0 + t) * times) for t in range(1, 33)],
        max_num_reqs=4,
        max_num_tokens=32,
        capture_limit=32,
        overhead_ms=0.5 * times,
    )


def make_step(**changes: Any) -> EngineStep:
    fields: dict[str, Any] = {
        "size": StepSize(num_reqs=2, num_verifying=2, num_sampling=2, num_prompt_tokens=0, context_len=8.0),
        "num_tokens": 4,
        "executed_tokens": 4,
        "k": 2,
        "requests": (0, 1),
        "emitted": (1, 1),
        "confidence": ((0.9, 0.8), (0.7, 0.6)),
        "admitted": (1, 1),
        "accepted": (1, 0),
        "num_output_tokens": 3,
    }
    return EngineStep(**(fields | changes))


def timed(step: EngineStep, wall_ms: float, **phases_ms: float) -> TimedStep:
    return TimedStep(place=0, step=step, wall_ms=wall_ms, phases_ms=phases_ms, round_number=0, is_calibration=False)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return record_trace(*tiny(), TEXTS, source="texts", k=2, max_output_tokens=6)


def predict(trace: Trace, policy: str = "fixed:2") -> Prediction:
    case = ServingCase(
        policy=parse_policy(policy),
        num_speculative_tokens=2,
        concurrency=2,
        max_num_batched_tokens=32,
        tables=make_tables(),
    )
    head = HeadTimes(num_tokens=np.array([2, 6]), median_ms=np.array([0.5, 1.5]))
    return Prediction(
        records=replay_case(trace, case, make_tables()),
        rounds=[RoundPrices(prices=step_prices(case, make_tables(times)), head=head) for times in (1.0, 2.0)],
    )


def test_errors_by_hand(trace: Trace) -> None:
    """Predicted: 14 to verify 4 tokens, 1 of them for the head, 2 to draft, 0.5 for the host."""
    prediction = predict(trace)
    mixed = StepSize(num_reqs=2, num_verifying=1, num_sampling=1, num_prompt_tokens=3, context_len=8.0)
    steps = [
        timed(make_step(), 15.0, verify=10.0, head=1.0, draft=3.0, plan=0.5, layout=0.5),
        timed(make_step(), 16.5, verify=12.0, head=1.0, draft=3.0, plan=0.25, record=0.25),
        timed(make_step(size=mixed, num_tokens=6, executed_tokens=6), 20.0, verify=15.0, head=1.0),
    ]
    assert prediction.parts_ms(steps[0]) == {
        "verify": 13.0, "prefill": 0.0, "head": 1.0, "draft": 2.0, "draft-prefill": 0.0, "host": 0.5,
    }  # fmt: skip
    replayed = timed(make_step(), 15.0, verify=11.0)  # with its head
    assert prediction.parts_ms(replayed) == {**prediction.parts_ms(steps[0]), "verify": 14.0, "head": 0.0}
    assert prediction.parts_ms(steps[2])["head"] == 1.0  # of 6 tokens 2 drafts and 2 others are judged
    for each in (*steps, replayed):
        assert sum(prediction.parts_ms(each).values()) == prediction.step_ms(each)
    assert step_errors(prediction, steps).tolist() == pytest.approx([0.1, 0.0, -0.075])
    parts = {part.part: part for part in part_errors(prediction, steps)}
    assert parts["verify"].predicted_ms == pytest.approx((13 + 13) / 3)
    assert parts["verify"].measured_ms == pytest.approx((10 + 12) / 3)
    assert parts["prefill"].predicted_ms == pytest.approx((16 - 1) / 3)
    assert parts["prefill"].measured_detail_ms == pytest.approx({"verify": 15 / 3})
    assert (parts["head"].predicted_ms, parts["head"].measured_ms) == pytest.approx(((1 + 1 + 1) / 3, 1))
    assert parts["host"].measured_detail_ms["plan"] == pytest.approx(0.25)
    sizes = size_errors(prediction, steps)
    assert [(size.executed_tokens, size.has_prompt_tokens, size.num_steps) for size in sizes] == [
        (4, False, 2),
        (6, True, 1),
    ]
    assert sizes[0].measured_ms == pytest.approx(15.75)


def test_tokens_per_s_are_those_of_the_replay_at_the_same_places(trace: Trace) -> None:
    records = predict(trace).records
    places = [2, 3, 5, len(records) + 4]  # the engine may take a few steps more
    steps = [dataclasses.replace(timed(make_step(), 1.0), place=place, round_number=place % 2) for place in places]
    # The second round found every step twice as dear.
    total_s = sum(records[place].cost_ms * (1 + place % 2) for place in places[:3]) / 1e3
    tokens = sum(records[place].num_output_tokens for place in places[:3])
    assert predict(trace).tokens_per_s(steps) == pytest.approx(tokens / total_s)


def test_rounds_that_cost_alike_have_no_spread_whatever_their_steps(trace: Trace) -> None:
    prediction = predict(trace)
    same = dataclasses.replace(prediction, rounds=[prediction.rounds[0]] * 2)
    steps = [
        dataclasses.replace(timed(make_step(), 1.0), place=place, round_number=place % 2)
        for place in range(len(prediction.records))
    ]
    assert same.tokens_per_s(steps, 0) == same.tokens_per_s(steps, 1) == same.tokens_per_s(steps)
    assert prediction.tokens_per_s(steps, 0) == pytest.approx(2 * prediction.tokens_per_s(steps, 1))


def test_on_cuda_the_head_is_a_part_of_its_pass() -> None:
    """A phase that launches work passes its time on to the next one that waits for it."""
    case = ServingCase(policy=parse_policy("none"), num_speculative_tokens=2, concurrency=1, max_num_batched_tokens=32)
    for device, phases in (("cpu", {"verify", "head", "commit"}), ("cuda", {"verify", "commit"})):
        engine: Any = SimpleNamespace(device=torch.device(device))
        served = Served(case=case, planned=[], engine=engine, clock=PhaseClock(), steps_per_round=1)
        for phase in ("verify", "head", "commit"):
            served.clock(phase)  # type: ignore[arg-type]
        assert set(served.take_phases()) == phases


def test_a_step_is_priced_by_the_round_that_served_it(trace: Trace) -> None:
    prediction = predict(trace)
    steps = [dataclasses.replace(timed(make_step(), 33.0, head=1.0), round_number=number) for number in (0, 1)]
    assert [prediction.step_ms(each) for each in steps] == [16.5, 33.0]
    assert prediction.parts_ms(steps[1])["draft"] == 4.0
    assert step_errors(prediction, steps).tolist() == [-0.5, 0.0]


def test_host_samples_are_what_lies_around_the_passes() -> None:
    steps = [
        timed(make_step(), 15.0, verify=10.0, plan=0.5, layout=0.25),
        timed(
            make_step(
                size=StepSize(num_reqs=2, num_verifying=2, num_sampling=2, num_prompt_tokens=0, context_len=12.0)
            ),
            15.0,
            draft=10.0,
            commit=0.5,
        ),
        timed(make_step(num_tokens=6), 15.0, schedule=0.1, record=0.1),
    ]
    first, second = host_samples(steps)
    assert (first.num_reqs, first.num_tokens, first.k, first.context_len) == (2, 4, 2, 10)
    assert first.repetitions_ms == [0.75, 0.5]
    assert second.repetitions_ms == [pytest.approx(0.2)]


def test_a_round_is_its_own_burst() -> None:
    sample = host_samples([timed(make_step(), 1.0, plan=float(1 + index)) for index in range(12)])[0]
    assert of_round(sample, 1).repetitions_ms == [5.0, 6.0, 7.0, 8.0]
    on_device = msgspec.structs.replace(sample, model="verify", k=None, device_ms=[0.5] * 12)
    assert of_round(on_device, 2).device_ms == [0.5] * 4


def as_steps(trace: Trace) -> list[EngineStep]:
    """The simulator's own steps, as an engine would have taken them."""
    first_row = trace.row_start[:-1]
    emitted = dict.fromkeys(range(trace.num_requests), 1)
    steps = []
    for record in predict(trace).records:
        rows = [int(first_row[r]) + emitted[r] for r in record.requests]
        steps.append(
            make_step(
                size=record.size,
                num_tokens=record.num_tokens,
                requests=record.requests,
                emitted=tuple(emitted[r] for r in record.requests),
                confidence=tuple(tuple(trace.confidence[row].tolist()) for row in rows),  # type: ignore[index]
                admitted=record.admitted,
                accepted=record.accepted,
            )
        )
        for request, accepted in zip(record.requests, record.accepted, strict=True):
            emitted[request] += accepted + 1
            if emitted[request] >= trace.output_len[request]:
                emitted[request] = 1  # it will be served again
    return steps


def test_a_divergence_is_traced_to_a_confidence_or_a_tie_or_to_nothing(trace: Trace) -> None:
    target, _ = tiny()
    prompts = [[1, 2, 3]] * trace.num_requests
    alone = [[5] * 10] * trace.num_requests
    steps, records = as_steps(trace), predict(trace).records
    same = compare_decisions(steps, records, trace, target.decoder, prompts, alone)
    assert (same.num_equal, same.first_divergence) == (len(records), None)

    index = next(i for i, step in enumerate(steps) if len(step.requests) == 2)
    step = steps[index]
    nudged = tuple(tuple(value + 4e-6 for value in row) for row in step.confidence)
    fewer = (0, *step.admitted[1:])
    other = (step.accepted[0] + 1, *step.accepted[1:])
    for changes, cause in (
        ({"admitted": fewer}, "unexplained"),
        ({"admitted": fewer, "confidence": nudged}, "confidence"),
        ({"accepted": other, "confidence": nudged}, "unexplained"),  # acceptance does not turn on confidences
        ({"num_tokens": step.num_tokens + 1}, "unexplained"),
    ):
        changed = [*steps]
        changed[index] = dataclasses.replace(step, **changes)
        decisions = compare_decisions(changed, records, trace, target.decoder, prompts, alone)
        assert decisions.num_equal == len(records) - 1
        divergence = decisions.first_divergence
        assert divergence is not None
        assert (divergence.step, divergence.cause) == (index, cause), changes
        assert divergence.request == (None if "num_tokens" in changes else step.requests[0])


def test_a_tie_is_found_in_the_step_before_too(trace: Trace) -> None:
    """A bonus token that a tie has flipped shows in what the next step accepts."""
    target, _ = tiny()
    steps, records = as_steps(trace), predict(trace).records
    index = next(i for i, step in enumerate(steps) if step.emitted and step.emitted[0] >= 3)
    step = steps[index]
    prompt = [7, 8, 9]
    output = [int(np.argmax(dense_logits(target.decoder, prompt)[-1]))]
    while len(output) < 12:
        output.append(int(np.argmax(dense_logits(target.decoder, [*prompt, *output])[-1])))
    place = len(prompt) + step.emitted[0] - 2  # of the token before the one that the step starts from
    logits = dense_logits(target.decoder, [*prompt, *output])[place]
    second = int(np.argsort(logits)[-2])
    with torch.no_grad():  # the runner-up now says what the first one says
        target.decoder.lm_head.weight[second] = target.decoder.lm_head.weight[output[step.emitted[0] - 1]]
    changed = [*steps]
    changed[index] = dataclasses.replace(step, accepted=(step.accepted[0] + 1, *step.accepted[1:]))
    prompts, alone = [prompt] * trace.num_requests, [output] * trace.num_requests
    divergence = compare_decisions(changed, records, trace, target.decoder, prompts, alone).first_divergence
    assert divergence is not None
    assert divergence.cause == "logit tie"


def test_a_difference_past_the_end_of_a_trace_is_none(trace: Trace) -> None:
    last = trace.num_requests - 1
    length = int(trace.output_len[last])
    assert confidence_difference(trace, last, length - 1, [0.5]) is not None
    assert confidence_difference(trace, last, length, [0.5]) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_speculative_tokens": 3}, "the trace holds 2 drafts a position, and K is 3"),
        ({"num_rounds": 40}, "takes .* steps, too few for 40 rounds"),
    ],
)
def test_what_cannot_be_served_under_a_trace_is_refused(trace: Trace, changes: dict[str, Any], words: str) -> None:
    short = make_plan(policies=(parse_policy("fixed:2"),), concurrencies=(2,), **changes)
    with pytest.raises(ConfigError, match=words):
        validate_pair(*tiny(), None, short, source="texts", imposed=trace)
    assert gc.get_freeze_count() == 0


def test_a_step_that_recurs_is_measured_as_well_as_used_for_calibration() -> None:
    """Every fourth step runs a prompt, as of outputs of four tokens at one request."""
    case = ServingCase(policy=parse_policy("none"), num_speculative_tokens=2, concurrency=1, max_num_batched_tokens=32)
    sizes = [
        StepSize(
            num_reqs=1,
            num_verifying=0 + (i % 4 > 0),
            num_sampling=1,
            num_prompt_tokens=3 * (i % 4 == 0),
            context_len=8.0,
        )
        for i in range(80)
    ]
    coming = iter([make_step(size=size) for size in sizes])
    engine = SimpleNamespace(is_done=False, step=lambda: next(coming), device=CPU)
    served = Served(case=case, planned=[], engine=engine, clock=PhaseClock(), steps_per_round=40)  # type: ignore[arg-type]
    served.run_round(0)
    served.run_round(1)
    assert len(served.steps) == 80
    for steps in (served.measured, served.calibration(0) + served.calibration(1)):
        assert {timed.step.size.num_prompt_tokens for timed in steps} == {0, 3}
    assert 80 / 4 <= len(served.calibration(0)) + len(served.calibration(1)) <= 80 / 4 + 4
    assert [timed.is_calibration for timed in (*served.steps[:2], *served.steps[40:42])] == [True] * 4


def test_a_round_without_calibration_steps_is_priced_by_all() -> None:
    """The case was done before the round; steps of fewer requests count where there are no others."""
    case = ServingCase(policy=parse_policy("none"), num_speculative_tokens=2, concurrency=3, max_num_batched_tokens=32)
    served = Served(case=case, planned=[], engine=None, clock=PhaseClock(), steps_per_round=4)  # type: ignore[arg-type]

    def add(number: int, num_reqs: int, *, is_calibration: bool = True) -> TimedStep:
        size = StepSize(
            num_reqs=num_reqs, num_verifying=num_reqs, num_sampling=num_reqs, num_prompt_tokens=0, context_len=8.0
        )
        step = dataclasses.replace(timed(make_step(size=size), 1.0), round_number=number, is_calibration=is_calibration)
        served.steps.append(step)
        return step

    full, half, later = add(0, 3), add(0, 2), add(1, 2)
    add(1, 3, is_calibration=False)
    assert served.calibration(0) == [full]
    assert served.calibration(1) == [later]
    assert served.calibration(2) == [full]
    assert half not in served.calibration(0)


def test_an_output_may_differ_by_a_tie_and_by_nothing_else() -> None:
    target, _ = tiny()
    prompt = [10, 20, 30]
    logits = dense_logits(target.decoder, prompt)[-1]
    best, second = (int(token) for token in np.argsort(logits)[::-1][:2])
    right = check_lossless([(0, [best])], target.decoder, [prompt], [[best, 1]])
    assert (right.num_outputs, right.num_ties, right.num_wrong) == (1, 0, 0)
    wrong = check_lossless([(0, [second])], target.decoder, [prompt], [[best, 1]])
    assert (wrong.num_ties, wrong.num_wrong) == (0, 1)
    target.decoder.lm_head.weight[second] = target.decoder.lm_head.weight[best]
    tie = check_lossless([(0, [second])], target.decoder, [prompt], [[best, 1]])
    assert (tie.num_ties, tie.num_wrong) == (1, 0)
