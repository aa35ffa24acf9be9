"""The engine against the target decoding alone, and against the simulator's decisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specplan.costs import build_cost_tables
from specplan.engine import Engine, EngineStep, ImposedOutcomes, ServingCase, record_pair
from specplan.engine.recorder import decode
from specplan.errors import ConfigError
from specplan.files import CostTables, Trace, TraceMetadata
from specplan.models import Decoder, DecoderConfig
from specplan.planning import parse_policy
from specplan.planning.prices import StepPrices, VerifyPrices
from specplan.simulation.replay import ReplayCase, StepRecord, Workload, replay_steps

K = 4
OUTPUT = 14
POLICIES = ("none", "fixed:0", "fixed:3", "ema", "adaptive", "oracle")


def make_pair(dtype: torch.dtype) -> tuple[Decoder, Decoder]:
    """A target, and a drafter that is the target with some noise: it is right about half of the time."""
    config = DecoderConfig(
        model_type="llama",
        vocab_size=37,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    torch.manual_seed(0)
    target = Decoder(config)
    draft = Decoder(config)
    with torch.no_grad():
        for parameter in target.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.3)
        draft.load_state_dict(target.state_dict())
        for parameter in draft.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    pair = [decoder.requires_grad_(False).eval().to(dtype) for decoder in (target, draft)]
    for decoder in pair:
        decoder.fill_rope()
    return pair[0], pair[1]


def make_prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(37, (length,), generator=generator).tolist() for length in (5, 17, 1, 9, 30, 2, 12)]


def make_tables() -> CostTables:
    return build_cost_tables(
        [(1, 0.2), (8, 0.5)],
        [(1, 1.0), (4, 1.2), (8, 1.6), (16, 2.4), (24, 5.0), (64, 14.0)],
        max_num_reqs=8,
        max_num_tokens=64,
        capture_limit=16,
        overhead_ms=0.1,
    )


def make_case(policy: str, concurrency: int, **changes: Any) -> ServingCase:
    parsed = parse_policy(policy)
    fields: dict[str, Any] = {
        "policy": parsed,
        "num_speculative_tokens": K,
        "concurrency": concurrency,
        "max_num_batched_tokens": 40,
        "capture_sizes": (1, 2, 4, 8, 16),
        "tables": make_tables() if parsed.has_budget else None,
    }
    return ServingCase(**(fields | changes))


def record(target: Decoder, draft: Decoder, prompts: Sequence[Sequence[int]], eos: frozenset[int]) -> Trace:
    requests = record_pair(target, draft, prompts, k=K, max_output_tokens=OUTPUT, eos_token_ids=eos)
    output_len = np.array([len(request.accepted_len) for request in requests], dtype=np.int32)
    return Trace(
        metadata=TraceMetadata(
            kind="dense", sampling="greedy", num_speculative_tokens=K, target="t", draft="d", tokenizer="t", source="s"
        ),
        request=np.repeat(np.arange(len(requests), dtype=np.int32), output_len),
        position=np.concatenate([np.arange(length, dtype=np.int32) for length in output_len]),
        confidence=np.concatenate([request.confidence for request in requests]),
        accepted_len=np.concatenate([request.accepted_len for request in requests]),
        verified_len=np.full(int(output_len.sum()), K, dtype=np.int32),
        arrival_s=np.zeros(len(requests)),
        prompt_len=np.array([len(prompt) for prompt in prompts], dtype=np.int32),
        output_len=output_len,
    )


def replayed(trace: Trace, case: ServingCase) -> list[StepRecord]:
    """What the simulator does with the same policy, tables and lag."""
    tables = make_tables()
    verify = VerifyPrices.from_tables(tables, max_num_reqs=8, max_num_tokens=64, num_speculative_tokens=4)
    prices = StepPrices.from_tables(verify, tables, policy=case.policy, num_speculative_tokens=K)
    replay = ReplayCase.of_policy(
        case.policy,
        workload=Workload.from_trace(trace),
        concurrency=case.concurrency,
        max_num_batched_tokens=case.max_num_batched_tokens,
        num_speculative_tokens=K,
        confidence=trace.confidence,
        lag=case.lag,
        prices=prices,
        planner_prices=prices,
    )
    return list(replay_steps(replay, replay.closed_loop(np.arange(trace.num_requests, dtype=np.int64))))


def decisions(steps: Sequence[EngineStep] | Sequence[StepRecord]) -> list[tuple[Any, ...]]:
    return [
        (step.requests, step.size.num_reqs, step.num_tokens, step.admitted, step.accepted, step.num_output_tokens)
        for step in steps
    ]


def serve(
    pair: tuple[Decoder, Decoder], prompts: Sequence[Sequence[int]], case: ServingCase, **changes: Any
) -> tuple[Engine, list[EngineStep]]:
    engine = Engine(*pair, prompts, case, **({"max_output_tokens": OUTPUT} | changes))
    return engine, list(engine.steps())


@pytest.mark.parametrize("concurrency", [1, 3, 5])
@pytest.mark.parametrize("policy", POLICIES)
def test_greedy_output_is_what_the_target_says_alone(policy: str, concurrency: int) -> None:
    pair, prompts = make_pair(torch.float32), make_prompts()
    with torch.inference_mode():
        alone = decode(pair[0], prompts, OUTPUT, on_pass=lambda done: None)
    oracle = ImposedOutcomes(record(*pair, prompts, frozenset())) if policy == "oracle" else None
    engine, steps = serve(pair, prompts, make_case(policy, concurrency), oracle=oracle)
    assert [engine.outputs[request] for request in range(len(prompts))] == alone.tolist()
    accepted = sum(sum(step.accepted) for step in steps)
    assert (accepted > 0) == (policy not in ("none", "fixed:0"))


@pytest.mark.parametrize("lag", [0, 1, 2])
@pytest.mark.parametrize("concurrency", [1, 3, 5])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_engine_decides_as_the_simulator(policy: str, concurrency: int, lag: int) -> None:
    """In float64: batch shapes change float32's last bits."""
    if lag != 1 and policy != "adaptive":
        pytest.skip("reads no confidences late")
    pair, prompts, eos = make_pair(torch.float64), make_prompts(), frozenset({5, 11})
    trace = record(*pair, prompts, eos)
    assert len(set(trace.output_len)) > 1  # some outputs end early
    case = make_case(policy, concurrency, lag=lag)
    oracle = ImposedOutcomes(trace) if policy == "oracle" else None
    _, steps = serve(pair, prompts, case, eos_token_ids=eos, oracle=oracle)
    assert decisions(steps) == decisions(replayed(trace, case))


