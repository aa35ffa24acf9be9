"""The engine on CUDA, replaying graphs and not: outputs as the target alone, decisions as the simulator."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from specplan.costs import build_cost_tables
from specplan.device.graphs import Grapher
from specplan.engine import Engine, EngineStep, ImposedOutcomes, ServingCase, decode_alone
from specplan.engine.static import Capture
from specplan.files import CostTables, Trace, TraceMetadata
from specplan.measure.agreement import check_lossless
from specplan.measure.prediction import replay_case
from specplan.models import Decoder, DecoderConfig
from specplan.planning import parse_policy
from specplan.shapes import request_grid
from specplan.simulation.replay import StepRecord

pytestmark = pytest.mark.gpu

K = 4
OUTPUT = 24
CAPTURE_SIZES = (1, 2, 4, 8, 12, 16, 20, 24)
CONFIG = DecoderConfig(
    model_type="llama",
    vocab_size=101,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
)


def make_pair(device: torch.device) -> tuple[Decoder, Decoder]:
    """A target, and a drafter that is the target with some noise: it is right about half of the time."""
    torch.manual_seed(0)
    target, draft = Decoder(CONFIG), Decoder(CONFIG)
    with torch.no_grad():
        for parameter in target.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.2)
        draft.load_state_dict(target.state_dict())
        for parameter in draft.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.01)
    target, draft = (decoder.requires_grad_(False).eval().to(device) for decoder in (target, draft))
    return target, draft


def make_prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    lengths = (5, 17, 1, 9, 30, 2, 12)
    return [torch.randint(CONFIG.vocab_size, (length,), generator=generator).tolist() for length in lengths]


def make_tables() -> CostTables:
    return build_cost_tables(
        [(1, 0.2), (8, 0.5)],
        [(1, 1.0), (4, 1.2), (8, 1.6), (16, 2.4), (24, 5.0), (64, 14.0)],
        max_num_reqs=8,
        max_num_tokens=64,
        capture_limit=24,
        overhead_ms=0.1,
    )


def make_case(policy: str, concurrency: int, capture_sizes: tuple[int, ...] = CAPTURE_SIZES) -> ServingCase:
    parsed = parse_policy(policy)
    return ServingCase(
        policy=parsed,
        num_speculative_tokens=K,
        concurrency=concurrency,
        max_num_batched_tokens=40,
        capture_sizes=capture_sizes,
        tables=make_tables() if parsed.has_budget else None,
    )


def random_trace() -> Trace:
    """Outcomes that no model had a part in, for the prompts of `make_prompts`."""
    rng = np.random.default_rng(5)
    prompt_len = np.array([len(prompt) for prompt in make_prompts()], dtype=np.int32)
    output_len = rng.integers(8, OUTPUT, len(prompt_len), endpoint=True).astype(np.int32)
    num_rows = int(output_len.sum())
    return Trace(
        metadata=TraceMetadata(
            kind="dense", sampling="greedy", num_speculative_tokens=K, target="t", draft="d", tokenizer="t", source="s"
        ),
        request=np.repeat(np.arange(len(output_len), dtype=np.int32), output_len),
        position=np.concatenate([np.arange(length, dtype=np.int32) for length in output_len]),
        confidence=rng.random((num_rows, K), dtype=np.float32),
        accepted_len=rng.integers(0, K, num_rows, endpoint=True).astype(np.int32),
        verified_len=np.full(num_rows, K, dtype=np.int32),
        arrival_s=np.zeros(len(output_len)),
        prompt_len=prompt_len,
        output_len=output_len,
    )


def decisions(steps: Sequence[EngineStep] | Sequence[StepRecord]) -> list[tuple[Any, ...]]:
    return [
        (step.requests, step.size.num_reqs, step.num_tokens, step.admitted, step.accepted, step.num_output_tokens)
        for step in steps
    ]


class CountingCapture:
    """Real graphs, of which each replay is counted. What `hinder` names does what no capture survives."""

    def __init__(self, device: torch.device, hinder: Callable[[int], bool] = lambda index: False) -> None:
        self.capture: Capture = Grapher(device).capture
        self.hinder = hinder
        self.num_captures = self.num_replays = 0

    def __call__(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        index, self.num_captures = self.num_captures, self.num_captures + 1
        replay = self.capture((lambda: run().cpu()) if self.hinder(index) else run)

        def counted() -> Tensor:
            self.num_replays += 1
            return replay()

        return counted


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("policy", ["none", "fixed:3", "adaptive"])
@pytest.mark.parametrize("capture_sizes", [CAPTURE_SIZES, ()], ids=["graphs", "eager"])
def test_greedy_output_is_what_the_target_says_alone(
    cuda: torch.device,
    capture_sizes: tuple[int, ...],
    policy: str,
    concurrency: int,
    record_property: Callable[[str, object], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Up to ties: two logits within 1e-4 are one in float32, and the shape of the batch may break it either way."""
    pair, prompts = make_pair(cuda), make_prompts()
    case = make_case(policy, concurrency, capture_sizes)
    with caplog.at_level(logging.WARNING, logger="specplan"):
        engine = Engine(*pair, prompts, case, max_output_tokens=OUTPUT)
    steps = list(engine.steps())
    found = check_lossless(list(engine.outputs.items()), pair[0], prompts, decode_alone(pair[0], prompts, OUTPUT))
    record_property("ties", found.num_ties)
    assert found.num_outputs == len(prompts)
    assert found.num_wrong == 0
    assert (sum(sum(step.accepted) for step in steps) > 0) == (policy != "none")

    assert not caplog.records  # nothing failed to be captured
    static = engine.runner.static
    if not capture_sizes:
        assert static is None
        return
    assert static is not None
    most = case.policy.num_drafts(K)
    assert {size for size in capture_sizes if size <= concurrency * (1 + most)} <= set(static.verify_steps)
    assert set(static.draft_steps) == ({(n, most) for n in request_grid(concurrency)} if most else set())


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("policy", ["none", "fixed:3", "ema", "adaptive", "oracle"])
def test_imposed_outcomes_give_the_simulators_decisions(cuda: torch.device, policy: str, concurrency: int) -> None:
    trace, case = random_trace(), make_case(policy, concurrency)
    engine = Engine(*make_pair(cuda), make_prompts(), case, max_output_tokens=OUTPUT, imposed=ImposedOutcomes(trace))
    assert decisions(list(engine.steps())) == decisions(replay_case(trace, case, make_tables()))