@pytest.mark.parametrize("concurrency", [2, 5])
@pytest.mark.parametrize("policy", POLICIES)
def test_imposed_outcomes_are_followed_whatever_the_models_say(policy: str, concurrency: int) -> None:
    """In float32, by a pair that has nothing to do with the trace."""
    recorded = make_pair(torch.float64)
    prompts, eos = make_prompts(), frozenset({5, 11})
    trace = record(*recorded, prompts, eos)
    torch.manual_seed(9)
    strangers = tuple(Decoder(recorded[0].config).requires_grad_(False).eval() for _ in range(2))
    case = make_case(policy, concurrency)
    _, steps = serve(strangers, prompts, case, eos_token_ids=eos, imposed=ImposedOutcomes(trace))  # type: ignore[arg-type]
    assert decisions(steps) == decisions(replayed(trace, case))


@settings(max_examples=15)
@given(
    lengths=st.lists(st.integers(1, 25), min_size=1, max_size=6),
    concurrency=st.integers(1, 4),
    policy=st.sampled_from(["none", "fixed:2", "ema", "adaptive"]),
    batched=st.integers(20, 60),
)
def test_any_prompts_come_out_as_alone(lengths: list[int], concurrency: int, policy: str, batched: int) -> None:
    pair = make_pair(torch.float64)
    generator = torch.Generator().manual_seed(sum(lengths))
    prompts = [torch.randint(37, (length,), generator=generator).tolist() for length in lengths]
    with torch.inference_mode():
        alone = decode(pair[0], prompts, 6, on_pass=lambda done: None)
    case = make_case(policy, concurrency, max_num_batched_tokens=batched)
    engine, steps = serve(pair, prompts, case, max_output_tokens=6)
    assert {request: alone[request].tolist() for request in engine.outputs} == engine.outputs
    assert all(step.num_tokens <= batched for step in steps)


def test_phases_are_told_in_order() -> None:
    phases: list[str] = []
    engine = Engine(
        *make_pair(torch.float32), make_prompts(), make_case("adaptive", 2), max_output_tokens=4, on_phase=phases.append
    )
    engine.step()
    assert phases[:6] == ["schedule", "plan", "layout", "verify", "head", "commit"]
    assert set(phases[6:]) == {"layout", "draft-prefill", "draft", "record"}


def test_what_cannot_be_served_is_refused() -> None:
    with pytest.raises(ConfigError, match="adaptive chooses budgets, and no cost tables"):
        make_case("adaptive", 2, tables=None)
    pair, prompts = make_pair(torch.float32), make_prompts()
    with pytest.raises(ConfigError, match="oracle needs a trace"):
        Engine(*pair, prompts, make_case("oracle", 2), max_output_tokens=4)
    with pytest.raises(ConfigError, match="reserve 50 tokens a step, and a step holds 40"):
        Engine(*pair, prompts, make_case("fixed:4", 10), max_output_tokens=4)