def test_steps_without_prompt_tokens_are_replayed_and_so_is_the_drafter(cuda: torch.device) -> None:
    capture = CountingCapture(cuda)
    engine = Engine(
        *make_pair(cuda), make_prompts(), make_case("fixed:3", 4), max_output_tokens=OUTPUT, capture=capture
    )
    steps = list(engine.steps())
    decoding = sum(not step.size.num_prompt_tokens for step in steps)
    # The last step's drafter has nobody to draft for only if all requests end in it.
    assert decoding + len(steps) - 1 <= capture.num_replays <= decoding + len(steps)


def test_a_step_that_cannot_be_captured_runs_eagerly_and_the_others_replay(
    cuda: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    capture = CountingCapture(cuda, hinder=lambda index: index == 1)  # the largest but one
    pair, prompts = make_pair(cuda), make_prompts()
    with caplog.at_level(logging.WARNING, logger="specplan"):
        engine = Engine(*pair, prompts, make_case("fixed:3", 4), max_output_tokens=OUTPUT, capture=capture)
    static = engine.runner.static
    assert static is not None
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "verify steps of 12 tokens run without a graph"
    ]
    assert sorted(static.verify_steps) == [1, 2, 4, 8, 16]
    for _ in engine.steps():
        pass
    found = check_lossless(list(engine.outputs.items()), pair[0], prompts, decode_alone(pair[0], prompts, OUTPUT))
    assert found.num_wrong == 0
    assert capture.num_replays > 0
